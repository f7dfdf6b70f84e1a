import glob
import os
import tempfile

import keras
import numpy as np

keras.utils.set_random_seed(0)
x = np.random.default_rng(0).normal(size=(40, 3))
model = keras.Sequential([keras.layers.Dense(2, activation="sigmoid")])
model.compile("adam", "binary_crossentropy")
with tempfile.TemporaryDirectory() as folder:
    model.fit(
        x,
        x[:, :2] > 0,
        epochs=2,
        validation_split=0.25,
        callbacks=[keras.callbacks.TensorBoard(log_dir=folder)],
        verbose=0,
    )
    for run in ("train", "validation"):
        files = glob.glob(os.path.join(folder, run, "events.out.tfevents.*"))
        assert sum(map(os.path.getsize, files)) > 100, run
