"""Stop early, keep the best model in a file, and go on after a crash."""

import tempfile
from pathlib import Path

import numpy as np

from memcfg import nn as keras


class Crash(keras.callbacks.Callback):
    """Ends the process' training, as a power cut would."""

    def on_epoch_end(self, epoch, logs=None):
        if epoch == 4:
            raise KeyboardInterrupt


def build():
    keras.utils.set_random_seed(1)
    model = keras.models.Sequential(
        [
            keras.layers.Input((16,)),
            keras.layers.Dense(32, activation="gelu"),
            keras.layers.Dropout(0.1),
            keras.layers.Dense(3),
        ]
    )
    model.compile(
        optimizer=keras.optimizers.AdamW(0.01),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )
    return model


def train(model, folder, *more):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(512, 16)).astype(np.float32)
    y = x[:, :3].argmax(axis=1)
    callbacks = [
        keras.callbacks.BackupAndRestore(folder / "backup"),
        keras.callbacks.EarlyStopping(patience=5, restore_best_weights=True),
        keras.callbacks.ReduceLROnPlateau(patience=2, factor=0.5),
        keras.callbacks.ModelCheckpoint(folder / "best.memcfg", save_best_only=True),
        keras.callbacks.CSVLogger(folder / "log.csv", append=True),
        *more,
    ]
    return model.fit(
        *(x, y),
        epochs=12,
        validation_split=0.25,
        seed=0,
        verbose=0,
        callbacks=callbacks,
    )


with tempfile.TemporaryDirectory() as name:
    folder = Path(name)
    try:
        train(build(), folder, Crash())
    except KeyboardInterrupt:
        print("crashed in epoch 5")
    history = train(build(), folder)
    print(f"went on with epoch {history.epoch[0] + 1}, ended with {len(history.epoch)}")
    best = keras.models.load_model(folder / "best.memcfg")
    print(f"the best model has {best.count_params()} parameters")
    print(f"{len((folder / 'log.csv').read_text().splitlines())} lines in log.csv")
