"""Train on smaller images where the batch does not fit the limit.

    python examples/48_smaller_images.py

`compile(on_oom=...)` lists what may be done, in order. Micro-batches are not listed
here, since batch normalisation would see other statistics. `fit` trains a copy of the
model that makes images smaller first, and whose weights fit the model itself.
"""

import warnings

import numpy as np

import memcfg as mc
from memcfg import nn

SIDE = 48


def make_model(**options):
    """Return a network whose weights do not depend on the size of images."""
    nn.set_random_seed(0)
    layers = [nn.Input((SIDE, SIDE, 3))]
    for filters in (16, 32):
        layers += [nn.Conv2D(filters, 3, padding="same"), nn.BatchNormalization()]
        layers += [nn.Activation("relu"), nn.MaxPooling2D()]
    layers += [nn.GlobalAveragePooling2D(), nn.Dense(3)]
    model = nn.Sequential(layers)
    loss = nn.SparseCategoricalCrossentropy(from_logits=True)
    model.compile("adam", loss, metrics=["accuracy"], **options)
    return model


random = np.random.default_rng(0)
y = random.integers(0, 3, 96)
x = random.normal(0, 0.3, (96, SIDE, SIDE, 3)).astype(np.float32)
x[np.arange(96), ..., y] += 1  # one channel tells the class

model = make_model(on_oom=["replan", "resize"])
mc.config.set_memory_limit("CPU:0", "12MiB")
with warnings.catch_warnings(record=True) as told:
    warnings.simplefilter("always")
    history = model.fit(x, y, batch_size=96, epochs=20, verbose=0)
for warning in told:
    print(warning.message)

print(
    f"accuracy {history.history['accuracy'][-1]:.2f}, step {history.fallbacks[0].step}"
)
plan = history.model.memory_plan
print("peak within the limit:", plan.peak_bytes <= 12 << 20)
weights = history.model.get_weights()
history.model.close()

mc.config.set_memory_limit("CPU:0", None)
model.set_weights(weights)  # the weights have the shapes of the model's
accuracy = (model.predict(x, verbose=0).argmax(1) == y).mean()
print(f"the model itself, on whole images: {accuracy:.2f}")
