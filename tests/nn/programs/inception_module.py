import keras
import numpy as np

inputs = keras.Input((10, 10, 4))
towers = [
    keras.layers.Conv2D(4, 1, padding="same", activation="relu")(inputs),
    keras.layers.Conv2D(4, 3, padding="same", activation="relu")(inputs),
    keras.layers.Conv2D(4, 5, padding="same", activation="relu")(inputs),
    keras.layers.MaxPooling2D(3, strides=1, padding="same")(inputs),
]
x = keras.layers.Concatenate()(towers)
x = keras.layers.Flatten()(x)
model = keras.Model(inputs, keras.layers.Dense(2)(x))
assert model.output_shape == (None, 2)
assert model.get_layer(index=1) is model.layers[1]
out = model.predict(np.zeros((3, 10, 10, 4)), verbose=0)
assert out.shape == (3, 2)
