import keras
import numpy as np


class Stripes(keras.initializers.Initializer):
    def __call__(self, shape, dtype=None):
        return keras.ops.ones(shape, dtype) * 0.5


class Unit(keras.constraints.Constraint):
    def __call__(self, w):
        return w / keras.ops.sqrt(keras.ops.sum(keras.ops.square(w)))


layer = keras.layers.Dense(3, kernel_initializer=Stripes(), kernel_constraint=Unit())
model = keras.Sequential([keras.Input((4,)), layer])
assert np.all(layer.get_weights()[0] == 0.5)
model.compile(keras.optimizers.SGD(0.1), "mse")
model.train_on_batch(np.ones((2, 4)), np.ones((2, 3)))
assert abs(np.linalg.norm(layer.get_weights()[0]) - 1) < 1e-4
