"""Train with a batch that is 16 times too large for the limit.

It runs in micro-batches whose gradients are accumulated, so the update is that of the
whole batch. What fits is known before anything runs.
"""

import warnings

import numpy as np
from sklearn.datasets import load_digits

from memcfg import config
from memcfg import nn as keras
from memcfg.errors import FallbackWarning

x, y = load_digits(return_X_y=True)  # 1797 images of 8 x 8
x = (x.reshape(-1, 8, 8, 1) / 16).astype("float32")


def network():
    keras.utils.set_random_seed(0)
    layers = [
        keras.layers.Conv2D(24, 3, padding="same", activation="relu") for _ in range(4)
    ]
    model = keras.Sequential(
        [
            keras.Input((8, 8, 1)),
            *layers,
            keras.layers.Flatten(),
            keras.layers.Dropout(0.3, seed=1),
            keras.layers.Dense(10),
        ]
    )
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer="adam", loss=loss, metrics=["accuracy"])
    return model


def train(model, limit):
    config.set_memory_limit("CPU:0", limit)
    config.reset_memory_stats("CPU:0")
    options = {"batch_size": 1024, "epochs": 12, "shuffle": False, "verbose": 0}
    history = model.fit(x[:1400], y[:1400], **options)
    accuracy = model.evaluate(x[1400:], y[1400:], verbose=0)[1]
    peak = config.get_memory_info("CPU:0")["peak"]
    print(f"limit {limit}: peak {peak / 2**20:.2f} MiB, accuracy {accuracy:.3f}")
    for step in history.fallbacks:
        print(f"  {step}")
    weights = model.get_weights()
    model.close()
    return weights


model = network()
print(model.estimate(1024, "2MiB"))
print("Largest batch within 2 MiB:", model.largest_batch("2MiB"))
print("to predict:", model.largest_batch("2MiB", program="predict"))

whole = train(model, "64MiB")
with warnings.catch_warnings():
    warnings.simplefilter("ignore", FallbackWarning)  # history has them, too
    parts = train(network(), "2MiB")
apart = max(np.abs(a - b).max() for a, b in zip(whole, parts, strict=True))
print(f"The weights differ by {apart:.1e} at most.")
