"""A network of volumes finds the balls in noise, within a memory limit.

Each voxel is of a ball or of a cube, or of neither. Convolutions over depth, height and
width keep much for their gradients; what the limit cannot hold is computed again.
"""

import numpy as np

import memcfg as mc

nn = mc.nn
SIZE, BATCH, EPOCHS = 12, 8, 6


def volumes(count, seed):
    """Return noisy volumes with one body each; 1 is of a ball, 2 of a cube."""
    rng = np.random.default_rng(seed)
    axes = np.mgrid[:SIZE, :SIZE, :SIZE]
    centre = rng.integers(4, SIZE - 4, (3, count, 1, 1, 1))
    apart = abs(axes[:, None] - centre)
    cube = rng.random((count, 1, 1, 1)) < 0.5
    distance = np.where(cube, apart.max(0), np.sqrt((apart**2).sum(0)))
    inside = distance <= rng.integers(3, 5, (count, 1, 1, 1))
    x = inside + rng.normal(0, 0.2, inside.shape)
    return x[..., None].astype(np.float32), inside * np.where(cube, 2, 1)


def network(width=8):
    def convolution(width, h):
        h = nn.Conv3D(width, 3, padding="same", use_bias=False)(h)
        return nn.ReLU()(nn.BatchNormalization(momentum=0.9)(h))

    start = nn.Input((SIZE, SIZE, SIZE, 1))
    fine = convolution(width, start)
    coarse = convolution(2 * width, nn.MaxPooling3D()(fine))
    coarse = convolution(2 * width, coarse)
    h = nn.Conv3DTranspose(width, 2, strides=2)(coarse)
    h = convolution(width, nn.Concatenate()([h, fine]))
    return nn.Model(start, nn.Conv3D(3, 1)(h))


def right(model, x, y):
    """Return the share of the voxels of bodies whose kind is found."""
    found = model.predict(x, batch_size=BATCH, verbose=0).argmax(-1)
    return (found == y)[y > 0].mean()


x, y = volumes(192, seed=0)
x_test, y_test = volumes(48, seed=1)
nn.set_random_seed(0)
model = network()
loss = nn.SparseCategoricalCrossentropy(from_logits=True)
model.compile(nn.Adam(0.01), loss)
graph = model.graph(BATCH)
whole = mc.plan.share()(graph).peak_bytes
limit = whole * 3 // 4
mc.config.set_memory_limit("CPU:0", limit)
before = right(model, x_test, y_test)
model.fit(x, y, batch_size=BATCH, epochs=EPOCHS, verbose=0, seed=0)
after = right(model, x_test, y_test)
peak = mc.config.get_memory_info("CPU:0")["peak"]
print(f"right {before:.2f}, trained {after:.2f}")
print(
    f"peak {peak / 2**20:.2f} MiB of {limit / 2**20:.2f}, {whole / 2**20:.2f} by share"
)
assert peak <= limit < whole
assert after > 0.8 > before
