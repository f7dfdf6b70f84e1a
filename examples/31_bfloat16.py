"""Half of the bytes of every activation: a step in bfloat16, weights in float32.

The same network twice, from the same weights. In mixed bfloat16 activations and
products have 8 significant bits; products are summed in float32, and weights, their
gradients, the optimizer's state, statistics and the loss are float32. Predictions are
float32 arrays.
"""

import warnings

import numpy as np

import memcfg as mc

nn = mc.nn
BATCH, SIDE, CLASSES = 32, 24, 4

# Images with a bright patch in one of four corners, in noise.
generator = np.random.default_rng(0)
labels = generator.integers(0, CLASSES, 512)
images = generator.normal(size=(len(labels), SIDE, SIDE, 3)).astype(np.float32)
for image, label in zip(images, labels, strict=True):
    row, column = (SIDE // 2 * part for part in divmod(int(label), 2))
    image[row : row + SIDE // 2, column : column + SIDE // 2] += 0.8


def network(dtype):
    nn.set_random_seed(0)
    h = inputs = nn.Input((SIDE, SIDE, 3))
    for filters in (16, 16, 32):
        h = nn.Conv2D(filters, 3, padding="same", use_bias=False)(h)
        h = nn.ReLU()(nn.BatchNormalization()(h))
    h = nn.Flatten()(nn.MaxPooling2D(6)(h))
    return nn.Model(inputs, nn.Dense(CLASSES)(h), dtype=dtype)


def train(dtype):
    """Train; return the peak of the plan and the accuracy on the last images."""
    model = network(dtype)
    loss = nn.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(nn.SGD(0.02, momentum=0.9), loss, metrics=["accuracy"])
    model.fit(images[:384], labels[:384], batch_size=BATCH, epochs=4, verbose=0, seed=0)
    report = model.memory_report(verify=True)
    peak = model.memory_plan.peak_bytes
    assert report.measured_peak_bytes == peak
    _, accuracy = model.evaluate(images[384:], labels[384:], verbose=0)
    assert model.predict(images[:2], verbose=0).dtype == np.float32
    assert {weight.dtype for weight in model.weights} == {"float32"}
    computes = {layer.compute_dtype for layer in model.layers}
    print(f"{dtype:15} computes {', '.join(computes)}: {peak:,} bytes a step")
    model.close()
    return peak, accuracy


whole, exact = train("float32")
with warnings.catch_warnings(record=True) as told:
    warnings.filterwarnings("always", "this processor has no instructions")
    half, rounded = train("mixed_bfloat16")
for each in told:
    print(each.message)
# Without instructions of 512 bits, products take copies in float32.
copied = any("through copies" in str(each.message) for each in told)
assert half < (0.75 if copied else 0.55) * whole
assert rounded > exact - 0.05
assert rounded > 0.8
print("as good to the eye: accuracies differ by less than 0.05")

# For all layers from here on:
mc.config.set_dtype_policy("mixed_bfloat16")
last = nn.Dense(CLASSES, dtype="float32")  # but for one that says its own
print(nn.Dense(8).compute_dtype, last.compute_dtype, last.variable_dtype)
