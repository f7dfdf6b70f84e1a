"""Weights left to several optimizers train as Keras's do."""

from __future__ import annotations

import os

import numpy as np
import pytest

import memcfg as mc

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
keras = pytest.importorskip("keras", reason="needs Keras: tox run -e parity")

pytestmark = [
    pytest.mark.parity,
    pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning"),
]


def trained(nn, first):
    optimizers = nn.optimizers
    schedule = optimizers.schedules.ExponentialDecay(0.05, 2, 0.5)
    chosen = optimizers.OptimizerMap(
        optimizers.SGD(0.1, momentum=0.9, clipnorm=0.5),
        {
            "one/.*": optimizers.Adam(schedule),
            "two/bias": optimizers.AdamW(0.02, weight_decay=0.1),
        },
    )
    start = x = nn.Input((4,))
    for name, units in (("one", 5), ("two", 3), ("three", 2)):
        x = nn.layers.Dense(units, "tanh", name=name)(x)
    model = nn.Model(start, x)
    model.compile(optimizers.MultiOptimizer(chosen), "mse")
    model.set_weights(first)
    random = np.random.default_rng(1)
    x, y = (random.normal(size=(40, n)).astype(np.float32) for n in (4, 2))
    model.fit(x, y, batch_size=8, epochs=2, shuffle=False, verbose=0)
    return model.get_weights()


def test_training():
    random = np.random.default_rng(0)
    shapes = [(4, 5), (5,), (5, 3), (3,), (3, 2), (2,)]
    first = [random.normal(size=shape).astype(np.float32) for shape in shapes]
    one, other = (trained(nn, first) for nn in (keras, mc.nn))
    for a, b, c in zip(one, other, first, strict=True):
        np.testing.assert_allclose(b, a, rtol=2e-4, atol=2e-5)
        assert np.abs(b - c).max() > 1e-3
