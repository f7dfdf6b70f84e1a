import keras
import numpy as np


def build():
    return keras.Sequential(
        [
            keras.Input((3,)),
            keras.layers.Dense(4, activation="relu"),
            keras.layers.Dense(2),
        ]
    )


a, b = build(), build()
b.set_weights(a.get_weights())
x = np.random.default_rng(0).normal(size=(5, 3))
np.testing.assert_array_equal(a.predict(x, verbose=0), b.predict(x, verbose=0))
shapes = [tuple(w.shape) for w in a.weights]
assert shapes == [(3, 4), (4,), (4, 2), (2,)]
