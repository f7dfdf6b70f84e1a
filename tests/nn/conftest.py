"""Small models and data that the tests of this room share."""

from __future__ import annotations

import faulthandler
import gc
import sys

import numpy as np
import pytest
from calls import data_threads, eventually
from runs import Runs

import memcfg as mc


@pytest.fixture(autouse=True)
def _seeded():
    mc.nn.set_random_seed(1234)


@pytest.fixture(autouse=True)
def _brief_refusals():
    """Give refusals almost no time to search for alternatives; see test_ways_out."""
    mc.config.set_alternatives_seconds(0.05)


@pytest.fixture
def loss():
    return mc.nn.SparseCategoricalCrossentropy(from_logits=True)


@pytest.fixture
def images():
    """Return 40 images of 8 x 8 x 3 and labels of 5 classes."""
    generator = np.random.default_rng(5)
    x = generator.standard_normal((40, 8, 8, 3)).astype(np.float32)
    return x, generator.integers(0, 5, 40)


@pytest.fixture
def rows():
    """Return 30 rows of 6 numbers and labels of 4 classes."""
    generator = np.random.default_rng(6)
    x = generator.standard_normal((30, 6)).astype(np.float32)
    return x, generator.integers(0, 4, 30)


@pytest.fixture
def dense(loss):
    """Return a function that makes a compiled two-layer model of `rows`."""

    def make(optimizer="sgd", **options):
        model = mc.nn.Sequential(
            [mc.nn.Input((6,)), mc.nn.Dense(7, activation="relu"), mc.nn.Dense(4)]
        )
        model.compile(optimizer, loss, **options)
        return model

    return make


@pytest.fixture
def no_threads():
    """End a test that hangs, and fail one that leaves a thread or a batch behind."""
    faulthandler.dump_traceback_later(300, exit=True, file=sys.__stderr__)
    yield
    gc.collect()
    eventually(lambda: not data_threads(), 10)
    faulthandler.cancel_dump_traceback_later()
    assert data_threads() == []


@pytest.fixture
def runs(monkeypatch):
    """Note what is loaded, bound, copied and run."""
    return Runs(monkeypatch)
