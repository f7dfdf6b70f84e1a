import keras
import numpy as np

keras.utils.set_random_seed(1)
x = np.ones((2, 8, 8, 3), "float32")
for layer in (
    keras.layers.Conv2D(4, 3),
    keras.layers.MaxPooling2D(),
    keras.layers.GlobalAveragePooling2D(),
    keras.layers.Dense(5, activation="relu"),
):
    x = layer(x)
assert tuple(x.shape) == (2, 5)
