"""Defects of DL4J's iterators that are not to be inherited, by their numbers there."""

from __future__ import annotations

import threading

import numpy as np
import pytest
from calls import SOON, Call, data_threads, eventually

import memcfg as mc
from memcfg import memory, nn
from memcfg.data import AsyncDataSetIterator, DataSet
from memcfg.errors import NonFiniteLossError

KINDS = [ValueError, MemoryError, RecursionError, KeyboardInterrupt, SystemExit]


class Source:
    """Makes batches that a small model reads; the one numbered `at` fails once."""

    def __init__(self, n=6, *, at=None, error=None, wait=None):
        self.n, self.at, self.error, self.wait = n, at, error, wait
        self.inside = threading.Event()

    def __iter__(self):
        for number in range(self.n):
            if number == self.at:
                self.inside.set()
                assert self.wait is None or self.wait.wait(SOON)
                error, self.error = self.error, None
                if error is not None:
                    raise error
            yield DataSet(np.full((4, 3), number, "f4"), np.full(4, number % 2))


def sequential():
    return compiled(nn.Sequential([nn.Input((3,)), nn.Dense(2)]))


def functional():
    x = nn.Input((3,))
    return compiled(nn.Model(x, nn.Dense(2)(x)))


def compiled(model):
    loss = nn.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer="sgd", loss=loss)
    return model


MODELS = pytest.mark.parametrize("model", [sequential, functional])


def numbers(iterator) -> list[int]:
    return [int(batch.features[0, 0]) for batch in iterator]


@pytest.mark.parametrize("kind", KINDS)
def test_1_a_consumer_that_waits_hears_of_an_error(kind, pool):
    """DL4J's thread ends without a word, and who waits for it waits for ever."""
    wait, error = threading.Event(), kind("told")
    source = Source(at=2, error=error, wait=wait)
    with AsyncDataSetIterator(source, 2, resource=pool) as iterator:
        assert [int(next(iterator).labels[0]) for _ in range(2)] == [0, 1]
        waiting, asking = Call(iterator.next), Call(iterator.has_next)
        assert source.inside.wait(SOON)
        assert waiting.waits
        wait.set()
        with pytest.raises(kind) as caught:
            waiting.result()
        assert caught.value is error
        asking.result()
        error.__traceback__ = None


def test_2_a_reset_forgets_the_error(pool):
    """In DL4J an iterator is dead after one failure."""
    source = Source(at=3, error=OSError("told"))
    with AsyncDataSetIterator(source, 8, resource=pool) as iterator:
        with pytest.raises(OSError, match="told"):
            numbers(iterator)
        iterator.reset()
        assert numbers(iterator) == list(range(6))


def test_2_good_batches_are_not_dropped_with_the_error(pool):
    """In DL4J those that wait in the queue are lost."""
    source = Source(at=5, error=OSError("told"))
    with AsyncDataSetIterator(source, 8, resource=pool) as iterator:
        assert source.inside.wait(SOON)
        assert eventually(lambda: not data_threads())  # it has failed by now
        found = [int(next(iterator).features[0, 0]) for _ in range(5)]
        assert found == list(range(5))
        with pytest.raises(OSError, match="told"):
            next(iterator)


def test_3_next_needs_no_question_before_it(pool):
    """DL4J's `next()` gives null where `hasNext()` was not called."""
    with AsyncDataSetIterator(Source(), 2, resource=pool) as iterator:
        for number in range(6):
            batch = iterator.next()
            assert (batch.features == number).all()
        with pytest.raises(StopIteration):
            iterator.next()


@pytest.mark.parametrize("asked", [1, 3])
def test_3_a_question_takes_nothing(asked, pool):
    with AsyncDataSetIterator(Source(), 2, resource=pool) as iterator:
        found = []
        while all(iterator.has_next() for _ in range(asked)):
            found.append(int(iterator.next().labels[0]))
        assert found == [number % 2 for number in range(6)]


@MODELS
def test_4_all_models_read_two_batches_ahead(model, monkeypatch):
    """DL4J's two classes of networks meant to and differ by a typing error."""
    sizes = []

    make = AsyncDataSetIterator.__init__

    def noting(self, base, buffer_size, **others):
        sizes.append(buffer_size)
        make(self, base, buffer_size, **others)

    monkeypatch.setattr(AsyncDataSetIterator, "__init__", noting)
    model().fit(Source(), verbose=0)
    assert sizes == [2]


@MODELS
@pytest.mark.parametrize("kind", [OSError, KeyboardInterrupt])
def test_5_a_fit_whose_data_fails_leaves_no_thread(model, kind):
    """DL4J's `fit` leaks the thread and its workspace."""
    error = kind("told")
    fitted = model()
    with pytest.raises(kind) as caught:
        fitted.fit(Source(at=3, error=error), verbose=0)
    assert caught.value is error
    assert data_threads() == []
    error.__traceback__ = None
    fitted.fit(Source(), verbose=0)


@MODELS
def test_5_a_fit_that_fails_leaves_no_thread(model):
    class Broken(Source):
        def __iter__(self):
            for batch in super().__iter__():
                batch.features[:] = np.inf
                yield batch

    fitted = model()
    with pytest.raises(NonFiniteLossError):
        fitted.fit(Broken(100), verbose=0)
    assert data_threads() == []
    fitted.fit(Source(), verbose=0)


@MODELS
def test_5_an_evaluation_that_fails_leaves_no_thread(model):
    fitted = model()
    with pytest.raises(OSError, match="told"):
        fitted.evaluate(Source(at=2, error=OSError("told")), verbose=0)
    assert data_threads() == []


def test_5_a_consumer_that_fails_leaves_no_thread():
    """DL4J shuts its iterator down behind the loop only, not where the loop raises."""
    pool = memory.Pool()

    def consume():
        with AsyncDataSetIterator(Source(100), 2, resource=pool) as iterator:
            return [1 // (3 - count) for count, _ in enumerate(iterator)]

    with pytest.raises(ZeroDivisionError):
        consume()
    assert data_threads() == []
    assert pool.owners() == {}


def test_12_a_batch_that_the_ring_has_gone_past_is_not_overwritten(pool):
    """ND4J never checks what is in a ring, so stale batches are read in silence."""
    source = Source(60)
    with AsyncDataSetIterator(source, 2, resource=pool) as iterator:
        kept = {}
        for number, batch in enumerate(iterator):
            if number % 9 == 4:
                kept[number] = batch
            for before, each in kept.items():
                assert (each.features == before).all()
                assert mc.workspaces.is_valid(each.features)
    for number, batch in kept.items():
        assert (batch.features == number).all()
        assert mc.workspaces.is_valid(batch.features)
    kept.clear()
    del batch, each
