"""What is done to each batch by the thread that reads ahead."""

from __future__ import annotations

import threading

import numpy as np
import pytest
from calls import data_threads, eventually

import memcfg as mc
from memcfg.data import (
    AsyncDataSetIterator,
    DataSet,
    DataSetCallback,
    DefaultCallback,
    InterleavedDataSetCallback,
    MultiDataSet,
)
from memcfg.errors import ResourceExhaustedError


class Noting(DataSetCallback):
    """Notes what is called, and gives what it is told to."""

    def __init__(self, give=lambda batch: None):
        self.give, self.calls, self.threads = give, [], set()

    def call(self, batch):
        self.calls.append(batch)
        self.threads.add(threading.current_thread().name)
        return self.give(batch)

    def reset(self):
        self.calls.append("reset")

    def close(self):
        self.calls.append("close")


def test_it_is_called_for_each_batch_by_the_thread(pool):
    callback = Noting()
    with AsyncDataSetIterator([1, 2, 3], callback=callback, resource=pool) as iterator:
        assert list(iterator) == [1, 2, 3]  # None leaves them
        iterator.reset()
        assert list(iterator) == [1, 2, 3]
    assert callback.calls == [1, 2, 3, "reset", 1, 2, 3, "close"]
    assert callback.threads == {"memcfg-data-AsyncDataSetIterator"}


def test_what_it_returns_replaces_the_batch(pool):
    callback = Noting(lambda batch: batch * 10)
    with AsyncDataSetIterator([1, 2], callback=callback, resource=pool) as iterator:
        assert list(iterator) == [10, 20]


def test_a_function_will_do(pool):
    found = []
    for callback, batches in (
        (found.append, [1, 2]),
        (lambda batch: batch + 1, [2, 3]),
        (DefaultCallback(), [1, 2]),
        (None, [1, 2]),
    ):
        with AsyncDataSetIterator([1, 2], callback=callback, resource=pool) as iterator:
            assert list(iterator) == batches
            if iterator.reset_supported:
                iterator.reset()
    assert found[:2] == [1, 2]


def test_what_it_makes_lies_in_the_batchs_block(pool):
    source = (np.ones(100) for _ in range(20))
    with AsyncDataSetIterator(
        source, 2, callback=lambda batch: batch * 2, resource=pool
    ) as iterator:
        for count, array in enumerate(iterator):
            assert mc.is_attached(array)
            assert (array == 2).all()
            if count == 10:
                allocations = pool.stats().allocation_count
        assert pool.stats().allocation_count == allocations
    del array


@pytest.mark.parametrize(
    "error", [ValueError, KeyboardInterrupt, SystemExit, GeneratorExit]
)
@pytest.mark.parametrize("at", [0, 3, 9])
def test_an_error_in_it_comes_behind_the_batches_before(error, at, pool):
    raised = error("told")

    def fail(batch):
        if batch == at:
            raise raised

    with AsyncDataSetIterator(range(10), 2, callback=fail, resource=pool) as iterator:
        assert [iterator.next() for _ in range(at)] == list(range(at))
        with pytest.raises(error) as caught:
            iterator.next()
        assert caught.value is raised
        assert not iterator.has_next()


def test_it_cannot_end_the_pass_by_mistake(pool):
    with (
        AsyncDataSetIterator(
            range(10), callback=lambda batch: next(iter(())), resource=pool
        ) as iterator,
        pytest.raises(RuntimeError, match="raised StopIteration"),
    ):
        iterator.next()


@pytest.mark.parametrize("method", ["reset", "close"])
def test_an_error_while_it_restarts_or_ends_is_raised_and_nothing_is_left(method, pool):
    class Fragile(DefaultCallback):
        pass

    def fail(self):
        raise OSError("told")

    setattr(Fragile, method, fail)
    iterator = AsyncDataSetIterator(range(10), callback=Fragile(), resource=pool)
    with pytest.raises(OSError, match="told"):
        getattr(iterator, method)()
    if method == "reset":
        with pytest.raises(RuntimeError, match="last reset failed"):
            iterator.next()
        iterator.close()
    assert eventually(lambda: not data_threads())
    iterator.close()


def test_it_may_close_its_own_iterator(pool):
    box = []

    def close(batch):
        if batch == 3:
            box[0].close()

    iterator = AsyncDataSetIterator(range(10), 1, callback=close, resource=pool)
    box.append(iterator)
    with pytest.raises(RuntimeError, match="is closed"):
        list(iterator)
    assert eventually(lambda: not data_threads())
    box.clear()


# Dealing out.


@pytest.fixture
def devices(cpu):
    limit = mc.config.LogicalDeviceConfiguration(memory_limit=64)
    mc.config.set_logical_device_configuration(cpu, [limit] * 3)
    return [f"CPU:{number}" for number in range(3)]


def in_use(devices) -> list[int]:
    return [mc.config.get_memory_info(name)["current"] for name in devices]


def batches(n=12):
    for value in range(n):
        yield DataSet(np.full((100, 4), value, "f4"), np.full(100, value))


def test_batches_are_dealt_out_in_order(devices, pool):
    callback = InterleavedDataSetCallback(2)
    pools = [mc.config.logical_device(name).pool for name in devices]
    with AsyncDataSetIterator(
        batches(), 2, callback=callback, resource=pool
    ) as iterator:
        for count, data in enumerate(iterator):
            where = mc.workspace_of(data.features)
            assert where.name == f"IDSC-{count % 3}"
            assert where.memory.upstream is pools[count % 3]
            assert mc.workspace_of(data.labels).name == where.name
            assert (data.features == count).all()
            assert (data.labels == count).all()
        assert all(nbytes > 0 for nbytes in in_use(devices))
        del data, where
    assert in_use(devices) == [0, 0, 0]


def test_each_device_holds_two_blocks_more_than_the_buffer(devices):
    callback = InterleavedDataSetCallback(2, ["CPU:1"])
    data = next(batches())
    for _ in range(20):
        callback.call(data)
    assert in_use(devices) == [0, 4 * data.memory_footprint, 0]
    callback.close()
    assert in_use(devices) == [0, 0, 0]


def test_in_the_steady_state_devices_allocate_nothing(devices):
    callback = InterleavedDataSetCallback(1)
    pools = [mc.config.logical_device(name).pool for name in devices]
    for count, data in enumerate(batches(60)):
        moved = callback.call(data)
        assert (moved.features == count).all()
        if count == 20:
            before = [pool.stats().allocation_count for pool in pools]
    assert [pool.stats().allocation_count for pool in pools] == before
    del moved
    callback.close()


def test_batches_that_are_kept_are_not_overwritten(devices):
    callback = InterleavedDataSetCallback(1, devices[:2])
    kept = [callback.call(data) for data in batches(20)]
    callback.close()
    for count, data in enumerate(kept):
        assert (data.features == count).all()
    kept.clear()
    data = None
    assert in_use(devices) == [0, 0, 0]


def test_what_the_base_keeps_is_not_changed(devices, pool):
    """DL4J moves the arrays of the data set that the base has."""
    base = list(batches(6))
    before = [data.features for data in base]
    callback = InterleavedDataSetCallback(2)
    with AsyncDataSetIterator(base, 2, callback=callback, resource=pool) as iterator:
        assert len(list(iterator)) == 6
    assert all(data.features is array for data, array in zip(base, before, strict=True))


def test_after_a_reset_the_first_device_is_first(devices):
    callback = InterleavedDataSetCallback(2)
    data = next(batches())
    names = []
    for cycle in range(5):
        names.append(mc.workspace_of(callback.call(data).features).name[-1])
        if cycle == 1:
            callback.reset()
    assert "".join(names) == "01012"
    callback.close()
    callback.close()
    assert mc.workspace_of(callback.call(data).features).name == "IDSC-0"
    callback.close()


@pytest.mark.parametrize(
    "batch",
    [
        np.ones(3),
        (np.ones(3), np.zeros(2)),
        {"x": [np.ones(3)]},
        MultiDataSet([[1.0]], [[2]]),
        [DataSet([1.0])],
    ],
)
def test_batches_of_any_form(batch, devices):
    callback = InterleavedDataSetCallback(1)
    moved = callback.call(batch)
    assert type(moved) is type(batch)
    assert sum(in_use(devices)) > 0
    del moved
    callback.close()
    assert in_use(devices) == [0, 0, 0]


def test_a_form_that_is_not_known_is_refused(devices):
    callback = InterleavedDataSetCallback(1)
    with pytest.raises(TypeError, match="its arrays cannot be found"):
        callback.call(object())
    callback.close()


def test_a_device_that_is_full_says_what_fits(cpu, pool):
    limit = mc.config.LogicalDeviceConfiguration(memory_limit="32KiB")
    mc.config.set_logical_device_configuration(cpu, [limit])
    callback = InterleavedDataSetCallback(20)
    iterator = AsyncDataSetIterator(batches(), 2, callback=callback, resource=pool)
    assert iterator.has_next()
    with pytest.raises(ResourceExhaustedError, match=r"buffer_size=\d+ fits"):
        list(iterator)
    iterator.close()


def test_the_devices_are_those_of_the_cpu_or_as_named(devices):
    logical = mc.config.list_logical_devices("CPU")
    for given, count in ((None, 3), (devices[:2], 2), (logical[1:], 2)):
        callback = InterleavedDataSetCallback(1, given)
        data = next(batches())
        names = {mc.workspace_of(callback.call(data).features).name for _ in range(6)}
        assert len(names) == count
        callback.close()


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ((0,), ValueError),
        ((1.5,), TypeError),
        ((True,), TypeError),
        ((1, []), ValueError),
        ((1, ["CPU:9"]), ValueError),
        ((1, [5]), (TypeError, ValueError)),
    ],
)
def test_wrong_arguments_are_refused(arguments, error):
    with pytest.raises(error):
        InterleavedDataSetCallback(*arguments)


def test_a_simulated_device_is_refused(monkeypatch):
    monkeypatch.setenv("MEMCFG_SIMULATED_DEVICES", "GPU:1:1GiB")
    with pytest.raises(ValueError, match="simulated device has none"):
        InterleavedDataSetCallback(1, ["GPU:0"])
