"""A signal whose handler raises leaves a model whole, and no lock held."""

from __future__ import annotations

import signal
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

import memcfg as mc
from memcfg.runtime import Executor

nn = mc.nn
MODES = ["enabled", "none", "single", "separate"]
SIGNALS = [signal.SIGINT, signal.SIGTERM, signal.SIGALRM]
X = np.random.default_rng(0).standard_normal((8, 6)).astype(np.float32)
Y = np.arange(8) % 3


class Stop(BaseException):
    """What interrupts."""


def build(mode="enabled"):
    nn.set_random_seed(3)
    layers = [nn.Input((6,)), nn.Dense(8, activation="relu"), nn.Dropout(0.2)]
    model = nn.Sequential([*layers, nn.BatchNormalization(), nn.Dense(3)])
    compiled(model, mode)
    return model


def compiled(model, mode="enabled"):
    optimizer = model._setup.optimizer if model._setup else nn.Adam(0.01)
    model.compile(
        optimizer,
        nn.SparseCategoricalCrossentropy(from_logits=True),
        training_workspace_mode=mode,
        inference_workspace_mode=mode,
    )


def weights(model):
    return [weight.tobytes() for weight in model.get_weights()]


class Steps:
    """The weights behind each number of uninterrupted steps."""

    def __init__(self):
        self._model = build()
        self._found = [weights(self._model)]  # by number

    def __getitem__(self, number):
        while len(self._found) <= number:
            self._model.train_on_batch(X, Y)
            self._found.append(weights(self._model))
        self._model.close()
        return self._found[number]


def check(model, steps):
    """Any thread can use the model, whose weights are those of its steps."""
    with ThreadPoolExecutor(1) as pool:
        found = pool.submit(weights, model).result(60)
        pool.submit(model.predict_on_batch, X).result(60)
    assert found == steps[model.optimizer.iterations]


@pytest.fixture(scope="module")
def steps():
    return Steps()


# A handler may also run amid the callback of a weak reference, which swallows it.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("kind", SIGNALS)
def test_signals_that_raise(mode, kind, steps):
    """Sent by a timer, whenever it is: weights and steps belong together."""

    def handler(number, frame):
        raise Stop

    model, before = build(mode), signal.signal(kind, handler)
    model.train_on_batch(X, Y)
    came = 0
    try:
        for place in range(30):
            timer = threading.Timer(place * 2e-4, signal.raise_signal, [kind])
            try:
                timer.start()
                for _ in range(20):
                    model.train_on_batch(X, Y)
                timer.join()
            except Stop:
                came += 1
            timer.join()
            check(model, steps)
    finally:
        signal.signal(kind, before)
    assert came
    model.close()


@pytest.mark.parametrize("mode", MODES)
def test_a_step_whose_end_is_interrupted_twice(mode, steps, monkeypatch):
    """What it left open, in the main thread, is ended by whoever comes next."""

    def finish(self, program):
        raise Stop

    model = build(mode)
    model.train_on_batch(X, Y)
    with monkeypatch.context() as patch:
        patch.setattr(Executor, "finish", finish)
        with pytest.raises(Stop):
            model.train_on_batch(X, Y)
    with ThreadPoolExecutor(1) as pool:
        pool.submit(model.train_on_batch, X, Y).result(60)
    check(model, steps)
    model.close()
    assert mc.config.get_memory_info("CPU:0")["current"] == 0
