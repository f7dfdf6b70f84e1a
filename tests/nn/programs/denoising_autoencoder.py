import keras
import numpy as np

keras.utils.set_random_seed(0)
x = np.random.default_rng(0).random((64, 8, 8, 1)).astype("float32")
noisy = np.clip(x + 0.2 * np.random.default_rng(1).normal(size=x.shape), 0, 1)
model = keras.Sequential(
    [
        keras.Input((8, 8, 1)),
        keras.layers.Conv2D(8, 3, strides=2, padding="same", activation="relu"),
        keras.layers.Conv2DTranspose(
            8, 3, strides=2, padding="same", activation="relu"
        ),
        keras.layers.Conv2D(1, 3, padding="same", activation="sigmoid"),
    ]
)
model.compile("adam", "mse", metrics=["mae"])
history = model.fit(noisy, x, epochs=3, verbose=0, validation_split=0.25).history
assert {"loss", "mae", "val_loss", "val_mae"} == set(history)
