import keras
import numpy as np

keras.utils.set_random_seed(0)
rng = np.random.default_rng(0)
t = np.sqrt(rng.uniform(0.05, 1, 400)) * 1.5 * np.pi
side = rng.integers(0, 2, 400)
x = np.stack([np.cos(t + np.pi * side), np.sin(t + np.pi * side)], 1) * t[:, None] / 3
model = keras.Sequential()
model.add(keras.Input((2,)))
for _ in range(2):
    model.add(keras.layers.Dense(32))
    model.add(keras.layers.Activation("tanh"))
model.add(keras.layers.Dense(1, activation="sigmoid"))
model.compile(keras.optimizers.Adam(0.02), "binary_crossentropy", metrics=["accuracy"])
model.fit(x, side, epochs=60, batch_size=100, verbose=0)
assert len(model.layers) == 5
assert model.evaluate(x, side, verbose=0)[1] > 0.95
