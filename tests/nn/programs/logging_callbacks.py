import csv
import tempfile
from pathlib import Path

import keras
import numpy as np


class Counter(keras.callbacks.Callback):
    def on_train_begin(self, logs=None):
        self.batches, self.losses = 0, []

    def on_train_batch_end(self, batch, logs=None):
        self.batches += 1

    def on_epoch_end(self, epoch, logs=None):
        self.losses.append(logs["loss"])
        if epoch == 4:
            self.model.stop_training = True


x = np.random.default_rng(0).normal(size=(96, 3))
model = keras.Sequential([keras.layers.Dense(1)])
model.compile("sgd", "mse", metrics=["mae"])
counter, begun = Counter(), []
with tempfile.TemporaryDirectory() as folder:
    log = Path(folder, "log.csv")
    history = model.fit(
        x,
        x[:, 0],
        epochs=9,
        verbose=0,
        callbacks=[
            counter,
            keras.callbacks.CSVLogger(str(log)),
            keras.callbacks.ProgbarLogger(),
            keras.callbacks.LambdaCallback(
                on_epoch_begin=lambda e, logs: begun.append(e)
            ),
        ],
    )
    rows = list(csv.DictReader(log.read_text().splitlines()))
assert isinstance(history, keras.callbacks.History)
assert counter.batches == 15
assert begun == history.epoch == [0, 1, 2, 3, 4]
assert counter.losses == history.history["loss"]
assert [float(row["mae"]) for row in rows] == history.history["mae"]
