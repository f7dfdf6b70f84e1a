import tempfile

import keras
import numpy as np

with tempfile.TemporaryDirectory() as folder:
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    model.compile("adam", "mse")
    x = np.random.default_rng(0).normal(size=(32, 2))
    stop = keras.callbacks.EarlyStopping(
        monitor="val_loss", patience=2, restore_best_weights=True
    )
    history = model.fit(
        x, x[:, 0], epochs=5, validation_split=0.5, verbose=0, callbacks=[stop]
    )
    assert "val_loss" in history.history
