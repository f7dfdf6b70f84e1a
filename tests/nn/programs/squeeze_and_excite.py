import keras
import numpy as np


def squeeze(x, ratio=2):
    channels = x.shape[-1]
    s = keras.layers.GlobalAveragePooling2D(keepdims=True)(x)
    s = keras.layers.Dense(channels // ratio, activation="relu")(s)
    s = keras.layers.Dense(channels, activation="sigmoid")(s)
    return keras.layers.Multiply()([x, s])


inputs = keras.Input((12, 12, 3))
x = keras.layers.Conv2D(8, 3, padding="same", activation="relu")(inputs)
x = squeeze(x)
x = keras.layers.GlobalMaxPooling2D()(x)
model = keras.Model(inputs, keras.layers.Dense(3, activation="softmax")(x))
model.compile("adam", "sparse_categorical_crossentropy", metrics=["accuracy"])
x = np.random.default_rng(0).random((32, 12, 12, 3))
logs = model.fit(x, np.arange(32) % 3, epochs=1, verbose=0).history
assert set(logs) == {"loss", "accuracy"}
