"""Prune a network, let its weights share values, train it in between, and save it.

Pruned weights have no gradients and no optimizer state, so each stage trains in less
memory than the one before. `compress` makes all stages, and searches for densities and
bits that keep the accuracy; here they are made one by one first. What is chosen by
accuracy is chosen on samples for validation, and what is left at the end is measured on
samples for testing, which nothing has been chosen by.
"""

from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

import memcfg as mc

nn, compression = mc.nn, mc.compression
CLASSES, FEATURES = 5, 64
rng = np.random.default_rng(0)
centres = rng.normal(0, 1, (CLASSES, FEATURES))


def samples(count):
    """Return noisy points around the centres of classes, and their classes."""
    y = rng.integers(0, CLASSES, count)
    noise = rng.normal(0, 2, (count, FEATURES))
    return np.float32(centres[y] + noise), y


train, validation, test = samples(2000), samples(1000), samples(1000)
nn.set_random_seed(0)
model = nn.Sequential(
    [
        nn.Input((FEATURES,)),
        nn.Dense(128, activation="relu", name="hidden"),
        nn.Dense(CLASSES, activation="softmax", name="classes"),
    ]
)
loss = "sparse_categorical_crossentropy"
model.compile(nn.Adam(0.003), loss, metrics=["accuracy"])
model.fit(*train, epochs=5, verbose=0)


def show(stage, model):
    """Print the accuracy, and the memory of a training step."""
    accuracy = model.evaluate(*validation, verbose=0)[1]
    print(f"{stage}: {accuracy:.3f}, {model.plan(32).peak_bytes:,} bytes to train")


show("dense", model)
pruned = model
for density in compression.density_schedule(0.1, steps=3):
    pruned = compression.prune(pruned, density, scope="global")
    pruned.fit(*train, epochs=2, verbose=0)
show("pruned", pruned)
shared = compression.share_weights(pruned, bits=4)
shared.fit(*train, epochs=2, verbose=0)
show("shared", shared)
small = compression.CompressedModel(shared)
print(f"{small.dense_bytes:,} bytes of weights in a file of {small.nbytes:,}")

# All of it at once: the loss of accuracy is given, the rest is found.
small = compression.compress(model, train, 0.01, validation_data=validation, epochs=2)
print(small.report())
with TemporaryDirectory() as folder:
    path = Path(folder, "model.mcz")
    small.save(path)
    found = compression.load(path).predict(test[0]).argmax(1)
dense = model.predict(test[0], verbose=0).argmax(1)
for name, classes in (("the dense model", dense), ("the loaded file", found)):
    print(f"of samples for testing, {name} has {(classes == test[1]).mean():.3f} right")
