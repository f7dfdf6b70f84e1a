"""A residual network on handwritten digits, written as a functional model."""

import numpy as np
from sklearn.datasets import load_digits

import memcfg as mc

nn = mc.nn


def block(x, filters):
    """Two convolutions beside a shortcut (He et al., CVPR 2016)."""
    h = nn.Conv2D(filters, 3, padding="same", use_bias=False)(x)
    h = nn.ReLU()(nn.BatchNormalization(momentum=0.9)(h))
    h = nn.Conv2D(filters, 3, padding="same", use_bias=False)(h)
    h = nn.BatchNormalization(momentum=0.9)(h)
    return nn.ReLU()(nn.Add()([x, h]))


digits = load_digits()
x = (digits.images[..., None] / 16).astype(np.float32)  # (1797, 8, 8, 1)
y = digits.target

nn.set_random_seed(0)
inputs = nn.Input((8, 8, 1))
h = nn.Conv2D(16, 3, padding="same", activation="relu")(inputs)
h = block(h, 16)
h = nn.MaxPool2D(2)(h)
h = block(h, 16)
outputs = nn.Dense(10)(nn.GlobalAveragePooling2D()(h))
model = nn.Model(inputs, outputs, name="digits")

model.compile(
    nn.Adam(0.003),
    nn.SparseCategoricalCrossentropy(from_logits=True),
    metrics=["accuracy"],
)
model.summary()
history = model.fit(x, y, batch_size=64, epochs=4, validation_split=0.2, seed=0)
print(model.memory_plan)
assert history.history["val_accuracy"][-1] > 0.8
