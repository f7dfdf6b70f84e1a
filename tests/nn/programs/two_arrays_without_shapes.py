import keras
import numpy as np


class Joined(keras.Model):
    def __init__(self):
        super().__init__()
        self.join = keras.layers.Concatenate()
        self.sum = keras.layers.Dense(1, use_bias=False, kernel_initializer="ones")

    def call(self, inputs):
        left, right = inputs
        return self.sum(self.join([left, right]))


a = np.arange(12, dtype="float32").reshape(4, 3)
b = np.ones((4, 2), "float32")
wanted = a.sum(axis=1, keepdims=True) + 2
for inputs in ([a, b], (a, b)):
    model = Joined()
    np.testing.assert_allclose(model.predict(inputs, verbose=0), wanted)
    assert len(model.weights) == 1

model = Joined()
np.testing.assert_allclose(model.predict_on_batch([a, b]), wanted)
model.compile("sgd", "mse")
assert model.evaluate([a, b], wanted, verbose=0) < 1e-6
