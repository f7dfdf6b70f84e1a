import keras
import numpy as np

inputs = keras.Input((6,))
gates = keras.layers.Dense(3, activation="softmax")(inputs)
experts = [keras.layers.Dense(4, activation="relu")(inputs) for _ in range(3)]
x = keras.ops.stack(experts, axis=1)
x = keras.ops.sum(x * keras.ops.expand_dims(gates, -1), axis=1)
model = keras.Model(inputs, keras.layers.Dense(1)(x))
model.compile("adam", "mse")
data = np.random.default_rng(0).normal(size=(32, 6))
model.fit(data, data[:, :1], epochs=1, verbose=0)
assert model.predict(data, verbose=0).shape == (32, 1)
