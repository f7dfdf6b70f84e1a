"""Embeddings of unit length beside a classifier that forgives wrong labels."""

import keras
import numpy as np

rng = np.random.default_rng(0)
keras.utils.set_random_seed(0)
centers = rng.normal(size=(3, 6))
y = rng.integers(0, 3, 120)
x = (centers[y] + 0.3 * rng.normal(size=(120, 6))).astype("float32")

model = keras.Sequential(
    [
        keras.layers.Input((6,)),
        keras.layers.Dense(8, activation="tanh"),
        keras.layers.Dense(4),
        keras.layers.UnitNormalization(),
    ]
)
model.compile(keras.optimizers.Adam(0.01), keras.losses.Circle(gamma=16))
history = model.fit(x, y, epochs=20, batch_size=40, verbose=0)
assert history.history["loss"][-1] < 0.5 * history.history["loss"][0]

model = keras.Sequential(
    [keras.layers.Input((6,)), keras.layers.Dense(3, activation="softmax")]
)
noisy = np.where(rng.random(120) < 0.1, rng.integers(0, 3, 120), y)
loss = keras.losses.CategoricalGeneralizedCrossEntropy(q=0.7)
model.compile(keras.optimizers.Adam(0.1), loss)
model.fit(x, noisy, epochs=20, verbose=0)
assert (model.predict(x, verbose=0).argmax(-1) == y).mean() > 0.9
