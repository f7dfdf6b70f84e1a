import keras
import numpy as np

wide, deep = keras.Input((10,), name="wide"), keras.Input((6,), name="deep")
x = keras.layers.Dense(16, activation="relu")(deep)
x = keras.layers.Dense(16, activation="relu")(x)
x = keras.layers.concatenate([wide, x])
model = keras.Model({"wide": wide, "deep": deep}, keras.layers.Dense(1)(x))
model.compile("rmsprop", "mse")
rng = np.random.default_rng(0)
data = {"wide": rng.random((50, 10)), "deep": rng.random((50, 6))}
model.fit(data, rng.random((50, 1)), epochs=2, verbose=0)
assert model.predict(data, verbose=0).shape == (50, 1)
