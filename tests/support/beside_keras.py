"""Models made twice, here and by Keras 3 on PyTorch, and trained alike."""

from __future__ import annotations

import os
from types import SimpleNamespace

import numpy as np
import pytest

import memcfg as mc

os.environ.setdefault("KERAS_BACKEND", "torch")
keras = pytest.importorskip("keras", reason="needs Keras: tox run -e parity")

MARKS = [
    pytest.mark.parity,
    pytest.mark.filterwarnings("ignore"),
    pytest.mark.skipif(keras.backend.backend() != "torch", reason="not on PyTorch"),
]
OURS = SimpleNamespace(
    layers=mc.nn.layers,
    Model=mc.nn.Model,
    Input=mc.nn.Input,
    optimizers=mc.nn,
    losses=mc.nn,
)
BATCH = 4


def check(make, x, steps=10, batch_size=BATCH):
    """`make(k)` gives a model's output of an input; a head is put on it."""
    rng = np.random.default_rng(7)
    both = []
    for k in (OURS, keras):
        inputs, y = make(k)
        flat = k.layers.Flatten()(y)
        both.append(k.Model(inputs, k.layers.Dense(3, name="head")(flat)))
    weights = [
        rng.normal(size=w.shape, scale=0.4).astype(np.float32)
        for w in both[1].get_weights()
    ]
    labels = rng.integers(0, 3, len(x))
    outputs = []
    for each in both:
        each.set_weights(weights)
        outputs.append(each.predict(x, batch_size=batch_size, verbose=0))
    np.testing.assert_allclose(*outputs, rtol=1e-4, atol=1e-5)
    for each, k in zip(both, (OURS, keras), strict=True):
        loss = k.losses.SparseCategoricalCrossentropy(from_logits=True)
        each.compile(k.optimizers.SGD(0.1), loss)
        for _ in range(steps):
            each.train_on_batch(x, labels)
    for ours, theirs in zip(*(each.get_weights() for each in both), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-5)
    both[0].close()


def sequences(shape, masked):
    rng = np.random.default_rng(3)
    x = rng.normal(size=(BATCH, *shape)).astype(np.float32)
    if masked:
        x[rng.random(x.shape[:2]) < 0.4] = 0
    return x
