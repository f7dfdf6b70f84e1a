"""A U-Net says of each pixel whether it is of a circle, of a square or of neither.

Near its edge alone a square is like a circle: the network has to see whole shapes and
say what it saw for each pixel. What it keeps for that, down to the coarsest map and up
again, is more than the limit holds; recomputation makes it fit, to the same bits.
"""

import numpy as np

import memcfg as mc

nn = mc.nn
SIZE, EPOCHS, BATCH = 16, 3, 16


def shapes(count, seed):
    """Return noisy images of one shape each; 1 is of a circle, 2 of a square."""
    rng = np.random.default_rng(seed)
    rows, columns = np.mgrid[:SIZE, :SIZE]
    top, left = rng.integers(5, SIZE - 5, (2, count, 1, 1))
    radius = rng.integers(3, 6, (count, 1, 1))
    square = rng.random((count, 1, 1)) < 0.5
    down, right = abs(rows - top), abs(columns - left)
    distance = np.where(square, np.maximum(down, right), np.hypot(down, right))
    inside = distance <= radius
    x = inside + rng.normal(0, 0.2, inside.shape)
    return x[..., None], inside * np.where(square, 2, 1)


def convolution(width, h):
    h = nn.Conv2D(width, 3, padding="same", use_bias=False)(h)
    return nn.ReLU()(nn.BatchNormalization(momentum=0.9)(h))


def unet(width=6):
    inputs = nn.Input((SIZE, SIZE, 1))
    fine = convolution(width, inputs)
    middle = convolution(2 * width, nn.MaxPooling2D()(fine))
    h = convolution(4 * width, nn.MaxPooling2D()(middle))
    h = convolution(4 * width, h)
    h = nn.Conv2DTranspose(2 * width, 2, strides=2)(h)
    h = convolution(2 * width, nn.Concatenate()([h, middle]))
    h = convolution(width, nn.Concatenate()([nn.UpSampling2D()(h), fine]))
    return nn.Model(inputs, nn.Conv2D(3, 1)(h))


def iou(model, x, y):
    """Return intersection over union, the mean of circles and squares."""
    p = model.predict(x, BATCH, verbose=0).argmax(-1)
    pairs = [(p == kind, y == kind) for kind in (1, 2)]
    return np.mean([(a & b).sum() / (a | b).sum() for a, b in pairs])


x, y = shapes(1024, seed=0)
x_test, y_test = shapes(256, seed=1)
nn.set_random_seed(0)
model = unet()
steps = EPOCHS * len(x) // BATCH
optimizer = nn.Adam(nn.optimizers.schedules.CosineDecay(0.01, steps))
loss = nn.SparseCategoricalCrossentropy(from_logits=True)
peaks = {}
for policy in ("keep_all", "share", "sqrt_checkpoint"):
    model.compile(optimizer, loss, memory=policy)
    peaks[policy] = model.plan(BATCH).peak_bytes
print({policy: f"{peak / 2**20:.2f} MiB" for policy, peak in peaks.items()})

limit = "1000KiB"
mc.config.set_memory_limit("CPU:0", limit)
before = iou(model, x_test, y_test)
model.fit(x, y, batch_size=BATCH, epochs=EPOCHS, verbose=0, seed=0)
after = iou(model, x_test, y_test)
peak = mc.config.get_memory_info("CPU:0")["peak"]
print(f"IoU {before:.2f}, trained {after:.2f}; peak {peak / 2**10:.0f} KiB of {limit}")
assert peaks["share"] > 1000 * 2**10 >= peak
assert after > 0.8 > 0.2 > before
