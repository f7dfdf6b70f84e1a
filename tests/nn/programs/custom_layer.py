import keras
import numpy as np


class Linear(keras.layers.Layer):
    def __init__(self, units=32, **kwargs):
        super().__init__(**kwargs)
        self.units = units

    def build(self, input_shape):
        self.w = self.add_weight(
            shape=(input_shape[-1], self.units), initializer="glorot_uniform", name="w"
        )
        self.b = self.add_weight(shape=(self.units,), initializer="zeros", name="b")
        self.scale = self.add_weight(
            shape=(), initializer="ones", trainable=False, name="scale"
        )

    def call(self, inputs):
        return self.scale * (inputs @ self.w + self.b)


keras.utils.set_random_seed(0)
x = np.random.default_rng(0).normal(size=(256, 3))
y = x @ np.array([[1.0], [2.0], [3.0]]) + 4
model = keras.Sequential([keras.Input((3,)), Linear(8), Linear(1, name="last")])
assert [tuple(w.shape) for w in model.layers[0].trainable_weights] == [(3, 8), (8,)]
model.compile(keras.optimizers.Adam(0.03), "mse")
model.fit(x, y, epochs=25, verbose=0)
assert model.evaluate(x, y, verbose=0) < 0.1
assert float(model.get_layer("last").get_weights()[-1]) == 1.0
