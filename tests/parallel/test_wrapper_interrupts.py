"""Ctrl-C while workers of one process train: no wait, and weights of a whole step."""

from __future__ import annotations

import faulthandler
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

STEPS, LONGEST = 4, 120.0  # seconds, until a fit counts as hanging
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
def ends_if_it_hangs():
    """End the tests, and show what each thread waits for, before workers give up."""
    faulthandler.dump_traceback_later(LONGEST, exit=True)
    try:
        yield
    finally:
        faulthandler.cancel_dump_traceback_later()


@contextmanager
def traced(function):
    before = sys.gettrace()
    sys.settrace(function)
    try:
        yield
    finally:
        sys.settrace(before)


def interrupted(wanted, shard, interrupt):
    """Interrupt the second fit; it ends between two steps, and goes on.

    Return whether the interrupt came.
    """
    model = dense()
    options = {"training_mode": "all_reduce", "shard": shard, "timeout": 2 * LONGEST}
    with ParallelWrapper(model, 3, **options) as wrapper:
        wrapper.fit(X, Y, **FIT)
        came = True
        with ends_if_it_hangs(), suppress(KeyboardInterrupt), interrupt():
            wrapper.fit(X, Y, **FIT)
            came = False
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


@pytest.fixture(scope="module")
def averaged():
    """The weights behind two fits of two workers that average once in each."""
    model = dense()
    with ParallelWrapper(model, 2, averaging_frequency=STEPS) as wrapper:
        for _ in range(2):
            wrapper.fit(X, Y, **FIT)
    found = bits(model)
    model.close()
    return found


@pytest.mark.parametrize("step", [7, pytest.param(1, marks=pytest.mark.slow)])
def test_an_average_goes_on_with_the_same_bits_behind_any_line(step, averaged):
    line, seen, came = 1, 0, True
    while came:
        model = dense()
        with ParallelWrapper(model, 2, averaging_frequency=STEPS) as wrapper:
            wrapper.fit(X, Y, **FIT)
            ends = Ends(line, ("/memcfg/parallel/_weighted_mean.py",))
            with suppress(KeyboardInterrupt), traced(ends):
                wrapper.fit(X, Y, **FIT)
                came = False
            if int(model.optimizer.iterations) == 2 * STEPS:  # not before the steps
                assert bits(model) == averaged, line
                seen += came
        model.close()
        line += step
    assert seen > 90 // step


@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize("writes", [False, True])
def test_an_average_goes_on_where_a_worker_failed(rank, writes, averaged, monkeypatch):
    values = 12  # weights and moments
    for number in (1, 4, 8, values):
        model = dense()
        with ParallelWrapper(model, 2, averaging_frequency=STEPS) as wrapper:
            wrapper.fit(X, Y, **FIT)
            session, calls = wrapper._members.all[rank].session, []
            write_own, last = session.write_own, number + rank * values  # their copies

            def fails(name, value, calls=calls, last=last, write_own=write_own):
                calls.append(name)
                if len(calls) != last:
                    return write_own(name, value)
                if writes:
                    write_own(name, value)
                raise KeyboardInterrupt

            monkeypatch.setattr(session, "write_own", fails)
            with pytest.raises(KeyboardInterrupt):
                wrapper.fit(X, Y, **FIT)
            monkeypatch.undo()
            assert len(calls) > last
            assert bits(model) == averaged, number
        model.close()
