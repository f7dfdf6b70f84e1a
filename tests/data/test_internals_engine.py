"""What no pass shows of its threads: conditions, queues, rings, pools and tuners.

Orders, errors, ends and limits of passes are tested through iterators and datasets,
in test_iterator_faults.py and test_async_iterators.py.
"""

from __future__ import annotations

import ctypes
import gc
import os
import random
import re
import signal
import threading
import time
import weakref
from collections import deque
from contextlib import nullcontext, suppress
from functools import partial
from itertools import cycle, islice, pairwise

import numpy as np
import pytest
from calls import SOON, Call, data_threads, eventually, traced
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from memcfg import memory
from memcfg.data import AUTOTUNE, Dataset, Options, TensorSpec
from memcfg.data.elements._slab import Layout, Slab
from memcfg.data.engine import _producer
from memcfg.data.engine._autotune import (
    FIRST_DEPTH,
    HillClimber,
    TunedDepth,
    TunedParallelism,
)
from memcfg.data.engine._batch_blocks import SPARE, Ring
from memcfg.data.engine._condition import Condition
from memcfg.data.engine._producer import BoundedQueue, FixedDepth, Producer
from memcfg.data.engine._run import Budget, WaitTimer, cores, free_bytes
from memcfg.data.engine._thread_pool import ThreadPool
from memcfg.errors import ResourceExhaustedError
from memcfg.units import align_up

MIB = 1 << 20
ROW = np.arange(64, dtype=np.uint8)


# Conditions.


def test_a_timeout_ends_and_leaves_nothing():
    condition = Condition(threading.RLock())
    assert condition.wait_for(lambda: False, 0.01) is False
    assert condition._waiters == []


def test_a_finalizer_may_notify_in_a_thread_that_holds_the_lock():
    condition = Condition(threading.RLock())

    def is_over():
        condition.notify_all()
        return True

    assert condition.wait_for(is_over) is True


def test_what_a_finalizer_notifies_while_the_predicate_is_called_is_not_lost():
    condition, changed = Condition(threading.RLock()), []

    def predicate():
        seen = bool(changed)
        if not seen:
            changed.append(True)
            condition.notify_all()
        return seen

    assert condition.wait_for(predicate, 5.0)


def test_a_predicate_that_raises_leaves_no_waiter():
    condition = Condition(threading.RLock())
    with pytest.raises(ZeroDivisionError):
        condition.wait_for(lambda: 1 / 0)
    assert condition._waiters == []


# Queues.


def alive() -> bool:
    return True


def dead() -> bool:
    return False


class Thing:
    """Something that can be referred to weakly."""


@pytest.fixture
def queue():
    return BoundedQueue(FixedDepth(2), "a queue")


def test_a_depth_that_grows_makes_space():
    class Growing(FixedDepth):
        def consumed(self, waiting, waited):
            self.capacity += 2

    queue = BoundedQueue(Growing(1), "a queue")
    queue.put(1)
    waiting = Call(queue.wait_until_not_full)
    assert waiting.waits
    queue.get(alive)
    assert waiting.result()
    for item in range(2):
        queue.put(item)
    assert queue.wait_until_not_full()


def test_the_depth_hears_what_waited_and_how_long():
    heard = []

    class Curious(FixedDepth):
        def consumed(self, waiting, waited):
            heard.append((waiting, waited > 0))

    queue = BoundedQueue(Curious(5), "a queue")
    for item in range(2):
        queue.put(item)
    for _ in range(2):
        queue.get(alive)
    late = Call(queue.get, alive)
    assert late.waits
    queue.put(3)
    late.result()
    assert heard == [(2, False), (1, False), (0, True)]
    assert queue.waited > 0.01


def test_an_item_is_wanted_when_none_is_there_and_somebody_waits(queue):
    queue.put(1)
    wanted = Call(queue.wait_until_wanted)
    assert wanted.waits
    assert queue.get(alive) == 1
    assert wanted.waits
    asking = Call(queue.has_next, alive)
    assert wanted.result() is True
    queue.put(2)
    assert asking.result() is True


def test_a_failure_is_raised_in_one_of_those_that_wait(queue):
    waiting = [Call(queue.get, alive) for _ in range(3)]
    assert all(each.waits for each in waiting)
    queue.end(KeyError("a failure"))
    errors = []
    for each in waiting:
        with pytest.raises((KeyError, StopIteration)) as caught:
            each.result()
        errors.append(caught.type)
    assert sorted(errors, key=str) == sorted([KeyError] + [StopIteration] * 2, key=str)


def test_what_a_dead_thread_made_is_handed_out_first(queue, monkeypatch):
    monkeypatch.setattr(_producer, "_ALIVE", 0.01)
    queue.put(1)
    assert queue.get(dead) == 1
    with pytest.raises(RuntimeError, match="exited unexpectedly"):
        queue.get(dead)


def test_finalizers_may_stop_it_while_its_lock_is_held():
    """The collector may run between any two instructions of the holder."""
    queue = BoundedQueue(FixedDepth(1), "a queue")
    stopped = []

    class Nasty(FixedDepth):
        def consumed(self, waiting, waited):
            node = Thing()
            node.node = node
            weakref.finalize(node, lambda: (queue.stop(), stopped.append(True)))
            del node
            gc.collect()

    queue.depth = Nasty(1)
    queue.put(1)
    assert Call(queue.get, alive).result() == 1
    assert stopped
    assert queue.stopped


@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="POSIX signals")
def test_a_signals_handler_may_stop_it_at_any_instruction():
    """Until the handler has run, items are handed out; afterwards the end."""
    for turn in range(200):
        queue = BoundedQueue(FixedDepth(10), "a queue")
        for item in range(10):
            queue.put(item)
        got = []
        before = signal.signal(signal.SIGALRM, lambda *_, queue=queue: queue.stop())
        try:
            signal.setitimer(signal.ITIMER_REAL, 1e-6 * (turn + 1))
            while True:
                try:
                    got.append(queue.get(alive))
                except StopIteration:
                    break
                if len(got) == 10:
                    queue.end()
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, before)
        assert got == list(range(len(got)))


@pytest.mark.skipif(not hasattr(os, "fork"), reason="POSIX processes")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_forked_child_gets_an_error_and_never_waits(queue):
    queue.put(1)
    holding, go_on = threading.Event(), threading.Event()

    def hold():
        with queue._lock:
            holding.set()
            go_on.wait(SOON)

    held = Call(hold)
    holding.wait(SOON)
    child = os.fork()
    if child == 0:
        code = 1
        try:
            signal.alarm(SOON)
            for ask in (queue.get, queue.has_next):
                found = ""
                try:
                    ask(alive)
                except RuntimeError as error:
                    found = str(error)
                assert "in the process that was forked" in found
            queue.stop()
            queue.end()
            assert queue.wait_until_not_full() is False
            assert len(queue) == 0
            code = 0
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    go_on.set()
    held.result()
    assert queue.get(alive) == 1


@given(st.integers(1, 5), st.lists(st.integers(0, 3), max_size=60), st.integers(0, 60))
def test_whatever_the_pace_all_items_come_once_and_in_order(capacity, pauses, stop_at):
    """Two threads, at random paces; the consumer may stop early."""
    queue, items = BoundedQueue(FixedDepth(capacity), "a queue"), range(len(pauses))
    longest = 0

    def produce():
        nonlocal longest
        for item, pause in zip(items, pauses, strict=True):
            if not queue.wait_until_not_full():
                break
            assert len(queue) < capacity
            for _ in range(pause):
                time.sleep(0)
            queue.put(item)
            longest = max(longest, len(queue))
        queue.end()

    producer, got = Call(produce), []
    while len(got) < stop_at and queue.has_next(alive):
        got.append(queue.get(alive))
    queue.stop()
    producer.result()
    assert got == list(items)[:stop_at]
    assert longest <= capacity


def test_a_queue_may_be_stopped_while_its_thread_starts(queue):
    """A thread that starts may run the finalizer of whom it works for."""
    stopping = []

    def start():
        stopping.append(Call(queue.stop))
        stopping[0].result()

    queue.start_once(start)
    assert queue.stopped


class Model(RuleBasedStateMachine):
    """The queue against a deque and two words; nothing here waits."""

    def __init__(self):
        super().__init__()
        self.queue = BoundedQueue(FixedDepth(3), "a queue")
        self.items, self.state, self.failure = deque(), "running", None
        self.number = 0

    @precondition(lambda self: self.state == "running" and len(self.items) < 3)
    @rule()
    def put(self):
        assert self.queue.wait_until_not_full()
        self.queue.put(self.number)
        self.items.append(self.number)
        self.number += 1

    @precondition(lambda self: self.items or self.state != "running")
    @rule()
    def get(self):
        if self.items:
            assert self.queue.get(alive) == self.items.popleft()
        elif self.failure is not None:
            with pytest.raises(KeyError) as caught:
                self.queue.get(alive)
            assert caught.value is self.failure
            self.failure = None
        else:
            with pytest.raises(StopIteration):
                self.queue.get(alive)

    @precondition(lambda self: self.items or self.state != "running")
    @rule()
    def has_next(self):
        assert self.queue.has_next(alive) == bool(self.items or self.failure)

    @precondition(lambda self: self.state == "running")
    @rule(fails=st.booleans())
    def end(self, fails):
        self.failure = KeyError("a failure") if fails else None
        self.queue.end(self.failure)
        self.state = "ended"

    @rule()
    def stop(self):
        if self.number % 5 == 4:  # rarely
            self.queue.stop()
            self.items.clear()
            self.state, self.failure = "stopped", None

    @invariant()
    def agrees(self):
        assert len(self.queue) == len(self.items)
        assert self.queue.stopped == (self.state == "stopped")


TestModel = Model.TestCase


TestModel.settings = settings(max_examples=settings().max_examples // 5)


# Threads that make items ahead.


@pytest.fixture
def make(pool):
    """Make producers over a pool; those that are left are stopped."""
    made = []

    def make_one(source, buffer_size=2, *, depth=None, ring=None, pool=pool):
        producer = Producer(
            iter(source),
            depth or FixedDepth(buffer_size),
            "a producer",
            ring=ring,
            allocator=partial(memory.numpy_allocator, pool),
        )
        made.append(weakref.ref(producer))
        return producer

    yield make_one
    for each in made:
        if (producer := each()) is not None:
            producer.stop(wait=True)


def kilobytes(n):
    return (np.empty(1000, np.uint8) for _ in range(n))


def test_the_depth_hears_what_an_item_takes(make, pool):
    heard = []

    class Curious(FixedDepth):
        def learned(self, item_bytes):
            heard.append(item_bytes)

    producer = make(kilobytes(3), depth=Curious(1), ring=Ring("a ring", pool))
    assert len(list(producer)) == 3
    assert heard == [1024] * 4  # the last is the end's


def test_a_depth_may_give_in_to_a_failed_allocation(make):
    pool = memory.Pool(limit=6 * 1024)

    class Modest(FixedDepth):
        def allocation_failed(self, fits):
            self.capacity = min(self.capacity, fits)
            return fits > 0

    depth = Modest(10)
    producer = make(kilobytes(50), depth=depth, ring=Ring("a ring", pool), pool=pool)
    assert sum(1 for _ in producer) == 50
    assert depth.capacity == 2
    assert pool.stats().peak_bytes <= 6 * 1024
    producer.thread.join(SOON)
    gc.collect()
    assert pool.owners() == {}


def test_its_own_thread_may_stop_it(make):
    made = []

    def source():
        made[0].stop(wait=True)
        yield 1

    producer = make(source())
    made.append(producer)
    assert len(list(producer)) <= 1
    producer.thread.join(SOON)
    assert not producer.thread.is_alive()
    made.clear()


def test_the_thread_keeps_no_item_that_was_taken(make):
    producer = make((Thing() for _ in range(3)), 1)
    there = weakref.ref(producer.get())
    assert eventually(lambda: len(producer.queue) == 1)
    assert there() is None


@pytest.mark.parametrize("error", [None, ValueError("first")])
def test_an_error_while_closing_is_raised_unless_there_was_one(make, error):
    class Closing:
        def __iter__(self):
            return self

        def __next__(self):
            raise error or StopIteration

        def close(self):
            raise OSError("closing")

    with pytest.raises((OSError, ValueError)) as caught:
        make(Closing()).get()
    assert str(caught.value) == ("closing" if error is None else "first")


def test_an_allocator_that_cannot_be_entered_is_an_error():
    def refuse():
        raise OSError("no allocator")

    producer = Producer(
        iter([1]), FixedDepth(1), "a producer", ring=None, allocator=refuse
    )
    with pytest.raises(OSError, match="no allocator"):
        producer.get()


def test_a_thread_that_is_ended_from_outside_is_noticed(make):
    """An asynchronous exception is a failure like any other."""
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


def test_a_thread_that_cannot_be_started_is_an_error(make, monkeypatch):
    def refuse(thread):
        raise RuntimeError("can't start new thread")

    producer = make([1, 2])
    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", refuse)
        for _ in range(2):  # it can be tried again
            with pytest.raises(RuntimeError, match="new thread"):
                producer.get()
    assert list(producer) == [1, 2]


# Rings.


def batch(ring, nbytes, value=0, buffer_size=2):
    ring.fit(buffer_size)
    with ring:
        array = np.empty(nbytes, np.uint8)
    array.fill(value)  # here: NumPy makes arrays for it
    return array


@pytest.fixture
def ring(pool):
    return Ring("a ring", pool)


def test_the_first_batch_tells_the_size(ring, pool):
    assert (ring.block_bytes, ring.nbytes) == (0, 0)
    first = batch(ring, 1000)
    assert ring.block_bytes == align_up(1000)
    assert ring.nbytes == 0
    ring.fit(2)
    assert ring.nbytes == 4 * 1024
    assert pool.stats().current_bytes == 5 * 1024
    del first
    assert pool.stats().current_bytes == 4 * 1024
    ring.destroy()
    assert pool.stats().current_bytes == 0


def test_a_cycle_without_arrays_learns_nothing(ring):
    for _ in range(3):
        ring.fit(2)
        with ring:
            pass
    assert (ring.block_bytes, ring.nbytes) == (0, 0)


@pytest.mark.parametrize("buffer_size", [1, 2, 8])
def test_in_the_steady_state_nothing_is_allocated(ring, pool, buffer_size):
    alive = deque(maxlen=buffer_size + SPARE - 1)  # but for the one that is made
    for number in range(100):
        if number == 2 * (buffer_size + SPARE):
            before = pool.stats()
        alive.append(batch(ring, 1000, number % 256, buffer_size))
        kept = range(max(0, number - len(alive) + 1), number + 1)
        assert [int(each[0]) for each in alive] == [n % 256 for n in kept]
        del kept
    after = pool.stats()
    assert after.allocation_count == before.allocation_count
    assert after.peak_bytes == before.peak_bytes <= (buffer_size + SPARE + 1) * 1024
    alive.clear()
    ring.destroy()


def test_one_that_is_kept_keeps_its_block_only(ring, pool):
    first = [batch(ring, 1000, 7)]
    kept = [batch(ring, 1000, 8)]
    first.clear()
    for number in range(50):
        batch(ring, 1000, number)
    assert pool.stats().current_bytes == 4 * 1024
    alive = [batch(ring, 1000, number) for number in range(4)]  # one block too few
    assert pool.stats().current_bytes == 5 * 1024
    assert int(kept[0].max()) == 8
    alive.clear()
    kept.clear()
    ring.destroy()


def test_a_larger_batch_lies_outside_and_blocks_grow_one_by_one(ring, pool):
    for _ in range(5):
        batch(ring, 1000)
    assert ring.nbytes == 4 * 1024
    large = [batch(ring, 4000)]
    assert ring.block_bytes == align_up(int(align_up(4000) * 1.3))
    alive = []
    for number in range(1, 5):
        alive.append(batch(ring, 1000))
        assert ring.nbytes == (4 - number) * 1024 + number * ring.block_bytes
    alive.clear()
    count = pool.stats().allocation_count
    large.clear()
    for _ in range(10):
        batch(ring, 4000)
    assert pool.stats().allocation_count == count
    ring.destroy()


def test_temporaries_of_a_cycle_count(ring, pool):
    ring.fit(1)
    with ring:
        first, second = np.zeros(500, np.uint8), np.zeros(500, np.uint8)
        kept = first + second
        del first, second
    assert ring.block_bytes == 3 * 512
    del kept
    ring.destroy()


def test_another_buffer_size_is_another_number_of_blocks(ring, pool):
    alive = [batch(ring, 1000, 0, 2), batch(ring, 1000, 1, 2)]
    for buffer_size in (5, 1, 3, 1):
        alive.append(batch(ring, 1000, len(alive), buffer_size))
        assert ring.nbytes == (buffer_size + SPARE) * 1024
    assert [int(each.max()) for each in alive] == list(range(6))
    alive.clear()
    assert pool.stats().current_bytes == ring.nbytes
    ring.destroy()


def test_a_failed_cycle_takes_no_block(ring, pool):
    alive = [batch(ring, 1000, 0)]
    for number in range(1, 10):
        ring.fit(2)
        with pytest.raises(IndexError), ring:
            np.zeros(5000)[5000]
        assert ring.block_bytes == 1024
        alive.append(batch(ring, 1000, number))
        if len(alive) == 3:
            alive.pop(0)
    assert [int(each[0]) for each in alive] == [8, 9]
    assert ring.nbytes == 4 * 1024
    alive.clear()
    ring.destroy()


def test_no_memory_says_what_fits():
    pool = memory.Pool(limit=8 * 1024)
    ring = Ring("a ring", pool)
    first = [batch(ring, 1000)]
    with pytest.raises(ResourceExhaustedError) as caught:
        ring.fit(8)
    assert "a ring of 10 blocks of 1.00 KiB (buffer_size=8)" in str(caught.value)
    assert "buffer_size=4 fits." in str(caught.value)  # and a block is left
    assert ring.fits == 4
    assert caught.value.limit_bytes == 8 * 1024
    ring.fit(4)
    assert pool.stats().current_bytes == 7 * 1024
    first.clear()
    ring.fit(6)
    ring.destroy()
    assert pool.stats().current_bytes == 0


def test_no_memory_for_any_buffer_says_so():
    pool = memory.Pool(limit=3 * 1024)
    ring = Ring("a ring", pool)
    first = batch(ring, 1000)
    with pytest.raises(ResourceExhaustedError, match="No buffer fits: lower the batch"):
        ring.fit(1)
    assert ring.fits <= 0
    ring.destroy()
    del first


class RefusedError(Exception):
    """The ring does not fit; the arguments are what does, and for which batch."""


def run(sizes, buffer_size, limit):
    """Play a producer as fast as it can be, and a consumer who only comes if he must.

    A refusal stands only when nothing waits and the consumer has but one batch, as for
    the real producer. Each batch is checked against its number when it is let go.
    """
    pool = memory.Pool(limit=limit)
    ring = Ring("a ring", pool)
    waiting, held = deque(), []

    def consume():
        held[:] = [waiting.popleft()]
        number, array = held[0]
        assert (array == number % 251).all()

    def fit(number):
        try:
            ring.fit(buffer_size)
        except ResourceExhaustedError:
            while waiting:
                consume()
            try:
                ring.fit(buffer_size)
            except ResourceExhaustedError as error:
                said = re.search(r"buffer_size=(\d+) fits", str(error))
                raise RefusedError(int(said[1]) if said else 0, number) from None

    try:
        for number, size in enumerate(sizes):
            if len(waiting) >= buffer_size:
                consume()
            fit(number)
            with ring:
                array = np.empty(size, np.uint8)
            array.fill(number % 251)
            waiting.append((number, array))
            del array
        while waiting:
            consume()
    finally:
        waiting.clear()
        held.clear()
        ring.destroy()
        assert pool.owners() == {}
        pool.check()
    return pool.stats().peak_bytes


@given(st.integers(1, 5000), st.integers(1, 12), st.integers(1, 60_000))
def test_the_buffer_that_is_said_to_fit_does(size, buffer_size, limit):
    """Batches of one size: exactly, and none larger would."""
    sizes = [size] * 30
    try:
        run(sizes, buffer_size, limit)
    except RefusedError as refused:
        fits = refused.args[0]
        block = align_up(size)
        most = max(0, limit // 64 * 64 // block - 1 - SPARE)
        assert fits == (most - 1 if most > 1 else most)
        if fits:
            run(sizes, fits, limit)
            run(sizes, most, limit)
    except MemoryError:
        assert limit < align_up(size)


@settings(max_examples=settings().max_examples // 2)
@given(
    st.lists(st.integers(1, 4000), min_size=1, max_size=40),
    st.integers(1, 8),
    st.integers(4000, 100_000),
)
def test_what_is_said_to_fit_does_for_the_batches_so_far(sizes, buffer_size, limit):
    """A second refusal can only be for a batch that the first did not know."""
    try:
        run(sizes, buffer_size, limit)
    except RefusedError as refused:
        fits, number = refused.args
        assert fits < buffer_size
        if fits:
            with suppress(MemoryError):
                run(sizes[: number + 1], fits, limit)
    except MemoryError:
        pass  # a batch larger than the blocks, and no memory beside them


# Threads that run tasks.


def test_tasks_begin_in_the_order_in_which_they_were_given():
    begun = []
    threads = ThreadPool(1, "w", nullcontext)
    futures = [threads.submit(partial(begun.append, number)) for number in range(50)]
    futures[-1].result()
    assert begun == list(range(50))
    threads.stop(wait=True)


def test_more_threads_start_and_too_many_leave_when_the_count_changes():
    threads = ThreadPool(1, "w", nullcontext)
    assert data_threads() == []
    meet = threading.Barrier(3, timeout=60)
    threads.size = 3
    for future in [threads.submit(meet.wait) for _ in range(3)]:
        future.result()
    assert len(data_threads()) == 3
    threads.size = 1
    assert eventually(lambda: len(data_threads()) == 1)
    assert threads.submit(lambda: 7).result() == 7
    threads.stop(wait=True)


def test_stopping_drops_what_waits_and_wakes_who_waits():
    hold, begun, done = threading.Event(), threading.Event(), []

    def act():
        begun.set()
        hold.wait(SOON)

    threads = ThreadPool(1, "w", nullcontext)
    threads.submit(act)
    second = threads.submit(partial(done.append, 1))
    assert begun.wait(60)
    threading.Timer(0.1, lambda: threads.stop(wait=False)).start()
    with pytest.raises(StopIteration):
        second.result()
    with pytest.warns(RuntimeWarning, match="still at work after 0.05 s"):
        assert not threads.stop(wait=True, timeout=0.05)
    hold.set()
    assert threads.stop(wait=True)
    assert done == []
    with pytest.raises(StopIteration):
        threads.submit(int).result()


def test_a_queue_may_be_closed_while_its_thread_starts(monkeypatch):
    """A thread that starts may run the finalizer of whom it works for."""
    start = threading.Thread.start
    threads = ThreadPool(1, "w", nullcontext)

    def close_first(thread):
        closing = threading.Thread(target=threads._queue.close, daemon=True)
        start(closing)
        closing.join(10)
        assert not closing.is_alive()
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", close_first)
    with pytest.raises(StopIteration):
        threads.submit(int).result()
    assert threads.stop(wait=True)
    assert data_threads() == []


# Tuners, with a clock and a consumer that are simulated.


class Pass:
    """What a tuner needs of a run."""

    def __init__(self, ram=None, cpus=None, enabled=None, size=None, limit="64MiB"):
        self.now = 0.0
        self.options = Options()
        self.options.autotune.ram_budget = ram
        self.options.autotune.cpu_budget = cpus
        self.options.autotune.enabled = enabled
        self.options.threading.private_threadpool_size = size
        self.budget = Budget(memory.Pool(limit=limit), self.options)
        self.wait_timer = WaitTimer(lambda: self.now)


def consume(run, depth, making, using, items):
    """Let a consumer use items that are made; return its waiting and the depths.

    The producer begins an item when the queue is not full. `making` are the
    seconds that items take, `using` those that the consumer uses one.
    """
    making = iter(making)
    queue, free_at, depths = deque(), 0.0, []
    waited_in_all = 0.0

    def produce(room_at):
        nonlocal free_at
        while len(queue) < depth.capacity:
            free_at = max(free_at, room_at) + next(making)
            queue.append(free_at)

    produce(0.0)
    for _ in range(items):
        waiting = sum(done <= run.now for done in queue)
        waited = max(0.0, queue[0] - run.now)
        run.now += waited
        waited_in_all += waited
        queue.popleft()
        depth.consumed(waiting, waited)
        produce(run.now)
        depths.append(depth.capacity)
        run.now += using
    return waited_in_all, depths


class Fixed:
    def __init__(self, capacity):
        self.capacity = capacity

    def consumed(self, waiting, waited):
        pass


def test_a_producer_that_is_faster_needs_one():
    run = Pass()
    _, depths = consume(run, TunedDepth(run), cycle([0.009]), 0.01, 2000)
    assert depths[-1] == 1
    assert set(depths[1000:]) == {1}


def test_nothing_helps_a_producer_that_is_slower():
    run = Pass()
    _, depths = consume(run, TunedDepth(run), cycle([0.02]), 0.01, 2000)
    assert max(depths) <= 2 * FIRST_DEPTH
    assert set(depths[1000:]) == {FIRST_DEPTH}


@pytest.mark.parametrize("period", [4, 8, 16, 32])
def test_it_grows_where_times_vary(period):
    times = [0.001] * (period - 1) + [0.008 * period]  # the mean is below the use
    run = Pass()
    waited, depths = consume(run, TunedDepth(run), cycle(times), 0.01, 8000)
    assert depths[-1] > FIRST_DEPTH
    assert set(depths[6000:]) == {depths[-1]}  # it has come to rest
    fixed = Pass()
    alone, _ = consume(fixed, Fixed(1), cycle(times), 0.01, 8000)
    assert waited < alone / 2


@given(
    seed=st.integers(0, 2**32),
    spread=st.floats(0, 3),
    ratio=st.floats(0.2, 3),
    item_bytes=st.integers(1, 4 * MIB),
    budget=st.integers(0, 64 * MIB),
)
def test_it_stays_within_the_budget_and_comes_to_rest(
    seed, spread, ratio, item_bytes, budget
):
    generator = random.Random(seed)
    times = [0.01 * ratio * generator.lognormvariate(0, spread) for _ in range(50)]
    run = Pass(ram=budget)
    depth = TunedDepth(run)
    depth.learned(item_bytes)
    _, depths = consume(run, depth, cycle(times), 0.01, 4000)
    assert max(depths[1:]) == 1 or (max(depths) + 2) * item_bytes <= budget
    changes = sum(one != other for one, other in pairwise(depths))
    assert changes <= 60  # of 4000: 4 a try, and so many tries as doublings fit


def test_bytes_that_others_hold_are_not_there():
    run = Pass(ram=10 * MIB)
    owner = Fixed(0)
    run.budget.set_held(owner, 4 * MIB)
    depth = TunedDepth(run)
    depth.learned(MIB)
    times = cycle([0.001] * 31 + [0.25])
    _, depths = consume(run, depth, times, 0.01, 4000)
    assert max(depths) == 4
    depth.learned(MIB)  # as for each item
    assert run.budget.available(depth) == 6 * MIB
    assert run.budget.available(owner) == 10 * MIB - 6 * MIB
    del owner
    _, depths = consume(run, depth, times, 0.01, 8000)
    assert max(depths) == 8


@pytest.mark.parametrize("given", [False, True])
def test_a_depth_asks_for_twice_what_its_memory_holds(given):
    """With a given budget, more memory would not help."""
    run = Pass(ram=10 * MIB) if given else Pass(limit=20 * MIB)
    depth = TunedDepth(run)
    depth.learned(MIB)
    assert depth.asked == depth.capacity == FIRST_DEPTH
    consume(run, depth, cycle([0.001] * 31 + [0.25]), 0.01, 4000)
    assert depth.capacity == 8
    assert depth.asked == (8 if given else 16)


def test_items_that_become_larger():
    run = Pass(ram=10 * MIB)
    depth = TunedDepth(run)
    depth.learned(MIB)
    assert depth.capacity == FIRST_DEPTH
    depth.learned(3 * MIB)
    assert depth.capacity == 1
    depth.learned(30 * MIB)
    assert depth.capacity == 1  # there is no less


def test_items_that_lie_elsewhere_count():
    run = Pass(ram=10 * MIB)
    run.budget.note_item(2 * MIB)
    depth = TunedDepth(run)
    depth.learned(0)
    _, depths = consume(run, depth, cycle([0.001] * 31 + [0.25]), 0.01, 4000)
    assert max(depths) == 3


def test_a_failed_allocation():
    run = Pass()
    depth = TunedDepth(run)
    assert depth.allocation_failed(1)
    assert depth.capacity == 1
    assert not depth.allocation_failed(0)
    assert depth.capacity == 1


def test_nothing_changes_where_it_is_switched_off():
    run = Pass(enabled=False)
    _, depths = consume(run, TunedDepth(run), cycle([0.001] * 7 + [0.08]), 0.01, 2000)
    assert set(depths) == {FIRST_DEPTH}
    tuner = TunedParallelism(run)
    work(run, tuner, lambda threads: 0.1 / threads, 300)
    assert tuner.parallelism == 1


def work(run, tuner, seconds, items, using=0.0):
    """Let a step hand on items that take some seconds with so many threads."""
    chosen = []
    for _ in range(items):
        run.wait_timer.begin()
        run.now += seconds(tuner.parallelism)
        tuner.consumed(8)
        run.wait_timer.end()
        run.now += using
        chosen.append(tuner.parallelism)
    return chosen


@pytest.mark.parametrize("cpus", [1, 2, 3, 8, 12])
def test_a_function_that_can_be_parallel_gets_the_cores(cpus):
    run = Pass(cpus=cpus)
    tuner = TunedParallelism(run)
    chosen = work(run, tuner, lambda threads: 0.1 / threads, 2000)
    assert chosen[-1] == cpus
    assert set(chosen[1000:]) == {cpus}
    assert max(chosen) == cpus


@pytest.mark.parametrize("loss", [0.9, 1.0, 1.3])
def test_a_function_that_holds_the_lock_gets_one(loss):
    run = Pass(cpus=8)
    tuner = TunedParallelism(run)
    chosen = work(run, tuner, lambda n: 0.1 * (loss if n > 1 else 1), 2000)
    assert set(chosen[1000:]) == {1}


def test_where_nobody_waits_nothing_is_parallel():
    run = Pass(cpus=8)
    tuner = TunedParallelism(run)
    assert set(work(run, tuner, lambda _: 0.0001, 1000, using=0.1)) == {1}


def test_threads_that_are_not_needed_any_more_go():
    run = Pass(cpus=4)
    tuner = TunedParallelism(run)
    assert work(run, tuner, lambda n: 0.1 / n, 1000)[-1] == 4
    assert work(run, tuner, lambda _: 0.0, 2000, using=0.1)[-1] == 1


def test_bytes_bound_the_threads_too():
    run = Pass(cpus=8, ram=3 * MIB)
    tuner = TunedParallelism(run)
    tuner.item_bytes = MIB
    run.budget.set_held(run, 2 * MIB)
    assert work(run, tuner, lambda n: 0.1 / n, 2000)[-1] > 1
    run = Pass(cpus=8, ram=0)
    tuner = TunedParallelism(run)
    tuner.item_bytes = MIB
    assert set(work(run, tuner, lambda n: 0.1 / n, 2000)) == {1}


def test_two_steps_share_the_cores():
    run = Pass(cpus=4)
    first, second = TunedParallelism(run), TunedParallelism(run)
    for _ in range(3000):
        run.wait_timer.begin()
        run.now += 0.05 / first.parallelism + 0.05 / second.parallelism
        first.consumed(8)
        second.consumed(8)
        run.wait_timer.end()
    assert first.parallelism + second.parallelism <= 4
    assert first.parallelism * second.parallelism > 1


def test_a_failed_allocation_for_threads():
    run = Pass(cpus=4)
    tuner = TunedParallelism(run)
    work(run, tuner, lambda n: 0.1 / n, 1000)
    tuner.allocation_failed()
    assert tuner.parallelism == 3


@given(data=st.data())
def test_a_number_changes_so_often_at_most(data):
    """Costs are drawn: whatever they are, changes come to an end."""
    climber = HillClimber(1, lambda value: min(2 * value, 64), lambda *_: 0.1)
    costs = data.draw(st.lists(st.sampled_from([0.0, 1.0, 2.0, 4.0]), max_size=40))
    changes, last = 0, 1
    for cost in (*costs, *islice(cycle(costs or [0.0]), 2000)):
        waiting = cost > 0
        if climber.is_trying:
            climber.end_trial(cost, waiting=waiting)
        else:
            value = climber.propose(cost, climber.value - 1, waiting=waiting)
            if value != climber.value:
                climber.begin_trial(value, cost)
        changes += climber.value != last
        last = climber.value
        assert 1 <= last <= 64
    assert changes <= 200


def test_the_budget_is_half_of_what_is_free():
    pool = memory.Pool(limit="64MiB")
    block = pool.allocate(16 * MIB)
    assert free_bytes(pool) == 48 * MIB
    budget = Budget(pool, Options())
    assert budget.ram_bytes == 24 * MIB
    block.free()
    assert budget.ram_bytes == 24 * MIB
    assert budget.cpus == cores()
    assert 0 < free_bytes(memory.Pool()) < 1 << 50


def test_threads_of_the_pass():
    run = Pass(size=3)
    one, two = Fixed(0), Fixed(0)
    assert run.budget.reserve_threads(one, 2) == 2
    assert run.budget.reserve_threads(two, 2) == 1
    assert run.budget.reserve_threads(one, 8) == 2
    del one
    assert run.budget.reserve_threads(two, 8) == 3
    assert Pass().budget.reserve_threads(two, 8) == 8


def test_one_trial_at_a_time():
    budget = Pass().budget
    one, two = Fixed(0), Fixed(0)
    assert budget.begin_trial(one)
    assert not budget.begin_trial(two)
    budget.end_trial(kept=True)
    assert budget.changes == 1
    assert budget.begin_trial(two)
    del two
    assert budget.begin_trial(one)  # who was trying is gone


def test_the_wait_timer_counts_while_the_consumer_waits():
    run = Pass()
    run.wait_timer.end()
    assert run.wait_timer.seconds() == 0
    run.wait_timer.begin()
    run.now = 1.5
    assert run.wait_timer.seconds() == 1.5
    run.wait_timer.end()
    run.now = 9.0
    assert run.wait_timer.seconds() == 1.5


def test_a_pass_goes_on_where_the_last_one_was():
    tuned_state = {"climber": (2, 1, 0.5, 1)}
    assert TunedParallelism(Pass(cpus=2), tuned_state).parallelism == 2
    assert TunedParallelism(Pass(cpus=1), tuned_state).parallelism == 1
    assert TunedParallelism(Pass(cpus=2)).parallelism == 1


def test_passes_over_a_dataset_share_what_they_learn():
    data = Dataset.from_tensor_slices(np.zeros((300_000, 4)))
    data = data.map(lambda row: row + 1, num_parallel_calls=AUTOTUNE)
    data = data.batch(1000).prefetch(AUTOTUNE)
    for _ in range(20):  # until a period was over
        for _ in data:
            pass
        if "climber" in data._node.tuned_state.get("map+batch", {}):
            break
    assert data._node.tuned_state["map+batch"]["climber"][0] >= 1
    assert data.batch(2)._node.tuned_state == {}


# Slabs, which one thread drops while another fills and trims them.


@pytest.fixture
def slab_pool():
    pool = memory.Pool(limit=1 << 20)
    yield pool
    pool.check()


def filled_slab(rows, count):
    """Return a slab for some rows, its layout and the ones that were added."""
    layout = Layout(ROW)
    slab = Slab.made(layout.nbytes, rows)
    return slab, layout, [slab.add(i, ROW + i, layout) for i in range(count)]


@pytest.mark.parametrize("call", ["trim", "add"])
def test_a_slab_that_is_dropped_at_any_line_of_a_call_holds_nothing(slab_pool, call):
    number, ended = 0, False
    while not ended:
        number += 1
        with memory.numpy_allocator(slab_pool):
            slab, layout, rows = filled_slab(8, 3)
        lines, freed = 0, None

        def trace(frame, event, _, slab=slab, number=number):
            nonlocal lines, freed
            if frame.f_code not in (Slab.trim.__code__, Slab.add.__code__):
                return None
            lines += event == "line"
            if lines == number and freed is None:
                freed = slab.drop()
            return trace

        held = slab.nbytes
        assert held == slab_pool.stats().current_bytes == 8 * 64
        with memory.numpy_allocator(slab_pool), traced(trace):
            slab.trim() if call == "trim" else slab.add(3, ROW, layout)
        ended = freed is None
        if not ended:
            assert freed in (8 * 64, 3 * 64)  # before it was trimmed, or afterwards
            assert slab.nbytes == slab.drop() == slab_pool.stats().current_bytes == 0
            assert [row.read() for row in rows] == [None] * 3
    assert number > 5


def test_elements_of_a_sealed_slab_are_views_that_stay_read_only(slab_pool):
    element = {"x": np.float32([[1, 2]]), "n": np.int64(3), "t": np.bytes_(b"a\0")}
    element |= {"none": np.zeros((0, 2)), "at": np.array("2026-12-01", "M8[D]")}
    layout = Layout(element)
    with memory.numpy_allocator(slab_pool):
        slab = Slab.made(layout.nbytes, 4)
        row = slab.add(0, element, layout)
        slab.trim()
        copied = row.read()
        assert not np.shares_memory(copied["x"], row.read()["x"])
        slab.seal()
        given, again = row.read(), row.read()
    for name, value in element.items():
        np.testing.assert_array_equal(given[name], value)
        assert given[name].dtype == np.asarray(value).dtype
        assert given[name].shape == np.shape(value)
    for name in ("x", "at"):
        assert np.shares_memory(given[name], again[name])
        assert memory.owner_of(given[name]) is slab_pool
    for name in ("x", "at"):
        with pytest.raises(ValueError, match="WRITEABLE"):
            given[name].flags.writeable = True
    del copied, given, again, value
    gc.collect()
    assert slab_pool.stats().current_bytes == slab.nbytes


def test_elements_of_one_shape_share_their_layout():
    def generate():
        for number in range(200):
            yield np.zeros((1 + number % 5, 2), np.float32)

    signature = TensorSpec((None, 2), np.float32)
    gc.collect()
    before = layouts()
    dataset = Dataset.from_generator(generate, output_signature=signature).cache()
    assert len(list(dataset)) == len(list(dataset)) == 200
    assert layouts() - before == 5


def layouts():
    return sum(type(each) is Layout for each in gc.get_objects())
