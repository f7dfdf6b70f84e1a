import contextlib
import os
import tempfile

import keras
import numpy as np


class Interrupt(keras.callbacks.Callback):
    def on_epoch_begin(self, epoch, logs=None):
        if epoch == 3:
            raise RuntimeError("the power is out")


def build():
    keras.utils.set_random_seed(0)
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
    model.compile(keras.optimizers.Adam(0.05), "mse")
    return model


x = np.random.default_rng(0).normal(size=(64, 3))
y = x.sum(axis=1)
whole = build().fit(x, y, epochs=6, shuffle=False, verbose=0).history["loss"]
with tempfile.TemporaryDirectory() as folder:
    backup = keras.callbacks.BackupAndRestore(os.path.join(folder, "backup"))
    interrupted = build()
    with contextlib.suppress(RuntimeError):
        interrupted.fit(
            x, y, epochs=6, shuffle=False, verbose=0, callbacks=[backup, Interrupt()]
        )
    assert interrupted.optimizer.iterations == 6
    backup = keras.callbacks.BackupAndRestore(os.path.join(folder, "backup"))
    history = build().fit(x, y, epochs=6, shuffle=False, verbose=0, callbacks=[backup])
assert history.epoch == [3, 4, 5]
np.testing.assert_allclose(history.history["loss"], whole[3:], rtol=1e-3)
