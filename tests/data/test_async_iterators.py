"""Iterators that a thread reads ahead of: DL4J's behaviours, A1 to A15, and ours."""

from __future__ import annotations

import copy
import gc
import os
import pickle
import signal
import threading
import time
import warnings
from contextlib import suppress

import numpy as np
import pytest
from calls import SOON, Call, data_threads, eventually, settle
from hypothesis import given
from hypothesis import strategies as st

import memcfg as mc
from memcfg import memory, nn
from memcfg.data import (
    AsyncDataSetIterator,
    AsyncMultiDataSetIterator,
    DataSet,
    DataSetIterator,
    InterleavedDataSetCallback,
    ListDataSetIterator,
    MultiDataSet,
)

BOTH = pytest.mark.parametrize(
    "kind", [AsyncDataSetIterator, AsyncMultiDataSetIterator]
)


class Base(DataSetIterator):
    """Makes small data sets, each full of its number, and notes what is asked of it."""

    batch = 3

    def __init__(self, n=10, *, seconds=0.0, until=None, at=None, error=None):
        self.n, self.seconds = n, seconds
        self.until, self.at, self.error = until, at, error
        self.index, self.resets, self.closes = 0, 0, 0
        self.inside = threading.Event()

    def has_next(self):
        return self.index < self.n

    def next(self):
        if self.index == self.at:
            self.inside.set()
            assert self.until is None or self.until.wait(SOON)
            if self.error is not None:
                raise self.error
        if self.seconds:
            self.inside.set()
            time.sleep(self.seconds)
        self.index += 1
        return DataSet(np.full((3, 2), self.index - 1.0), np.full(3, self.index - 1))

    def reset(self):
        self.index = 0
        self.resets += 1

    def close(self):
        self.closes += 1


class Base32(Base):
    """The same as a model reads it."""

    def next(self):
        data = super().next()
        return DataSet(data.features.astype("f4"), data.labels % 2)


def number(data) -> int:
    """The number that a data set is full of."""
    found = int(data.labels[0])
    assert (data.features == found).all()
    assert (data.labels == found).all()
    return found


def numbers(iterator) -> list[int]:
    return [number(data) for data in iterator]


# DL4J's behaviours, under their numbers in its tests.


def test_batches_lie_in_a_ring_of_each_resource_in_turn():
    """Each has its part of the four batches that wait, and two blocks more."""
    pools = [memory.Pool(limit="1MiB") for _ in range(2)]
    block = 256  # bytes of a batch
    with AsyncDataSetIterator(Base(100), 4, resource=pools) as iterator:
        for number, batch in enumerate(iterator):
            assert (batch.features == number).all()
            del batch
            if number > 6:
                held = [pool.stats().current_bytes for pool in pools]
                assert held == 2 * [(4 // 2 + 2) * block]
            if number > 50:
                break
    assert [pool.stats().current_bytes for pool in pools] == [0, 0]
    with pytest.raises(ValueError, match="resource is empty"):
        AsyncDataSetIterator(Base(3), resource=[])


@BOTH
@pytest.mark.parametrize("buffer_size", range(2, 9))
def test_a1_all_items_come(kind, buffer_size, pool):
    for _ in range(10):
        with kind(Base(100), buffer_size, resource=pool) as iterator:
            count = 0
            while iterator.has_next():
                assert number(iterator.next()) == count
                count += 1
            assert count == 100
            assert not iterator.has_next()


@BOTH
def test_a2_a_reset_half_way(kind, pool):
    base = Base(100)
    with kind(base, 8, resource=pool) as iterator:
        count = 0
        while iterator.has_next():
            iterator.next()
            time.sleep(0.001)
            count += 1
            if count == 50:
                iterator.reset()
        assert count == 150
    assert base.resets == 1


@BOTH
def test_a3_a_slow_consumer(kind, pool):
    with kind(Base(100), 8, resource=pool) as iterator:
        count = 0
        for data in iterator:
            time.sleep(0.002)
            assert number(data) == count
            count += 1
        assert count == 100


@BOTH
def test_a4_an_error_of_the_base(kind, pool):
    """It comes as it was raised, and behind the items before it."""
    error = IndexError("thrown at 100")
    iterator = kind(Base(200, at=100, error=error), 8, resource=pool)
    got = []

    def consume():
        while iterator.has_next():
            got.append(number(iterator.next()))
            time.sleep(0.0005)

    with pytest.raises(IndexError) as caught:
        Call(consume).result()
    assert caught.value is error
    assert got == list(range(100))
    iterator.close()


class Series(DataSetIterator):
    """Time series of any length: item k has means k, k+¼, k+½ and k+¾."""

    def __init__(self, n, batch, values, lengths, seed=42, several=False):
        self.n, self.batch, self.values = n, batch, values
        self.least, self.most = lengths
        self.random = np.random.default_rng(seed)
        self.several = several
        self.index = 0

    def has_next(self):
        return self.index < self.n

    def next(self):
        k, self.index = self.index, self.index + 1
        length = self.least
        if k > 0:
            length = int(self.random.integers(self.least, self.most))
        arrays = [
            np.full((self.batch, self.values, length), float(k)),
            np.full((self.batch, self.values, length), k + 0.25),
            np.full((self.batch, length), k + 0.5),
            np.full((self.batch, length), k + 0.75),
        ]
        if self.several:
            return MultiDataSet(*([array] for array in arrays))
        return DataSet(*arrays)

    def reset(self):
        self.index = 0


def check_series(data, k):
    arrays = data._arrays
    assert len(arrays) == 4
    for array, more in zip(arrays, (0, 0.25, 0.5, 0.75), strict=True):
        assert array.mean() == pytest.approx(k + more, abs=1e-10)


@pytest.mark.parametrize("several", [False, True])
def test_a5_series_of_any_length(pool, several):
    kind = AsyncMultiDataSetIterator if several else AsyncDataSetIterator
    base = Series(100, 8, 16, (10, 100), several=several)
    with kind(base, 2, resource=pool) as iterator:
        for _ in range(10):
            k = 0
            while iterator.has_next():
                check_series(iterator.next(), k)
                k += 1
            assert k == 100
            iterator.reset()


def test_a5_a_new_iterator_each_time_after_a_stray_question(pool):
    base = Series(100, 8, 16, (10, 100), several=True)
    for _ in range(5):
        iterator = AsyncMultiDataSetIterator(base, 2, resource=pool)
        assert iterator.has_next()
        for k, data in enumerate(iterator):
            check_series(data, k)
        assert k == 99
        iterator.close()
        base.reset()
        del data


def test_a6_batches_dealt_out_to_devices(cpu, pool):
    limit = mc.config.LogicalDeviceConfiguration(memory_limit=256)
    mc.config.set_logical_device_configuration(cpu, [limit] * 2)
    callback = InterleavedDataSetCallback(4)
    base = Series(12, 32, 128, (10, 100))
    with AsyncDataSetIterator(base, 2, callback=callback, resource=pool) as iterator:
        for _ in range(5):
            for k, data in enumerate(iterator):
                assert mc.workspace_of(data.features).name == f"IDSC-{k % 2}"
                detached = data.detach()
                assert not mc.is_attached(detached.features)
                check_series(detached, k)
            assert k == 11
            iterator.reset()
        del data
    for name in ("CPU:0", "CPU:1"):
        assert mc.config.get_memory_info(name)["current"] == 0
        assert mc.config.get_memory_info(name)["peak"] > 0


@pytest.mark.parametrize("buffer_size", [1, 5, 100])
@pytest.mark.parametrize("seconds", [0, 0.005, 0.05])
def test_a7_in_order_at_any_pace(buffer_size, seconds, pool):
    with AsyncDataSetIterator(
        Base(13, seconds=seconds), buffer_size, resource=pool
    ) as iterator:
        count = 0
        while iterator.has_next():
            assert number(iterator.next()) == count
            count += 1
        assert count == 13
        assert not iterator.has_next()
        iterator.reset()
        assert iterator.has_next()
        assert number(iterator.next()) == 0


def test_a8_a_base_that_is_at_its_end_stays_there_until_a_reset(pool):
    """Making one asks the base nothing, and does not restart it."""
    base = Base(15)
    assert numbers(base) == list(range(15))
    with AsyncDataSetIterator(base, 8, resource=pool) as iterator:
        assert not iterator.has_next()
        with pytest.raises(StopIteration):
            iterator.next()
        assert base.resets == 0
        iterator.reset()
        assert numbers(iterator) == list(range(15))
    assert base.resets == 1


@pytest.mark.parametrize("seconds", [0.1])
def test_a9_a_reset_while_the_base_is_in_next(seconds, pool):
    base = Base(6, seconds=seconds)
    with AsyncDataSetIterator(base, 8, resource=pool) as iterator:
        assert base.inside.wait(SOON)
        iterator.reset()
        assert numbers(iterator) == list(range(6))
        assert not iterator.has_next()


def test_a9_a_reset_while_the_queue_is_full(pool):
    base = Base(6)
    with AsyncDataSetIterator(base, 2, resource=pool) as iterator:
        assert eventually(lambda: base.index == 2)
        iterator.reset()
        assert numbers(iterator) == list(range(6))
        assert not iterator.has_next()


# A10 to A12 need no thread: see test_iterators.py. A13 and A14: see test_shields.py.


@BOTH
@pytest.mark.parametrize("taken", [0, 1, 5, 10, 11])
def test_a15_after_a_close_thread_and_ring_are_gone(kind, taken):
    pool = memory.Pool()
    base = Base(10)
    iterator = kind(base, 3, resource=pool)
    for _ in range(taken):
        with suppress(StopIteration):
            iterator.next()
    for _ in range(3):
        iterator.close()
    assert data_threads() == []
    assert pool.owners() == {}
    for use in (
        iterator.next,
        iterator.has_next,
        iterator.reset,
        lambda: list(iterator),
    ):
        with pytest.raises(RuntimeError, match=f"this {kind.__name__} is closed"):
            use()
    with pytest.raises(RuntimeError, match="is closed"):
        iterator.reset_supported  # noqa: B018
    assert not hasattr(iterator, "batch")
    assert iterator.async_supported is False
    assert base.closes == 0


def test_a15_a_fit_that_fails_shuts_it_down(pool):
    """The one that `fit` makes; one that is given to it stays the user's."""
    model = nn.Sequential([nn.Input((2,)), nn.Dense(2)])
    loss = nn.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer="sgd", loss=loss)
    error = OSError("told")
    with pytest.raises(OSError, match="told"):
        model.fit(Base32(10, at=5, error=error), verbose=0)
    assert data_threads() == []
    iterator = AsyncDataSetIterator(Base32(10, at=5, error=error), resource=pool)
    with pytest.raises(OSError, match="told"):
        model.fit(iterator, verbose=0)
    iterator.close()
    assert data_threads() == []
    error.__traceback__ = None


# What DL4J has no test of.


@pytest.mark.parametrize(
    "items",
    [
        [DataSet([1.0]), MultiDataSet([[1.0]])],
        [(np.ones(3), np.zeros(3)), {"x": np.ones(2)}],
        [1, "two", 3.0, object()],
        [[np.ones(2)], np.float32(3)],
        [False, 0, "", (), []],
    ],
)
@pytest.mark.parametrize("workspace", [True, False])
def test_items_of_any_kind_are_handed_on_as_they_are(items, workspace, pool):
    with AsyncDataSetIterator(items, 2, workspace, resource=pool) as iterator:
        assert all(a is b for a, b in zip(iterator, items, strict=True))


def test_none_is_an_error_behind_the_items(pool):
    with AsyncDataSetIterator([1, 2, None, 3], resource=pool) as iterator:
        assert [iterator.next(), iterator.next()] == [1, 2]
        with pytest.raises(TypeError, match="batch 2 is None, which is not a batch"):
            iterator.next()
        assert not iterator.has_next()


@given(
    st.integers(0, 12),
    st.integers(1, 4),
    st.lists(st.sampled_from(["has_next", "next", "python", "reset"]), max_size=30),
)
def test_any_order_of_calls_gives_each_item_once(n, buffer_size, calls):
    pool = memory.Pool()
    with AsyncDataSetIterator(Base(n), buffer_size, resource=pool) as iterator:
        index = 0
        for call in calls:
            if call == "has_next":
                assert iterator.has_next() == (index < n)
            elif call == "reset":
                iterator.reset()
                index = 0
            elif index < n:
                data = next(iterator) if call == "python" else iterator.next()
                assert number(data) == index
                index += 1
                del data
            else:
                with pytest.raises(StopIteration):
                    next(iterator)
    assert pool.owners() == {}


@pytest.mark.parametrize("buffer_size", [1, 2, 5])
def test_the_buffer_is_as_large_as_was_said(buffer_size, pool):
    """DL4J makes two of one."""
    base = Base(100)
    with AsyncDataSetIterator(base, buffer_size, resource=pool) as iterator:
        for taken in range(10):
            assert eventually(lambda taken=taken: base.index == taken + buffer_size)
            time.sleep(0.002)
            assert base.index == taken + buffer_size
            iterator.next()


def test_the_thread_begins_at_once(pool):
    base = Base(10)
    with AsyncDataSetIterator(base, 2, resource=pool):
        assert data_threads() == ["memcfg-data-AsyncDataSetIterator"]
        assert eventually(lambda: base.index == 2)


def test_the_footprint_is_two_blocks_more_than_the_buffer(pool):
    for buffer_size in (1, 4):
        base = (np.empty(10_000, "u1") for _ in range(100))
        iterator = AsyncDataSetIterator(base, buffer_size, resource=pool)
        block = memory.Pool().stats().current_bytes + 10_048
        pool.reset_peak()
        for count, _ in enumerate(iterator):
            if count == 20:
                allocations = pool.stats().allocation_count
        assert pool.stats().allocation_count == allocations
        assert pool.stats().peak_bytes == (buffer_size + 3) * block  # and the first one
        iterator.close()
        del _


def test_batches_lie_in_the_ring_or_in_blocks_of_their_own(pool):
    for workspace in (True, False):
        source = (np.ones(100) for _ in range(10))
        with AsyncDataSetIterator(source, 2, workspace, resource=pool) as iterator:
            for array in iterator:
                assert mc.is_attached(array) == workspace
                if not workspace:
                    assert memory.owner_of(array) is pool
        del array


def test_memory_comes_from_the_device_that_is_current_when_it_is_made(cpu):
    limit = mc.config.LogicalDeviceConfiguration(memory_limit=16)
    mc.config.set_logical_device_configuration(cpu, [limit] * 2)
    with mc.device("CPU:1"):
        iterator = AsyncDataSetIterator((np.ones(1000) for _ in range(5)), 2)
    kept = list(iterator)
    assert mc.config.get_memory_info("CPU:0")["peak"] == 0
    assert mc.config.get_memory_info("CPU:1")["current"] >= 40_000
    iterator.close()
    kept.clear()
    assert mc.config.get_memory_info("CPU:1")["current"] == 0


def test_what_is_no_attribute_at_all():
    told = "neither the iterator nor .* has an attribute 'report'"
    with (
        AsyncDataSetIterator([1]) as iterator,
        pytest.raises(AttributeError, match=told),
    ):
        iterator.report()


def test_it_is_not_copied():
    with AsyncDataSetIterator([1, 2]) as iterator:
        for act in (copy.copy, copy.deepcopy, pickle.dumps):
            with pytest.raises(TypeError, match="make another one"):
                act(iterator)
        assert list(iterator) == [1, 2]


def test_other_attributes_are_the_bases(pool):
    class Labelled:
        labels = ("a", "b")

        def __iter__(self):
            return iter([1])

        def total_outcomes(self):
            return 2

    with AsyncDataSetIterator(Labelled(), resource=pool) as iterator:
        assert (iterator.labels, iterator.total_outcomes()) == (("a", "b"), 2)
        assert list(iterator) == [1]
        for missing in ("nothing", "_private", "__wrapped__"):
            with pytest.raises(AttributeError, match=missing):
                getattr(iterator, missing)
    with AsyncDataSetIterator(Base(1), resource=pool) as iterator:
        assert (iterator.batch, iterator.n) == (3, 1)


@pytest.mark.parametrize(
    ("arguments", "error", "words"),
    [
        (([1], 0), ValueError, "buffer_size is at least 1, not 0"),
        (([1], -1), ValueError, "buffer_size"),
        (([1], 1.5), TypeError, "buffer_size is an integer"),
        (([1], True), TypeError, "buffer_size"),
        (([1], 1, 1), TypeError, "workspace is True or False"),
        (([1], 1, None), TypeError, "workspace"),
        (
            ([1], 1, True, 5),
            TypeError,
            "callback must be a DataSetCallback or callable",
        ),
        ((None,), TypeError, "an iterable of batches is needed"),
        ((5,), TypeError, "an iterable"),
    ],
)
def test_wrong_arguments_are_refused_and_begin_no_thread(arguments, error, words):
    with pytest.raises(error, match=words):
        AsyncDataSetIterator(*arguments)
    assert data_threads() == []


def test_memory_that_is_none_is_refused():
    with pytest.raises(ValueError, match="a simulated device has none"):
        AsyncDataSetIterator([1], resource=memory.simulated("1GiB"))
    with pytest.raises(TypeError):
        AsyncDataSetIterator([1], resource=5)
    assert data_threads() == []


def test_what_must_not_be_read_ahead_is_refused(pool):
    class Live(Base):
        async_supported = False

    with pytest.raises(ValueError, match="must not be read ahead"):
        AsyncDataSetIterator(Live(), resource=pool)
    with (
        AsyncDataSetIterator([1], resource=pool) as inner,
        pytest.raises(ValueError, match="must not be read ahead"),
    ):
        AsyncDataSetIterator(inner, resource=pool)


def test_numpys_integers_are_numbers(pool):
    with AsyncDataSetIterator([1, 2], np.int64(1), resource=pool) as iterator:
        assert list(iterator) == [1, 2]


# Resets and closes.


def test_an_iterable_is_iterated_over_again(pool):
    begun = []

    class Source:
        def __iter__(self):
            begun.append(threading.current_thread().name)
            try:
                yield from range(3)
            finally:
                begun.append("end")

    with AsyncDataSetIterator(Source(), 1, resource=pool) as iterator:
        for _ in range(3):
            assert iterator.next() == 0
            iterator.reset()
        assert list(iterator) == [0, 1, 2]
    name = "memcfg-data-AsyncDataSetIterator"
    assert begun == [name, "end"] * 4


def test_a_generator_cannot_restart(pool):
    with AsyncDataSetIterator((n for n in range(3)), resource=pool) as iterator:
        assert not iterator.reset_supported
        assert iterator.next() == 0
        with pytest.raises(RuntimeError, match="cannot restart: give an iterable"):
            iterator.reset()
        assert list(iterator) == [1, 2]  # it goes on


def test_a_generator_that_was_given_is_not_closed(pool):
    source = (n for n in range(100))
    with AsyncDataSetIterator(source, 2, resource=pool) as iterator:
        assert iterator.next() == 0
    rest = list(source)
    assert rest[0] in (2, 3)
    assert rest[-1] == 99


def test_a_reset_that_fails_can_be_tried_again(pool):
    class Fragile(Base):
        fails = True

        def reset(self):
            if self.fails:
                raise OSError("no file")
            super().reset()

    base = Fragile(3)
    with AsyncDataSetIterator(base, resource=pool) as iterator:
        assert number(iterator.next()) == 0
        with pytest.raises(OSError, match="no file"):
            iterator.reset()
        for use in (iterator.next, iterator.has_next):
            with pytest.raises(RuntimeError, match=r"last reset failed: call reset"):
                use()
        base.fails = False
        iterator.reset()
        assert numbers(iterator) == [0, 1, 2]


def test_a_reset_waits_for_the_base_for_some_seconds_only(pool, monkeypatch):
    until = threading.Event()
    base = Base(5, at=2, until=until)
    iterator = AsyncDataSetIterator(base, resource=pool)
    stop = type(iterator._producer).stop
    monkeypatch.setattr(stop, "__kwdefaults__", {"timeout": 0.05})
    assert base.inside.wait(SOON)
    with (
        pytest.warns(RuntimeWarning, match=r"is still making an item after") as told,
        pytest.raises(RuntimeError, match="has not returned from `next`"),
    ):
        iterator.reset()
    assert len(told) == 1
    with pytest.raises(RuntimeError, match="last reset failed"):
        iterator.next()
    assert base.resets == 0
    until.set()
    assert eventually(lambda: not data_threads())
    iterator.reset()
    assert numbers(iterator) == list(range(5))
    iterator.close()


def test_a_close_waits_for_the_base_for_some_seconds_only(pool, monkeypatch):
    until = threading.Event()
    base = Base(5, at=2, until=until)
    iterator = AsyncDataSetIterator(base, resource=pool)
    stop = type(iterator._producer).stop
    monkeypatch.setattr(stop, "__kwdefaults__", {"timeout": 0.05})
    assert base.inside.wait(SOON)
    with pytest.warns(RuntimeWarning, match="its thread ends, and releases") as told:
        iterator.close()
    assert len(told) == 1
    iterator.close()
    until.set()
    assert eventually(lambda: not data_threads())
    assert eventually(lambda: pool.owners() == {})


def test_a_close_from_another_thread_ends_the_wait(pool):
    until = threading.Event()
    base = Base(5, at=0, until=until)
    iterator = AsyncDataSetIterator(base, resource=pool)
    waiting, asking = Call(iterator.next), Call(iterator.has_next)
    assert waiting.waits
    closing = Call(iterator.close)
    for each in (waiting, asking):
        with pytest.raises(RuntimeError, match="is closed"):
            each.result()
    until.set()
    closing.result()


def test_a_reset_from_another_thread_goes_on_with_the_new_pass(pool):
    until = threading.Event()
    base = Base(5, at=2, until=until)
    with AsyncDataSetIterator(base, 1, resource=pool) as iterator:
        assert [number(iterator.next()) for _ in range(2)] == [0, 1]
        waiting = Call(iterator.next)
        assert waiting.waits
        resetting = Call(iterator.reset)
        assert resetting.waits
        base.at = None
        until.set()
        resetting.result()
        assert number(waiting.result()) == 0
        assert numbers(iterator) == [1, 2, 3, 4]


def test_many_resets_leave_nothing(pool, tenths):
    with AsyncDataSetIterator(Base(5), 2, resource=pool) as iterator:
        for number in range(30 * tenths):
            if number % 3:
                iterator.next()
            iterator.reset()
        assert len(data_threads()) == 1
        assert numbers(iterator) == list(range(5))
    assert pool.stats().current_bytes == 0


def test_a_second_pass_fits_wherever_the_first_did():
    """The batch that the loop's variable holds from before is no reason to fail."""
    pool = memory.Pool(limit=5 * 8000)

    class Source:
        def __iter__(self):
            return (np.empty(1000) for _ in range(20))

    with AsyncDataSetIterator(Source(), 2, resource=pool) as iterator:
        for _ in range(5):
            for count, batch in enumerate(iterator):  # noqa: B007  held in a reset
                pass
            assert count == 19
            iterator.reset()
    del batch
    assert pool.owners() == {}


# Forgetting.


def test_one_in_a_cycle_ends_with_the_collection(pool):
    class Node:
        pass

    node = Node()
    node.node = node
    node.iterator = AsyncDataSetIterator(Base(10), 2, resource=pool)
    del node
    # A collection returns at once while another thread is in one.
    assert eventually(lambda: gc.collect() >= 0 and not data_threads())


# A ring that is of no use.


class Keeping(DataSetIterator):
    """Keeps every array that it ever made."""

    def __init__(self, n=100):
        self.n, self.kept, self.index = n, [], 0

    def has_next(self):
        return self.index < self.n

    def next(self):
        self.kept.append(np.full(1000, self.index, "i4"))
        self.index += 1
        return self.kept[-1]

    def reset(self):
        self.index = 0


def test_a_base_that_keeps_its_arrays_is_told_of_once(pool):
    base = Keeping()
    with AsyncDataSetIterator(base, 2, resource=pool) as iterator:
        with pytest.warns(RuntimeWarning, match="pass workspace=False") as told:
            assert all((array == k).all() for k, array in enumerate(iterator))
        assert len(told) == 1
        assert told[0].filename == __file__
        iterator.reset()
        assert len(list(iterator)) == 100
    assert all((a == k % 100).all() for k, a in enumerate(base.kept))
    base.kept.clear()


def test_without_a_ring_a_base_may_keep_its_arrays(pool):
    base = Keeping()
    with AsyncDataSetIterator(base, 2, workspace=False, resource=pool) as iterator:
        assert all((a == k).all() for k, a in enumerate(iterator))
    base.kept.clear()


def test_keeping_some_batches_is_nothing_to_be_told_of(pool):
    source = (np.full(1000, number, "i4") for number in range(200))
    with (
        AsyncDataSetIterator(source, 2, resource=pool) as iterator,
        warnings.catch_warnings(),
    ):
        warnings.simplefilter("error")
        kept = [array for count, array in enumerate(iterator) if count % 7 == 0]
    assert [int(array[0]) for array in kept] == list(range(0, 200, 7))
    kept.clear()


@given(
    st.lists(st.tuples(st.integers(0, 3000), st.integers(0, 9)), max_size=60),
    st.integers(1, 4),
    st.booleans(),
)
def test_no_batch_is_overwritten_whatever_its_size_and_life(steps, buffer_size, ring):
    """Each batch has a size, and a number of batches for which it is kept."""
    pool = memory.Pool()
    source = (np.full(size, n, "i4") for n, (size, _) in enumerate(steps))
    with AsyncDataSetIterator(source, buffer_size, ring, resource=pool) as iterator:
        alive = []
        for n, (size, cycles) in enumerate(steps):
            batch = iterator.next()
            assert batch.shape == (size,)
            alive.append((n + cycles, n, batch))
            assert all((each == made).all() for _, made, each in alive)
            alive = [entry for entry in alive if entry[0] > n]
        assert not iterator.has_next()
    assert all((each == made).all() for _, made, each in alive)
    alive.clear()
    batch = None
    assert settle(lambda: not pool.owners())


def test_a_base_may_reuse_one_array(pool):
    """An array that was made before lies outside of the ring, and is not watched."""
    array = np.zeros(100)

    def source():
        for value in range(50):
            array[:] = value
            yield array.copy()

    with AsyncDataSetIterator(source(), 2, resource=pool) as iterator:
        assert [int(each[0]) for each in iterator] == list(range(50))


# Consumers.


def test_an_iterator_may_go_from_thread_to_thread(pool):
    with AsyncDataSetIterator(Base(10), 2, resource=pool) as iterator:
        found = [number(Call(iterator.next).result()) for _ in range(10)]
    assert found == list(range(10))


def test_a_consumers_workspace_is_its_own(pool):
    """What the consumer makes between two batches lies where it says."""
    with (
        AsyncDataSetIterator(Base(20), 2, resource=pool) as iterator,
        mc.Workspace(None, "loop", resource=pool) as loop,
    ):
        for data in iterator:
            mine = data.features * 2
            assert mc.workspace_of(mine) is loop
            assert mc.workspace_of(data.features) is not loop
            assert (mine == 2 * data.features).all()
        del data, mine
    loop.destroy()


def test_a_base_may_have_workspaces_of_its_own(pool):
    def source():
        for value in range(20):
            with mc.workspace("inner", resource=pool) as inner:
                temporary = np.full(100, value)
                assert mc.workspace_of(temporary) is inner
                with mc.scope_out():
                    result = temporary.copy()
                del temporary
            yield result

    with AsyncDataSetIterator(source(), 2, resource=pool) as iterator:
        assert [int(array[0]) for array in iterator] == list(range(20))


def test_it_reads_ahead_of_a_pass_over_a_dataset(pool):
    dataset = mc.data.Dataset.range(10).batch(2)
    with AsyncDataSetIterator(dataset, 2, resource=pool) as iterator:
        for _ in range(2):
            found = [batch.tolist() for batch in iterator]
            assert found == [[0, 1], [2, 3], [4, 5], [6, 7], [8, 9]]
            iterator.reset()
    with AsyncDataSetIterator(iter(dataset), 2, resource=pool) as iterator:
        assert not iterator.reset_supported
        assert len(list(iterator)) == 5


@pytest.mark.parametrize("mode", ["spill_everything", "bypass_everything"])
def test_it_works_while_workspaces_are_searched_for_faults(mode, pool):
    before = mc.config.get_debug_mode()
    mc.config.set_debug_mode(mode)
    try:
        with AsyncDataSetIterator(Base(50), 2, resource=pool) as iterator:
            kept = list(iterator)
        assert numbers(kept) == list(range(50))
        kept.clear()
    finally:
        mc.config.set_debug_mode(before)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="POSIX processes")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_in_a_forked_child_it_can_only_be_closed(pool):
    with AsyncDataSetIterator(Base(10), 2, resource=pool) as iterator:
        assert number(iterator.next()) == 0
        locked, go_on = threading.Event(), threading.Event()

        def hold():
            with iterator._lock:
                locked.set()
                go_on.wait(SOON)

        held = Call(hold)
        assert locked.wait(SOON)
        child = os.fork()
        if child == 0:
            told = 0
            try:
                signal.alarm(SOON)
                for use in (iterator.next, iterator.has_next, iterator.reset):
                    try:
                        use()
                    except RuntimeError as error:
                        told += "forked" in str(error)
                iterator.close()
                iterator.close()
                try:
                    iterator.next()
                except RuntimeError as error:
                    told += "is closed" in str(error)
            finally:
                os._exit(0 if told == 4 else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        go_on.set()
        held.result()
        assert numbers(iterator) == list(range(1, 10))


def test_lists_of_data_sets_are_merged_ahead(pool):
    data = DataSet(np.arange(10.0)[:, None], np.arange(10))
    base = ListDataSetIterator(data.as_list(), 4)
    with AsyncDataSetIterator(base, 2, resource=pool) as iterator:
        labels = [batch.labels.tolist() for batch in iterator]
    assert labels == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]
