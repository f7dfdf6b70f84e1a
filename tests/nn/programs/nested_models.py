import keras
import numpy as np

inner = keras.Sequential(
    [keras.Input((4,)), keras.layers.Dense(3, name="in"), keras.layers.ReLU()],
    name="inner",
)
outer_in = keras.Input((4,))
outer = keras.Model(outer_in, keras.layers.Dense(1)(inner(outer_in)))
assert outer.get_layer("inner") is inner
outer.compile("sgd", "mse")
outer.fit(np.ones((8, 4)), np.ones(8), verbose=0)
features = keras.Model(inner.inputs, inner.get_layer("in").output)
assert features.predict(np.ones((2, 4)), verbose=0).shape == (2, 3)
