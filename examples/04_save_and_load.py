"""Save weights, load them elsewhere, and be told when they do not belong."""

import tempfile
from pathlib import Path

import numpy as np
from sklearn.datasets import load_digits

import memcfg as mc

nn = mc.nn


def make(hidden):
    return nn.Sequential(
        [
            nn.Input((64,)),
            nn.Dense(hidden, activation="relu", kernel_initializer="he_normal"),
            nn.Dense(10),
        ]
    )


digits = load_digits()
x, y = (digits.data / 16).astype(np.float32), digits.target

nn.set_random_seed(0)
model = make(64)
model.compile(
    "adam", nn.SparseCategoricalCrossentropy(from_logits=True), metrics=["accuracy"]
)
model.fit(x, y, batch_size=64, epochs=10, validation_split=0.2, seed=0)

with tempfile.TemporaryDirectory() as folder:
    path = Path(folder) / "digits.safetensors"
    model.save_weights(path)
    print(f"{path.name}: {path.stat().st_size:,} bytes")

    fresh = make(64)
    fresh.load_weights(path)
    logits = fresh.predict(x)
    assert np.array_equal(logits, model.predict(x))
    print(f"accuracy of the loaded model: {np.mean(logits.argmax(1) == y):.3f}")

    try:
        make(32).load_weights(path)
    except mc.errors.WeightsError as error:
        print(f"refused: {error}")

kernel, bias, *_ = model.get_weights()  # in Keras's order and layouts
assert kernel.shape == (64, 64)
assert bias.shape == (64,)
