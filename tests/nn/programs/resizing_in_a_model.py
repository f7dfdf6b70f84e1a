import keras
import numpy as np

keras.utils.set_random_seed(0)
rng = np.random.default_rng(0)
big = rng.random((48, 16, 24, 1)).astype("float32")
y = (big[:, :, :12].mean(axis=(1, 2)) > big[:, :, 12:].mean(axis=(1, 2))).astype(
    "int32"
)
model = keras.Sequential(
    [
        keras.Input((16, 24, 1)),
        keras.layers.CenterCrop(16, 16),
        keras.layers.Resizing(4, 4),
        keras.layers.Rescaling(2.0, offset=-1.0),
        keras.layers.Flatten(),
        keras.layers.Dense(8, activation="relu"),
        keras.layers.Dense(2, activation="softmax"),
    ]
)
assert model.layers[1].output.shape == (None, 4, 4, 1)
model.compile("adam", "sparse_categorical_crossentropy")
history = model.fit(big, y, epochs=8, verbose=0).history["loss"]
assert history[-1] < history[0]
small = keras.layers.Resizing(4, 4)(keras.layers.CenterCrop(16, 16)(big))
sizes = keras.Model(model.inputs, model.layers[1].output)
np.testing.assert_allclose(sizes.predict(big, verbose=0), small, atol=1e-5)
