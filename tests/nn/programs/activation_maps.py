import keras
import numpy as np

keras.utils.set_random_seed(0)
rng = np.random.default_rng(0)
x = 0.1 * rng.random((80, 8, 8, 1)).astype("float32")
rows, columns = rng.integers(0, 7, (2, 80))
y = np.arange(80) % 2
for image, row, column, label in zip(x, rows, columns, y, strict=True):
    if label:
        image[row : row + 2, column : column + 2] += 1
inputs = keras.Input((8, 8, 1))
maps = keras.layers.Conv2D(6, 3, padding="same", activation="relu", name="maps")(inputs)
pooled = keras.layers.GlobalAveragePooling2D()(maps)
outputs = keras.layers.Dense(1, activation="sigmoid", name="head")(pooled)
model = keras.Model(inputs, outputs)
model.compile(keras.optimizers.Adam(0.05), "binary_crossentropy", metrics=["accuracy"])
model.fit(x, y, epochs=25, verbose=0)
assert model.evaluate(x, y, verbose=0)[1] > 0.95

inner = keras.Model(model.input, model.get_layer("maps").output)
weights = model.get_layer("head").get_weights()[0]
heat = (inner.predict(x, verbose=0) @ weights)[..., 0]
shown = np.flatnonzero(y)
found = np.array([np.unravel_index(heat[i].argmax(), (8, 8)) for i in shown])
near = np.abs(found - np.stack([rows, columns], 1)[shown] - 0.5).max(axis=1) < 2.6
assert near.mean() > 0.9
