"""Let another terminal watch the memory of a training, with `memcfg top`."""

import os
import subprocess
import sys
import tempfile

import numpy as np

from memcfg import config
from memcfg import nn as keras

# Reports are in a folder of the session; here, in one of this example.
session = tempfile.TemporaryDirectory()
os.environ["XDG_RUNTIME_DIR"] = session.name

config.set_memory_limit("CPU:0", "8MiB")
config.set_live_report(True)  # MEMCFG_LIVE_REPORT=1 does the same
model = keras.Sequential(
    [
        keras.Input((256,)),
        keras.layers.Dense(512, activation="relu"),
        keras.layers.Dense(10),
    ]
)
model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True))


class Watch(keras.callbacks.Callback):
    """At the end, look from outside, as a second terminal would."""

    def on_train_end(self, logs=None):
        config.set_live_report(False)  # the next report is of this moment
        config.set_live_report(True)
        command = [sys.executable, "-m", "memcfg", "top", str(os.getpid())]
        shown = subprocess.run(command, capture_output=True, text=True, check=True)
        print(shown.stdout)


x = np.random.default_rng(0).random((2000, 256), "float32")
model.fit(x, np.arange(2000) % 10, epochs=2, verbose=0, callbacks=[Watch()])
config.set_live_report(False)
session.cleanup()
