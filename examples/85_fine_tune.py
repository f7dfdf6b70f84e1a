"""Fine-tune MobileNetV2 within a limit: a new classifier first, then the last block.

    python examples/85_fine_tune.py [WEIGHTS]

WEIGHTS is a file that Keras has written for this network without its classifier, or
"imagenet", which downloads Keras's own. Without it the network learns to tell other
patterns first.
"""

import sys

import numpy as np

import memcfg as mc
from memcfg import nn

SIDE, BATCH = 64, 32
weights = sys.argv[1] if len(sys.argv) > 1 else None


def draw_stripes(count, slopes, random):
    """Return images of stripes, and which of several slopes each has."""
    kinds = random.integers(0, len(slopes), count)
    row, column = np.mgrid[:SIDE, :SIDE]
    down, right = (np.array(slopes)[kinds].T)[..., None, None]
    period = random.integers(8, 13, (count, 1, 1))
    bright = (down * row + right * column) % period < period / 2
    noise = random.uniform(0, 85, (count, SIDE, SIDE, 3))
    return (noise + 170 * bright[..., None]).astype(np.float32), kinds


def with_classifier(classes):
    """Return a model whose last layer is new."""
    images = nn.Input((SIDE, SIDE, 3))
    pixels = nn.applications.mobilenet_v2.preprocess_input(images)
    return nn.Model(images, nn.Dense(classes)(nn.Dropout(0.1)(base(pixels))))


def compiled(model, rate):
    """Compile a model, which is planned anew, and return the bytes of a step."""
    loss = nn.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(nn.Adam(rate), loss, metrics=["accuracy"])
    return model.plan(BATCH).peak_bytes


nn.set_random_seed(0)
random = np.random.default_rng(0)
base = nn.applications.MobileNetV2(
    (SIDE, SIDE, 3), alpha=0.35, include_top=False, weights=weights, pooling="avg"
)
if weights is None:
    for layer in base.layers:
        if isinstance(layer, nn.BatchNormalization):
            layer.momentum = 0.8  # 0.999 is for thousands of steps
    first = with_classifier(3)
    compiled(first, 3e-3)
    x, y = draw_stripes(256, [(1, 0), (0, 1), (1, 1)], random)
    first.fit(x, y, BATCH, epochs=4, seed=0, verbose=2)
    first.close()  # the model below holds the layers that it trained

slopes = [(1, 0), (1, 2), (1, -1)]
x, y = draw_stripes(256, slopes, random)
test = draw_stripes(128, slopes, random)
model = with_classifier(3)
everything = compiled(model, 1e-3)
base.trainable = False
classifier = compiled(model, 1e-2)
print(f"all layers: {everything / 2**20:.1f} MiB, classifier: {classifier / 2**20:.1f}")

mc.config.set_memory_limit("CPU:0", everything // 2)
model.fit(x, y, BATCH, epochs=5, seed=0, verbose=0)
print("accuracy of the classifier:", model.evaluate(*test, verbose=0)[1])
base.trainable = True
for layer in base.layers:
    layer.trainable = layer.name.startswith(("block_16", "Conv_1"))
print(f"last block: {compiled(model, 1e-3) / 2**20:.1f} MiB")
model.fit(x, y, BATCH, epochs=2, seed=0, verbose=0)
print("accuracy with the last block:", model.evaluate(*test, verbose=0)[1])
