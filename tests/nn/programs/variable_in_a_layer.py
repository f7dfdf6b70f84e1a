import keras
import numpy as np


class Scale(keras.layers.Layer):
    def build(self, input_shape):
        self.factor = self.add_weight(
            shape=(input_shape[-1],), initializer="ones", name="factor"
        )
        self.calls = self.add_weight(shape=(), initializer="zeros", trainable=False)

    def call(self, inputs):
        return inputs * self.factor


layer = Scale()
model = keras.Sequential([keras.Input((3,)), layer])
assert len(model.trainable_weights) == 1
assert len(model.non_trainable_weights) == 1
layer.factor.assign([1.0, 2.0, 3.0])
np.testing.assert_allclose(model.predict(np.ones((1, 3)), verbose=0), [[1, 2, 3]])
