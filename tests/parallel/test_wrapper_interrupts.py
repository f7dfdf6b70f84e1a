"""Ctrl-C while workers of one process train: no wait, and weights of a whole step."""

from __future__ import annotations

import random
import signal
import sys
import threading
import time
from contextlib import contextmanager, suppress
from functools import partial

import numpy as np
import pytest
from interrupted_lines import Ends

from memcfg import nn
from memcfg.parallel import ParallelWrapper

STEPS, LONGEST = 4, 10.0  # seconds; half of what workers wait for each other
RNG = np.random.default_rng(7)
X = RNG.standard_normal((16 * STEPS, 12)).astype(np.float32)
Y = RNG.integers(0, 4, len(X))
FIT = {"batch_size": 16, "shuffle": False, "verbose": 0}


def dense():
    nn.utils.set_random_seed(3)
    layers = [nn.Input((12,)), nn.Dense(16, activation="tanh"), nn.Dense(4)]
    model = nn.Sequential(layers)
    loss = nn.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(nn.optimizers.Adam(0.01), loss)
    return model


def bits(model):
    return b"".join(each.tobytes() for each in model.get_weights())


def trained_once_more(model, wrapper, first):
    """The number of steps that were taken, and the weights when all are."""
    taken = int(model.optimizer.iterations) - first
    before = bits(model)
    if taken < STEPS:
        wrapper.fit(X[16 * taken :], Y[16 * taken :], **FIT)
    return taken, before, bits(model)


@pytest.fixture(scope="module")
def wanted():
    """The weights behind each step of two fits, of three workers."""
    model, found = dense(), []

    class Notes(nn.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            found.append(bits(self.model))

    with ParallelWrapper(model, 3, training_mode="all_reduce") as wrapper:
        found.append(bits(model))
        for _ in range(2):
            wrapper.fit(X, Y, callbacks=[Notes()], **FIT)
    model.close()
    return found


@contextmanager
def traced(function):
    before = sys.gettrace()
    sys.settrace(function)
    try:
        yield
    finally:
        sys.settrace(before)


def interrupted(wanted, shard, interrupt):
    """Interrupt the second fit; it ends soon, between two steps, and goes on.

    Return whether the interrupt came.
    """
    model = dense()
    options = {"training_mode": "all_reduce", "shard": shard, "timeout": 2 * LONGEST}
    with ParallelWrapper(model, 3, **options) as wrapper:
        wrapper.fit(X, Y, **FIT)
        came, began = True, time.monotonic()
        with suppress(KeyboardInterrupt), interrupt():
            wrapper.fit(X, Y, **FIT)
            came = False
        assert time.monotonic() - began < LONGEST
        taken, before, after = trained_once_more(model, wrapper, STEPS)
        assert before == wanted[STEPS + taken]
        assert after == wanted[2 * STEPS]
    names = [each.name for each in threading.enumerate()]
    assert not any("memcfg worker" in each for each in names)
    model.close()
    return came


@pytest.mark.parametrize("shard", [None, "parameters"])
@pytest.mark.parametrize(
    "seed", [1, *(pytest.param(n, marks=pytest.mark.slow) for n in range(2, 31))]
)
def test_a_signal_at_any_instant(seed, shard, wanted):
    delay = random.Random(seed).uniform(0, 0.02)

    @contextmanager
    def soon():
        here = threading.get_ident()
        timer = threading.Timer(delay, signal.pthread_kill, (here, signal.SIGINT))
        timer.start()
        try:
            yield
        finally:
            with suppress(KeyboardInterrupt):
                timer.join()
                time.sleep(0)

    interrupted(wanted, shard, soon)


@pytest.mark.parametrize("step", [23, pytest.param(1, marks=pytest.mark.slow)])
def test_an_interrupt_behind_any_line_of_a_call(step, wanted):
    """Also before all workers have begun: none then waits for the others."""
    line = 1
    files = ("/memcfg/parallel/_members.py",)
    while interrupted(wanted, None, partial(traced, Ends(line, files))):
        line += step
    assert line > 200


@pytest.mark.parametrize("step", [41, pytest.param(1, marks=pytest.mark.slow)])
def test_averaging_goes_on_behind_any_line(step):
    """Also where it is interrupted before the first step, or in an average."""
    line, came = 1, True
    while came:
        model = dense()
        with ParallelWrapper(model, 3) as wrapper:
            wrapper.fit(X, Y, **FIT)
            ends = Ends(line, ("/memcfg/parallel/_members.py",))
            with suppress(KeyboardInterrupt), traced(ends):
                wrapper.fit(X, Y, **FIT)
                came = False
            taken = int(model.optimizer.iterations)
            loss = wrapper.fit(X, Y, **FIT).history["loss"]
            assert np.isfinite(loss).all()
            assert int(model.optimizer.iterations) == taken + STEPS
        model.close()
        line += step
    assert line > 200


def test_an_average_that_was_interrupted_is_made_again(monkeypatch):
    model, twin = dense(), dense()
    with ParallelWrapper(twin, 2, averaging_frequency=STEPS) as wrapper:
        for _ in range(2):
            wrapper.fit(X, Y, **FIT)
    with ParallelWrapper(model, 2, averaging_frequency=STEPS) as wrapper:
        wrapper.fit(X, Y, **FIT)
        session, calls = wrapper._members.lead.session, []
        names = session.lasting_names

        def interrupts(**options):
            calls.append(options)
            if len(calls) == 2:  # the first is of a copy for the other worker
                raise KeyboardInterrupt
            return names(**options)

        monkeypatch.setattr(session, "lasting_names", interrupts)
        with pytest.raises(KeyboardInterrupt):
            wrapper.fit(X, Y, **FIT)
        assert len(calls) == 3
        assert bits(model) == bits(twin)
    model.close()
    twin.close()
