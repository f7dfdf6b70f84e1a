import keras
import numpy as np

base = keras.Sequential([keras.Input((4,)), keras.layers.Dense(8, activation="relu")])
base.trainable = False
model = keras.Sequential([base, keras.layers.Dense(1)])
model.compile("sgd", "mse")
before = [w.copy() for w in base.get_weights()]
x = np.random.default_rng(0).normal(size=(32, 4))
model.fit(x, x[:, :1], epochs=1, verbose=0)
assert all(
    np.array_equal(a, b) for a, b in zip(before, base.get_weights(), strict=True)
)
base.trainable = True
model.compile(keras.optimizers.SGD(0.01), "mse")
model.fit(x, x[:, :1], epochs=1, verbose=0)
assert not all(
    np.array_equal(a, b) for a, b in zip(before, base.get_weights(), strict=True)
)
