import keras
import numpy as np


class NearOne(keras.regularizers.Regularizer):
    def __init__(self, strength):
        self.strength = strength

    def __call__(self, weights):
        return self.strength * keras.ops.sum(keras.ops.square(weights - 1.0))


layer = keras.layers.Dense(2, kernel_regularizer=NearOne(1.0))
model = keras.Sequential([keras.Input((3,)), layer])
model.compile(keras.optimizers.SGD(0.05), "mse")
x = np.zeros((16, 3))
model.fit(x, np.zeros((16, 2)), epochs=60, verbose=0)
np.testing.assert_allclose(layer.get_weights()[0], 1, atol=0.05)
