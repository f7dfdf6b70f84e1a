import keras
import numpy as np


class Positions(keras.layers.Layer):
    def __init__(self, length, width, **options):
        super().__init__(**options)
        self.embedding = keras.layers.Embedding(length, width)
        self.length = length

    def call(self, x):
        return x + self.embedding(np.arange(self.length))


keras.utils.set_random_seed(0)
inputs = keras.Input((8,), dtype="int32")
x = keras.layers.Embedding(20, 16)(inputs)
x = Positions(8, 16)(x)
y = keras.layers.MultiHeadAttention(2, 8)(x, x)
x = keras.layers.LayerNormalization()(x + y)
x = keras.layers.GlobalAveragePooling1D()(x)
model = keras.Model(inputs, keras.layers.Dense(2)(x))
assert model.predict(np.zeros((2, 8), "int32"), verbose=0).shape == (2, 2)
