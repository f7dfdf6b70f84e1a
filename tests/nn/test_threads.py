"""One model in several threads: steps follow one another, none gets lost or mixed."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

import memcfg as mc
from memcfg.data import DataSet, DataSetIterator, ExistingDataSetIterator

nn = mc.nn
EPOCHS = 12


def build(loss):
    nn.set_random_seed(3)
    layers = [nn.Input((6,)), nn.Dense(32, activation="relu")]
    layers += [nn.Dropout(0.2), nn.Dense(4)]
    model = nn.Sequential(layers)
    model.compile(nn.SGD(0.05, momentum=0.9), loss, metrics=["accuracy"])
    return model


def fit(model, rows):
    return model.fit(*rows, batch_size=8, epochs=EPOCHS, verbose=0, seed=1).history


def trained_alone(loss, rows):
    """Train without a second thread: numbers, weights, predictions at each step."""
    model = build(loss)
    numbers = fit(model, rows)
    weights = model.get_weights()
    again = build(loss)
    seen = [again.predict_on_batch(rows[0])]
    generator = np.random.default_rng(1)
    for _ in range(EPOCHS):
        order = generator.permutation(30)
        for start in range(0, 30, 8):
            batch = order[start : start + 8]
            again.train_on_batch(rows[0][batch], rows[1][batch])
            seen.append(again.predict_on_batch(rows[0]))
    assert_same(weights, again.get_weights())
    return numbers, weights, {prediction.tobytes() for prediction in seen}


def assert_same(first, second):
    for one, other in zip(first, second, strict=True):
        assert np.array_equal(one, other)


class Batches(DataSetIterator):
    """The batches of `fit`, in its order; a function is called before each."""

    async_supported = False
    reset_supported = True

    def __init__(self, rows, before):
        self._rows = rows
        self._before = before
        self._generator = np.random.default_rng(1)
        self.reset()

    def reset(self):
        order = self._generator.permutation(30)
        self._left = [order[start : start + 8] for start in range(0, 30, 8)]

    def has_next(self):
        return bool(self._left)

    def next(self):
        self._before()
        batch = self._left.pop(0)
        return DataSet(*(part[batch] for part in self._rows))


class Here(ExistingDataSetIterator):
    """Batches that no thread reads ahead."""

    async_supported = False


class Meanwhile:
    """Call a function in a second thread, again and again, until the block ends.

    Between two batches the first thread waits until a call has ended; the next call
    runs beside the batch.
    """

    def __init__(self, call):
        self.results = []
        self._call = call
        self._end = False
        self._pool = ThreadPoolExecutor(1)

    def __enter__(self):
        self._future = self._pool.submit(self._loop)
        return self

    def __exit__(self, *exception):
        self._end = True
        self._future.result(60)
        self._pool.shutdown()

    def _loop(self):
        while not self._end:
            self.results.append(self._call())

    def fit(self, model, rows):
        data = Batches(rows, self._wait)
        return model.fit(data, epochs=EPOCHS, verbose=0).history

    def _wait(self):
        seen = len(self.results)
        while len(self.results) == seen and not self._future.done():
            time.sleep(0)


def test_predictions_during_fit_are_those_of_a_moment_between_two_steps(loss, rows):
    numbers, weights, predictions = trained_alone(loss, rows)
    model = build(loss)
    with Meanwhile(lambda: model.predict_on_batch(rows[0])) as other:
        assert other.fit(model, rows) == numbers
    assert_same(model.get_weights(), weights)
    found = {prediction.tobytes() for prediction in other.results}
    assert found <= predictions
    assert len(found) > EPOCHS  # of four times as many moments


@pytest.mark.parametrize(
    "use",
    [
        lambda model, rows: model.evaluate(*rows, batch_size=7, verbose=0),
        lambda model, rows: model.predict(rows[0], batch_size=11, verbose=0),
        lambda model, rows: model.test_on_batch(rows[0][:5], rows[1][:5]),
        lambda model, rows: model.set_weights(model.get_weights()),
        lambda model, rows: model.memory_report(verify=True),
        lambda model, rows: model.plan(5),
        lambda model, rows: model.close(),
    ],
    ids=["evaluate", "predict", "test", "get_weights", "report", "plan", "close"],
)
def test_what_other_threads_do_leaves_training_as_it_was(loss, rows, use, request):
    numbers, weights, _ = trained_alone(loss, rows)
    model = build(loss)
    model.predict(rows[0][:1], verbose=0)
    if request.node.callspec.id == "get_weights":  # read and written, not at once

        def call():
            with model._lock.turn():
                use(model, rows)
    else:

        def call():
            use(model, rows)

    with Meanwhile(call) as other:
        assert other.fit(model, rows) == numbers
    assert_same(model.get_weights(), weights)


class Inside(nn.SGD):
    """An optimizer that stops inside `fit` until the test has done what it wants."""

    _go_on = None

    def __init__(self):
        super().__init__(0.05, momentum=0.9)
        self._reached = threading.Event()
        self._go_on = threading.Event()

    @property
    def learning_rate(self):
        if self._go_on is not None and self.iterations == 2:
            self._reached.set()
            assert self._go_on.wait(60)
        return super().learning_rate

    @learning_rate.setter
    def learning_rate(self, value):
        nn.SGD.learning_rate.fset(self, value)


@pytest.fixture
def in_fit(loss, rows):
    """Give a model that another thread is training, and the weights it must reach."""
    weights = trained_alone(loss, rows)[1]
    model, optimizer = build(loss), Inside()
    model.compile(optimizer, loss, metrics=["accuracy"])
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(fit, model, rows)
        assert optimizer._reached.wait(60)
        try:
            yield model, optimizer, running
        finally:
            optimizer._go_on.set()
        running.result(60)
    assert_same(model.get_weights(), weights)
    model.close()


def error_of(call, model, optimizer):
    """Return what `call` raises that begins while `fit` is inside a step."""
    with ThreadPoolExecutor(1) as pool:
        second = pool.submit(call)
        while not model._lock.waiting:
            assert not second.done()
        optimizer._go_on.set()
        return second.exception(60)


def test_a_fit_that_another_thread_forestalls_reads_nothing(loss, rows):
    """Also a loss of one's own, which reads the first batch of an iterator early."""

    def own(y_true, y_pred):
        return nn.ops.mean(nn.ops.square(y_pred - y_true), axis=-1)

    class Waits(nn.callbacks.Callback):
        def on_epoch_begin(self, epoch, logs=None):
            began.set()
            assert go_on.wait(60)

    class Forestalling(list):
        """Callbacks: when they are looked at, another thread begins to train."""

        def __iter__(self):
            options = {"callbacks": [Waits()], "verbose": 0}
            running.append(pool.submit(model.fit, rows[0], targets, **options))
            assert began.wait(60)
            return super().__iter__()

    began, go_on, running = threading.Event(), threading.Event(), []
    model, targets = build(loss), np.zeros((30, 4), np.float32)
    model.compile("sgd", own)
    batches = iter([(rows[0], targets)])
    with ThreadPoolExecutor(1) as pool:
        try:
            with pytest.raises(RuntimeError, match="trained in another thread"):
                model.fit(batches, verbose=0, callbacks=Forestalling())
        finally:
            go_on.set()
        running[0].result(60)
    assert len(list(batches)) == 1
    model.close()


def test_a_second_fit_is_refused(in_fit, rows):
    model, optimizer, running = in_fit
    with pytest.raises(RuntimeError, match="being trained in another thread"):
        fit(model, rows)
    assert not running.done()  # it was refused amid a step of the first
    optimizer._go_on.set()
    assert running.result(60) is model.history.history


def test_a_model_cannot_be_compiled_during_fit(in_fit, loss):
    model, optimizer, _ = in_fit
    error = error_of(lambda: model.compile("adam", loss), model, optimizer)
    assert isinstance(error, RuntimeError)
    assert "being trained in another thread" in str(error)
    assert model.optimizer is optimizer


def test_a_model_is_not_renamed_during_fit(in_fit):
    model, optimizer, _ = in_fit
    before = model.name

    def rename():
        model.name = "renamed"

    error = error_of(rename, model, optimizer)
    assert isinstance(error, RuntimeError)
    assert "being trained in another thread" in str(error)
    assert model.name == before


def test_many_fits_at_once(loss, rows):
    """One trains; those that come meanwhile are refused and change nothing."""
    model = build(loss)
    barrier = threading.Barrier(4)

    def attempt(_):
        barrier.wait(60)
        try:
            return fit(model, rows)
        except RuntimeError as error:
            return str(error)

    with ThreadPoolExecutor(4) as pool:
        results = list(pool.map(attempt, range(4)))
    refused = [result for result in results if isinstance(result, str)]
    assert all("being trained in another thread" in words for words in refused)
    expected = build(loss)
    for _ in range(4 - len(refused)):  # one, unless a thread came late
        fit(expected, rows)
    assert_same(model.get_weights(), expected.get_weights())


def test_a_prediction_ends_when_the_model_is_compiled_again(loss, rows):
    x, _ = rows
    model = build(loss)
    held = []

    def generate():
        yield x[:8]
        held.append(mc.config.get_memory_info("CPU:0")["current"])
        model.compile("adam", loss)
        held.append(mc.config.get_memory_info("CPU:0")["current"])
        yield x[8:16]

    with pytest.raises(RuntimeError, match="compiled, built or changed meanwhile"):
        model.predict(Here(generate()), verbose=0)
    assert held[0] > held[1] == 0


def test_threads_that_come_first_together_build_once(loss, rows):
    x, _ = rows
    nn.set_random_seed(3)
    expected = nn.Sequential([nn.Dense(4)]).predict(x, verbose=0)
    nn.set_random_seed(3)
    model = nn.Sequential([nn.Dense(4)])
    barrier = threading.Barrier(4)

    def first(_):
        barrier.wait(60)
        return model.predict(x, verbose=0)

    with ThreadPoolExecutor(4) as pool:
        for found in pool.map(first, range(4)):
            assert np.array_equal(found, expected)


def test_two_models_in_two_threads(loss, rows):
    weights = trained_alone(loss, rows)[1]
    models = [build(loss), build(loss)]
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(lambda model: fit(model, rows), models))
    for model in models:
        assert_same(model.get_weights(), weights)
