"""What interrupts a call leaves a model whole, and no lock held.

It comes from a signal's handler, whenever that runs, or from a trace function at a
bytecode of the package: also at many where CPython runs no handlers.
"""

from __future__ import annotations

import gc
import random
import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from calls import traced

import memcfg as mc

nn = mc.nn
PACKAGE = str(Path(mc.__file__).parent)
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
    compiled(model, mode, nn.Adam(0.01))
    return model


def compiled(model, mode, optimizer):
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


def used_elsewhere(model):
    """The weights, after another thread has used the model."""
    with ThreadPoolExecutor(1) as pool:
        pool.submit(model.predict_on_batch, X).result(60)
        return pool.submit(weights, model).result(60)


def check(model, steps):
    """Any thread can use the model, whose weights are those of its steps."""
    assert used_elsewhere(model) == steps[model.optimizer.iterations]


@pytest.fixture(scope="module")
def steps():
    return Steps()


def fit(model, mode):
    model.fit(X, Y, batch_size=8, epochs=2, shuffle=False, verbose=0)


def close(model, mode):
    model.close()


def compile_again(model, mode):
    compiled(model, mode, model.optimizer)


USES = [fit, close, compile_again]

# An interrupt may also come amid the callback of a weak reference, which swallows it.
swallows = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")


def bytecodes(call, last=None):
    """Call, with an interrupt at the last of so many bytecodes; how many there were."""
    count = 0

    def trace(frame, event, argument):
        nonlocal count
        if not frame.f_code.co_filename.startswith(PACKAGE):
            return None
        frame.f_trace_opcodes = True
        if event == "opcode":
            count += 1
            if count == last:
                raise Stop
        return trace

    try:
        with traced(trace):
            call()
    except Stop:
        pass
    return count


def signalled(call, delay):
    """Call, and be sent a signal whose handler raises after so many seconds."""

    def handler(number, frame):
        raise Stop

    before = signal.signal(signal.SIGALRM, handler)
    try:
        try:
            signal.setitimer(signal.ITIMER_REAL, delay)
            call()
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
    except Stop:
        pass
    finally:
        signal.signal(signal.SIGALRM, before)


class Meddling(nn.SGD):
    """Does something amid a step, as a signal's handler could."""

    meddle = None

    @property
    def learning_rate(self):
        if self.meddle is not None:
            self.meddle()
        return super().learning_rate

    @learning_rate.setter
    def learning_rate(self, value):
        nn.SGD.learning_rate.fset(self, value)


@pytest.mark.strength(1)
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(
    "use",
    [
        lambda model: model.predict_on_batch(X),
        lambda model: model.predict_on_batch(X[:3]),
        lambda model: model.train_on_batch(X, Y),
        lambda model: model.fit(X, Y, verbose=0),
        lambda model: model.memory_report(verify=True),
        lambda model: model.plan(3),
        lambda model: model.close(),
        lambda model: compiled(model, "enabled", nn.SGD()),
    ],
)
def test_what_would_overwrite_a_step_is_refused_amid_it(mode, use):
    model, other = build(mode), build(mode)
    optimizer = Meddling(0.1)
    for made, how in (model, optimizer), (other, nn.SGD(0.1)):
        compiled(made, mode, how)
        made.train_on_batch(X, Y)
    said = []

    def meddle():
        try:
            use(model)
        except RuntimeError as error:
            said.append(str(error))

    optimizer.meddle = meddle
    model.train_on_batch(X, Y)
    optimizer.meddle = None
    other.train_on_batch(X, Y)
    assert len(said) == 1
    assert "in the middle of a step" in said[0]
    assert used_elsewhere(model) == weights(other)
    use(model) if mode == "enabled" else model.close()


@swallows
@pytest.mark.strength(1)
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("use", USES)
def test_a_bytecode(mode, use, steps, tenths):
    model, drawn = build(mode), random.Random(0)
    fit(model, mode)
    count = bytecodes(lambda: use(model, mode))
    for _ in range(10 * tenths):
        model.train_on_batch(X, Y)
        bytecodes(lambda: use(model, mode), drawn.randint(1, count))
        check(model, steps)
    fit(model, mode)
    check(model, steps)
    model.close()
    gc.collect()  # a close that was interrupted is in a cycle with its frames
    assert mc.config.get_memory_info("CPU:0")["current"] == 0


@swallows
@pytest.mark.parametrize("mode", MODES)
def test_a_bytecode_of_the_first_fit(mode, steps, tenths):
    drawn = random.Random(0)
    count = bytecodes(lambda: fit(build(mode), mode))
    for _ in range(5 * tenths):
        model, last = build(mode), drawn.randint(1, count)
        bytecodes(lambda model=model: fit(model, mode), last)
        check(model, steps)
        fit(model, mode)
        check(model, steps)
        model.close()


@swallows
def test_a_bytecode_of_the_first_fit_after_a_close_in_a_budget(steps, tenths):
    """While values move from the pool into the arena, one by one."""
    drawn, count = random.Random(0), None
    steps[6 * -(-len(X) // 8)]  # of three fits: what is known is outside of the budget
    with mc.budget("1MiB"):
        for number in range(12 * tenths):
            model = build()
            fit(model, "enabled")
            model.close()
            last = None if count is None else drawn.randint(1, count)
            found = bytecodes(lambda model=model: fit(model, "enabled"), last)
            count = found if number == 0 else count
            check(model, steps)
            fit(model, "enabled")
            check(model, steps)
            model.close()
    del model
    gc.collect()
    nn.set_random_seed(3)  # the state of the last one is in the pool


@swallows
@pytest.mark.parametrize("mode", MODES)
def test_a_bytecode_of_compile_with_another_optimizer(mode, tenths):
    def found(last):
        """Weights behind a step and `compile`, which of them it was, and one more."""
        model, other = build(mode), nn.SGD(0.1, momentum=0.9)
        model.train_on_batch(X, Y)
        bytecodes(lambda: compiled(model, mode, other), last)
        before, kept = used_elsewhere(model), model.optimizer is not other
        model.train_on_batch(X, Y)
        after = used_elsewhere(model)
        model.close()
        return before, kept, after

    count = bytecodes(lambda: compiled(build(mode), mode, nn.SGD()))
    either = found(None), found(1)
    assert [kept for _, kept, _ in either] == [False, True]
    drawn = random.Random(0)
    for _ in range(5 * tenths):
        assert found(drawn.randint(1, count)) in either


@swallows
@pytest.mark.strength(1)
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("use", USES)
def test_a_signal(mode, use, steps, tenths):
    model, drawn = build(mode), random.Random(0)
    fit(model, mode)
    begin = time.perf_counter()
    use(model, mode)
    longest = time.perf_counter() - begin
    for _ in range(10 * tenths):
        model.train_on_batch(X, Y)
        signalled(lambda: use(model, mode), drawn.uniform(1e-6, longest))
        check(model, steps)
    fit(model, mode)
    check(model, steps)


@swallows
@pytest.mark.parametrize("mode", MODES)
def test_a_signal_amid_the_first_fit(mode, steps, tenths):
    drawn = random.Random(0)
    begin = time.perf_counter()
    fit(build(mode), mode)
    longest = time.perf_counter() - begin
    for _ in range(5 * tenths):
        model, delay = build(mode), drawn.uniform(1e-6, longest)
        signalled(lambda model=model: fit(model, mode), delay)
        check(model, steps)
        fit(model, mode)
        check(model, steps)


@swallows
@pytest.mark.strength(1)
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("kind", SIGNALS)
def test_signals_of_all_kinds(mode, kind, steps):
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
def test_a_step_whose_end_is_interrupted_twice(mode, runs):
    """What it left open, in the main thread, is ended by whoever comes next."""

    def interrupted(name):
        raise Stop

    model, expected = build(mode), build(mode)
    large = X.repeat(1 << 9, 0), Y.repeat(1 << 9)  # read where it lies, if it can be
    for each in (model, expected):
        each.train_on_batch(X, Y)
    expected.train_on_batch(*large)
    expected.train_on_batch(X, Y)
    runs.ended = interrupted
    with pytest.raises(Stop):
        model.train_on_batch(*large)
    del runs.ended
    with ThreadPoolExecutor(1) as pool:
        pool.submit(model.train_on_batch, X, Y).result(60)
    assert used_elsewhere(model) == weights(expected)
    assert model.optimizer.iterations == 3
    expected.close()
    model.close()
    assert mc.config.get_memory_info("CPU:0")["current"] == 0
