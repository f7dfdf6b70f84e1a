import os
import tempfile

import keras
import numpy as np

keras.utils.set_random_seed(0)
x = np.random.default_rng(0).normal(size=(120, 4))
y = x.sum(axis=1) > 0
model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1, "sigmoid")])
model.compile(keras.optimizers.Adam(0.05), "binary_crossentropy", metrics=["accuracy"])
with tempfile.TemporaryDirectory() as folder:
    best = os.path.join(folder, "best.keras")
    each = os.path.join(folder, "{epoch:02d}.weights.h5")
    checkpoints = [
        keras.callbacks.ModelCheckpoint(best, monitor="val_loss", save_best_only=True),
        keras.callbacks.ModelCheckpoint(each, save_weights_only=True),
    ]
    history = model.fit(
        x, y, epochs=4, validation_split=0.2, callbacks=checkpoints, verbose=0
    )
    last = model.predict(x, verbose=0)
    model.load_weights(os.path.join(folder, "01.weights.h5"))
    assert not np.allclose(model.predict(x, verbose=0), last)
    model.load_weights(os.path.join(folder, "04.weights.h5"))
    np.testing.assert_allclose(model.predict(x, verbose=0), last, rtol=1e-5)
    loaded = keras.models.load_model(best)
    loss, _ = loaded.evaluate(x[96:], y[96:], verbose=0)
np.testing.assert_allclose(loss, min(history.history["val_loss"]), rtol=1e-3)
