"""The way of a batch to its kernels: few calls of Python a step."""

from __future__ import annotations

import gc
import sys

import numpy as np
import pytest
from placed import placed

import memcfg as mc

nn = mc.nn

pytestmark = [
    pytest.mark.skipif(sys.getprofile() is not None, reason="profiled already"),
    pytest.mark.usefixtures("native_kernels"),  # NumPy's are functions of Python
]


def calls(function):
    """Count the calls of functions of Python, but those of a collection of garbage."""
    count = 0

    def profile(frame, event, argument):
        nonlocal count
        count += event == "call"

    gc.collect()
    gc.disable()
    sys.setprofile(profile)
    try:
        function()
    finally:
        sys.setprofile(None)
        gc.enable()
    return count


def made(width):
    model = nn.Sequential([nn.Input((width,)), nn.Dense(10)])
    loss = nn.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(nn.Adam(), loss, metrics=["accuracy"])
    x = placed(np.ones((32 * 40, width), np.float32))
    return model, x, np.arange(len(x)) % 10


def a_step(use, x, y):
    """Calls that each of 20 more batches takes, once all is loaded."""
    counts = []
    for batches in (40, 40, 20):
        rows = 32 * batches
        counts.append(calls(lambda rows=rows: use(x[:rows], y[:rows])))
    return (counts[1] - counts[2]) / 20


@pytest.mark.parametrize("width", [64, 1024])  # copied, and read where it lies
@pytest.mark.parametrize("shuffle", [True, False])
def test_of_fit_at_most_thirteen(width, shuffle):
    model, x, y = made(width)
    assert a_step(lambda x, y: model.fit(x, y, verbose=0, shuffle=shuffle), x, y) <= 13


@pytest.mark.parametrize("width", [64, 1024])
def test_of_evaluate_and_predict(width):
    model, x, y = made(width)
    assert a_step(lambda x, y: model.evaluate(x, y, verbose=0), x, y) <= 13
    assert a_step(lambda x, y: model.predict(x, verbose=0), x, y) <= 15


@pytest.mark.parametrize("width", [64, 1024])
def test_of_a_batch_of_its_callers(width):
    model, x, y = made(width)
    for use in (model.train_on_batch, model.test_on_batch):
        for _ in range(3):
            use(x[:32], y[:32])
        assert calls(lambda use=use: use(x[:32], y[:32])) <= 50
