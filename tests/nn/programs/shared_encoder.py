import keras
import numpy as np

encoder = keras.Sequential(
    [keras.Input((5,)), keras.layers.Dense(4, activation="tanh")]
)
a, b = keras.Input((5,)), keras.Input((5,))
distance = keras.layers.Subtract()([encoder(a), encoder(b)])
model = keras.Model([a, b], keras.layers.Dense(1, activation="sigmoid")(distance))
assert len(model.trainable_weights) == 4
model.compile("adam", "binary_crossentropy")
x = np.random.default_rng(0).normal(size=(2, 32, 5))
model.fit([x[0], x[1]], np.ones(32), verbose=0)
assert model.count_params() == 5 * 4 + 4 + 4 + 1
