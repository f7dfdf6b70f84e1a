import keras
import numpy as np

inputs = keras.Input((6,))
x = keras.layers.Lambda(lambda t: keras.ops.square(t) - 1.0)(inputs)
model = keras.Model(inputs, keras.layers.Dense(1)(x))
model.compile("adam", "mse")
data = np.random.default_rng(0).normal(size=(64, 6))
model.fit(data, (data**2).sum(1), epochs=2, verbose=0)
assert model.predict(data, verbose=0).shape == (64, 1)
