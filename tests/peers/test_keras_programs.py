"""The programs of `tests/nn/programs` are valid Keras: it runs them as they are."""

from __future__ import annotations

import os

import pytest
from keras_programs import FILES, PROGRAMS, run

os.environ.setdefault("KERAS_BACKEND", "torch")
keras = pytest.importorskip("keras", reason="needs Keras: tox run -e parity")

pytestmark = [
    pytest.mark.parity,
    pytest.mark.filterwarnings("ignore"),
    pytest.mark.skipif(keras.backend.backend() != "torch", reason="not on PyTorch"),
]


@pytest.fixture(autouse=True)
def seeds_of_keras(monkeypatch):
    """Leave TensorFlow's seed alone: other tests compare what follows from none."""
    try:
        import tensorflow as tf
    except ImportError:
        return
    monkeypatch.setattr(tf.random, "set_seed", lambda _: None)


# A tenth of them. A release runs all; tests/nn runs all without Keras.
GATE = {"digits_mlp", "subclassed_model", "transformer", "imbalanced_focal", "gan"}
NAMES = [*PROGRAMS, *FILES]
assert set(NAMES) > GATE


@pytest.mark.parametrize(
    "name",
    [pytest.param(n, marks=[pytest.mark.slow] * (n not in GATE)) for n in NAMES],
)
def test_program(name):
    run(name)
