import keras
import numpy as np

model = keras.Sequential(
    [
        keras.Input((16, 16, 3)),
        keras.layers.SeparableConv2D(8, 3, padding="same"),
        keras.layers.BatchNormalization(),
        keras.layers.ReLU(6.0),
        keras.layers.DepthwiseConv2D(3, strides=2, padding="same"),
        keras.layers.GlobalAveragePooling2D(),
        keras.layers.Dense(4),
    ]
)
assert model.output_shape == (None, 4)
x = np.random.default_rng(0).random((2, 16, 16, 3))
assert model.predict(x, verbose=0).shape == (2, 4)
