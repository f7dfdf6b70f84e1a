"""The thread that makes items ahead: its start, its pace, its end in every case."""

from __future__ import annotations

import gc
import threading
import time
import warnings
import weakref
from functools import partial

import numpy as np
import pytest
from calls import SOON, Call, eventually
from hypothesis import given, settings
from hypothesis import strategies as st

import memcfg as mc
from memcfg import memory

# A thread with depths, sources and rings of the test's own.
from memcfg.data.engine import _thread_pool
from memcfg.data.engine._batch_blocks import Ring
from memcfg.data.engine._producer import FixedDepth, Producer
from memcfg.errors import ResourceExhaustedError


class Source:
    """Counts; notes who calls, and waits where it is told to."""

    def __init__(self, n=10, *, until=None, make=int):
        self.n, self.make, self.until = n, make, until
        self.index, self.callers, self.closed = 0, set(), []
        self.inside = threading.Event()

    def __iter__(self):
        return self

    def __next__(self):
        self.callers.add(threading.get_ident())
        if self.until is not None and self.index == self.n:
            self.inside.set()
            assert self.until.wait(SOON)
        if self.index >= self.n:
            raise StopIteration
        self.index += 1
        return self.make(self.index - 1)

    def close(self):
        self.closed.append(threading.get_ident())


@pytest.fixture
def make(pool):
    """Make producers over the pool; those that are left are stopped."""
    made = []

    def make_one(source, buffer_size=2, *, ring=None, **others):
        allocator = partial(memory.numpy_allocator, pool)
        producer = Producer(
            iter(source),
            FixedDepth(buffer_size),
            "a producer",
            ring=ring,
            allocator=allocator,
            **others,
        )
        made.append(weakref.ref(producer))
        return producer

    yield make_one
    for each in made:
        if (producer := each()) is not None:
            producer.stop(wait=True)


def test_items_come_in_order_from_one_other_thread(make):
    source = Source(100)
    producer = make(source)
    assert list(producer) == list(range(100))
    assert source.callers == {producer.thread.ident} != {threading.get_ident()}
    assert producer.thread.name == "memcfg-data-a producer"
    assert producer.thread.daemon


def test_the_thread_begins_with_the_first_call_or_when_it_is_told(make):
    source = Source()
    producer = make(source)
    assert producer.thread.ident is None
    assert source.index == 0
    assert producer.has_next()
    told = make(other := Source())
    told.start()
    told.start()
    assert eventually(lambda: other.index > 0)


@pytest.mark.parametrize("capacity", [1, 2, 7])
def test_it_is_ahead_by_the_capacity_and_no_more(make, capacity):
    source = Source(100)
    producer = make(source, capacity)
    producer.start()
    for taken in range(5):
        assert eventually(lambda taken=taken: source.index == taken + capacity)
        time.sleep(0.01)
        assert source.index == taken + capacity
        assert producer.get() == taken


def test_at_the_end_the_source_is_closed_by_the_thread_and_released(make):
    source = Source(3)
    there = weakref.ref(source)
    producer = make(source)
    assert list(producer) == [0, 1, 2]
    producer.thread.join(SOON)
    assert source.closed == [producer.thread.ident]
    del source
    assert there() is None
    for _ in range(3):
        with pytest.raises(StopIteration):
            producer.get()
        assert not producer.has_next()


@pytest.mark.parametrize("n", [0, 1, 5])
@pytest.mark.parametrize(
    "error",
    [
        ValueError,
        KeyboardInterrupt,
        SystemExit,
        GeneratorExit,
        MemoryError,
        RuntimeError,
    ],
)
def test_an_error_comes_behind_the_items_as_it_was_raised(make, n, error):
    raised = error("from the source")
    closed = []

    class Failing(Source):
        def __next__(self):
            if self.index == n:
                raise raised
            return super().__next__()

        def close(self):
            closed.append(True)

    producer = make(Failing())
    assert [producer.get() for _ in range(n)] == list(range(n))
    with pytest.raises(error) as caught:
        producer.get()
    assert caught.value is raised
    assert closed == [True]
    with pytest.raises(StopIteration):
        producer.get()


def test_an_error_that_was_handled_leaves_no_cycle(make):
    def failing():
        yield 1
        raise ValueError("told")

    producer = make(failing())
    there = weakref.ref(producer)
    assert producer.get() == 1
    gc.disable()
    try:
        try:
            producer.get()
        except ValueError as error:
            assert error.__context__ is None  # noqa: PT017
        del producer
        assert there() is None
    finally:
        gc.enable()


def test_an_error_while_closing_is_told_unless_there_was_one(make):
    class Closing(Source):
        def close(self):
            raise OSError("closing")

    producer = make(Closing(2))
    assert [producer.get(), producer.get()] == [0, 1]
    with pytest.raises(OSError, match="closing"):
        producer.get()

    class Both(Closing):
        def __next__(self):
            raise first

    first = ValueError("first")
    with pytest.raises(ValueError, match="first") as caught:
        make(Both()).get()
    assert caught.value is first


def test_a_generator_that_raises_stop_iteration_is_no_end(make):
    def source():
        yield 1
        next(iter(()))

    producer = make(source())
    assert producer.get() == 1
    with pytest.raises(RuntimeError, match="generator raised StopIteration"):
        producer.get()


def test_an_allocator_that_cannot_be_entered_is_told(pool):
    def refuse():
        raise OSError("no allocator")

    producer = Producer(
        iter([1]), FixedDepth(1), "a producer", ring=None, allocator=refuse
    )
    with pytest.raises(OSError, match="no allocator"):
        producer.get()


# Memory.


def test_without_a_ring_arrays_are_blocks_of_their_own(make, pool):
    producer = make(Source(3, make=lambda n: np.full(1000, n)))
    arrays = list(producer)
    assert [memory.owner_of(each) for each in arrays] == [pool] * 3
    assert not any(mc.is_attached(each) for each in arrays)
    arrays.clear()


def test_with_a_ring_nothing_is_allocated_in_the_steady_state(make, pool):
    ring = Ring("a ring", pool)
    producer = make(Source(200, make=lambda n: np.full(1000, n, "i4")), ring=ring)
    for number in range(200):
        array = producer.get()
        assert (array == number).all()
        assert mc.is_attached(array)
        if number == 20:
            assert mc.workspace_of(array).name == "a ring"  # it goes with its thread
            count = pool.stats().allocation_count
            held = pool.stats().current_bytes
    assert pool.stats().allocation_count == count
    assert held <= 4 * ring.block_bytes
    del array
    assert eventually(lambda: pool.stats().current_bytes == 0 or not list(producer))
    assert eventually(lambda: pool.owners() == {})


def test_the_depth_hears_what_an_item_takes(make, pool):
    heard = []

    class Curious(FixedDepth):
        def learned(self, item_bytes):
            heard.append(item_bytes)

    producer = Producer(
        Source(3, make=lambda n: np.empty(1000, "u1")),
        Curious(1),
        "a producer",
        ring=Ring("a ring", pool),
        allocator=partial(memory.numpy_allocator, pool),
    )
    assert len(list(producer)) == 3
    assert heard == [1024] * 4  # the last is the end's


def test_a_depth_may_give_in_to_a_failed_allocation():
    pool = memory.Pool(limit=6 * 1024)

    class Modest(FixedDepth):
        def allocation_failed(self, fits):
            self.capacity = min(self.capacity, fits)
            return fits > 0

    depth = Modest(10)
    producer = Producer(
        Source(50, make=lambda n: np.empty(1000, "u1")),
        depth,
        "a producer",
        ring=Ring("a ring", pool),
        allocator=partial(memory.numpy_allocator, pool),
    )
    assert sum(1 for _ in producer) == 50
    assert depth.capacity == 2
    assert pool.stats().peak_bytes <= 6 * 1024
    producer.thread.join(SOON)
    gc.collect()
    assert pool.owners() == {}


def test_a_failed_allocation_comes_behind_the_first_item_and_says_what_fits(make):
    pool = memory.Pool(limit=6 * 1024)
    producer = Producer(
        Source(50, make=lambda n: np.empty(1000, "u1")),
        FixedDepth(10),
        "a producer",
        ring=Ring("a ring", pool),
        allocator=partial(memory.numpy_allocator, pool),
    )
    first = producer.get()
    with pytest.raises(ResourceExhaustedError, match="buffer_size=2 fits"):
        producer.get()
    producer.thread.join(SOON)
    assert pool.stats().current_bytes == 1024
    del first
    assert pool.owners() == {}


def test_a_failed_allocation_stands_only_when_the_consumer_has_let_go(make):
    """What an earlier pass left with the consumer is gone when it asks again."""
    pool = memory.Pool(limit=5 * 1024)
    with memory.numpy_allocator(pool):
        batch = np.empty(1000, "u1")
    producer = Producer(
        Source(20, make=lambda n: np.empty(1000, "u1")),
        FixedDepth(2),
        "a producer",
        ring=Ring("a ring", pool),
        allocator=partial(memory.numpy_allocator, pool),
    )
    producer.start()
    assert eventually(lambda: len(producer.queue) == 1)
    for count, batch in enumerate(producer):  # noqa: B007  it is held meanwhile
        pass
    assert count == 19
    del batch
    producer.thread.join(SOON)
    assert pool.owners() == {}


# Ends.


def test_stopping_waits_for_the_source_and_gives_the_ring_back(make, pool):
    ring = Ring("a ring", pool)
    source = Source(100, make=lambda n: np.empty(1000))
    producer = make(source, ring=ring)
    kept = [producer.get() for _ in range(3)]
    assert producer.stop(wait=True) is True
    assert source.closed == [producer.thread.ident]
    assert pool.stats().current_bytes == 3 * 8000
    assert not producer.has_next()
    with pytest.raises(StopIteration):
        producer.get()
    assert producer.stop(wait=True) is True
    kept.clear()


def test_stopping_what_never_began(make):
    source = Source()
    producer = make(source)
    assert producer.stop(wait=True) is True
    producer.start()
    assert producer.thread.ident is None
    with pytest.raises(StopIteration):
        producer.get()


def test_stopping_does_not_wait_if_it_is_not_to(make):
    until = threading.Event()
    source = Source(1, until=until)
    producer = make(source)
    assert producer.get() == 0
    assert source.inside.wait(SOON)
    assert producer.stop(wait=False) is False
    producer.close()
    assert producer.thread.is_alive()
    until.set()
    producer.thread.join(SOON)
    assert source.closed


def test_a_source_that_does_not_return_is_told_of_once(make):
    until = threading.Event()
    source = Source(1, until=until)
    producer = make(source)
    producer.get()
    assert source.inside.wait(SOON)
    with pytest.warns(
        RuntimeWarning, match="is still making an item after 0.01 s"
    ) as told:
        assert producer.stop(wait=True, timeout=0.01) is False
    assert len(told) == 1
    until.set()
    producer.thread.join(SOON)
    assert producer.stop(wait=True) is True


def test_a_consumer_that_waits_is_woken_by_a_stop(make):
    until = threading.Event()
    source = Source(0, until=until)
    producer = make(source)
    waiting = Call(producer.get)
    assert source.inside.wait(SOON)
    assert waiting.waits
    producer.stop(wait=False)
    with pytest.raises(StopIteration):
        waiting.result()
    until.set()


def test_its_own_thread_may_stop_it(make):
    box = []
    producer = make(Source(10, make=lambda n: box[0].stop(wait=True) or n))
    box.append(producer)
    assert len(list(producer)) <= 1
    producer.thread.join(SOON)
    assert not producer.thread.is_alive()
    box.clear()


@pytest.mark.parametrize("where", ["full queue", "inside the source", "not begun"])
def test_one_that_is_garbage_collected_ends(make, pool, where):
    until = threading.Event()
    source = Source(3, until=until, make=lambda n: np.empty(1000))
    producer = make(
        source, 1 if where == "full queue" else 10, ring=Ring("a ring", pool)
    )
    if where != "not begun":
        del where
        producer.get()
        thread = producer.thread
    else:
        thread = None
    there = weakref.ref(producer)
    del producer
    assert there() is None
    until.set()
    if thread is not None:
        thread.join(SOON)
        assert not thread.is_alive()
        assert source.closed
    assert pool.stats().current_bytes == 0


def test_one_in_a_cycle_ends_with_the_collection(make):
    class Node:
        pass

    node = Node()
    node.node, node.producer = node, make(Source(100))
    node.producer.get()
    thread = node.producer.thread
    del node
    gc.collect()
    thread.join(SOON)
    assert not thread.is_alive()


def test_the_thread_keeps_no_item_that_was_taken(make):
    class Thing:
        pass

    producer = make(Source(3, make=lambda n: Thing()), 1)
    there = weakref.ref(producer.get())
    assert eventually(lambda: len(producer.queue) == 1)
    assert there() is None


def test_a_thread_that_is_ended_from_outside_is_noticed(make):
    """An asynchronous exception is a failure like any other."""
    import ctypes

    until = threading.Event()

    def source():
        yield 1
        while not until.wait(0.01):
            pass

    producer = make(source())
    assert producer.get() == 1
    ident = ctypes.c_ulong(producer.thread.ident)
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ident, ctypes.py_object(SystemExit))
    with pytest.raises(SystemExit):
        producer.get()
    producer.thread.join(SOON)
    until.set()


def test_threads_that_cannot_be_started_are_told_of(make, monkeypatch):
    def refuse(thread):
        raise RuntimeError("can't start new thread")

    producer = make(Source(2))
    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", refuse)
        with pytest.raises(RuntimeError, match="new thread"):
            producer.get()
        assert producer.stop(wait=True) is True


def test_a_thousand_leave_nothing(make, pool, tenths):
    before = threading.active_count()
    for number in range(100 * tenths):
        producer = make(Source(5, make=lambda n: np.empty(100)), ring=Ring("r", pool))
        if number % 3:
            producer.get()
        if number % 2:
            producer.stop(wait=True)
    del producer
    assert eventually(lambda: threading.active_count() == before)
    assert pool.stats().current_bytes == 0
    gc.collect()
    assert len(_thread_pool.running.alive()) == 0


@settings(max_examples=settings().max_examples // 5)
@given(
    n=st.integers(0, 12),
    capacity=st.integers(1, 4),
    fails=st.booleans(),
    taken=st.integers(0, 15),
    how=st.sampled_from(["stop", "forget", "close"]),
)
def test_whatever_is_done_the_items_come_in_order_and_the_thread_ends(
    n, capacity, fails, taken, how
):
    pool = memory.Pool()
    error = KeyError("told")

    def source():
        for number in range(n):
            yield np.full(50, number)
        if fails:
            raise error

    producer = Producer(
        source(),
        FixedDepth(capacity),
        "a producer",
        ring=Ring("a ring", pool),
        allocator=partial(memory.numpy_allocator, pool),
    )
    got, ended = [], None
    try:
        while len(got) < taken:
            got.append(int(producer.get()[0]))
    except (StopIteration, KeyError) as caught:
        ended = caught
    assert got == list(range(min(n, taken)))
    if taken > n:
        assert (ended is error) == fails
        assert ended is not None
        error.__traceback__ = None
    ended = None
    thread = producer.thread
    if how == "stop":
        producer.stop(wait=True)
    elif how == "close":
        producer.close()
    del producer
    if thread.ident is not None:
        thread.join(SOON)
        assert not thread.is_alive()
    gc.collect()
    assert pool.owners() == {}


def test_warnings_of_a_source_are_raised_where_they_are_errors(make):
    def source():
        warnings.warn("careful", UserWarning, stacklevel=1)
        yield 1

    with pytest.raises(UserWarning, match="careful"):
        make(source()).get()
