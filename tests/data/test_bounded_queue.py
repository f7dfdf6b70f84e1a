"""The queue between a thread and its consumer: order, waiting, ends."""

from __future__ import annotations

import gc
import os
import signal
import sys
import threading
import time
import weakref
from collections import deque

import pytest
from calls import SOON, Call
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

# Both ends of a queue, one of which a pass keeps to its thread.
from memcfg.data.engine import _producer
from memcfg.data.engine._producer import BoundedQueue, FixedDepth


def alive() -> bool:
    return True


def dead() -> bool:
    return False


class Thing:
    """Something that can be referred to weakly."""


@pytest.fixture
def queue():
    return BoundedQueue(FixedDepth(2), "a queue")


def test_items_come_in_order(queue):
    for item in (1, None, "3"):
        queue.put(item)
    assert [queue.get(alive) for _ in range(3)] == [1, None, "3"]
    assert queue.delivered == 3


def test_there_is_space_below_the_capacity(queue):
    assert queue.wait_until_not_full()
    queue.put(1)
    assert queue.wait_until_not_full()
    queue.put(2)
    assert len(queue) == 2
    waiting = Call(queue.wait_until_not_full)
    assert waiting.waits
    assert queue.get(alive) == 1
    assert waiting.result() is True


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


def test_a_consumer_waits_for_an_item(queue):
    late = Call(queue.get, alive)
    assert late.waits
    queue.put("item")
    assert late.result() == "item"


def test_the_end_comes_behind_the_items(queue):
    queue.put(1)
    queue.end()
    assert queue.get(alive) == 1
    for _ in range(3):
        with pytest.raises(StopIteration):
            queue.get(alive)


@pytest.mark.parametrize(
    "kind", [ValueError, KeyboardInterrupt, SystemExit, GeneratorExit, StopIteration]
)
def test_a_failure_comes_behind_the_items_and_once(queue, kind):
    failure = kind("told")
    queue.put(1)
    queue.end(failure)
    assert queue.get(alive) == 1
    assert queue.has_next(alive)
    with pytest.raises(kind) as caught:
        queue.get(alive)
    assert caught.value is failure
    assert not queue.has_next(alive)
    with pytest.raises(StopIteration):
        queue.get(alive)


def test_the_end_wakes_all_that_wait(queue):
    waiting = [Call(queue.get, alive) for _ in range(3)]
    asking = Call(queue.has_next, alive)
    assert all(each.waits for each in waiting)
    queue.end()
    assert asking.result() is False
    for each in waiting:
        with pytest.raises(StopIteration):
            each.result()


def test_a_failure_goes_to_one_of_those_that_wait(queue):
    waiting = [Call(queue.get, alive) for _ in range(3)]
    assert all(each.waits for each in waiting)
    queue.end(KeyError("told"))
    errors = []
    for each in waiting:
        with pytest.raises((KeyError, StopIteration)) as caught:
            each.result()
        errors.append(caught.type)
    assert sorted(errors, key=str) == sorted([KeyError] + [StopIteration] * 2, key=str)


def test_stopping_wakes_both_sides_and_drops_the_items(queue):
    things = [Thing(), Thing()]
    there = [weakref.ref(thing) for thing in things]
    for thing in things:
        queue.put(thing)
    del thing, things
    full = Call(queue.wait_until_not_full)
    unwanted = Call(queue.wait_until_wanted)
    assert full.waits
    queue.stop()
    assert full.result() is False
    assert unwanted.result() is False
    assert [each() for each in there] == [None, None]
    assert queue.stopped
    queue.put(1)
    queue.end(KeyError("nobody hears"))
    assert len(queue) == 0
    assert queue.has_next(alive) is False
    with pytest.raises(StopIteration):
        queue.get(alive)
    queue.stop()


def test_stopping_wakes_a_consumer(queue):
    waiting, asking = Call(queue.get, alive), Call(queue.has_next, alive)
    assert waiting.waits
    queue.stop()
    with pytest.raises(StopIteration):
        waiting.result()
    assert asking.result() is False


def test_asking_takes_nothing(queue):
    queue.put(1)
    assert queue.has_next(alive)
    assert queue.has_next(alive)
    assert (len(queue), queue.delivered) == (1, 0)
    assert queue.get(alive) == 1


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


def test_a_thread_that_exits_unexpectedly_is_noticed(queue, monkeypatch):
    monkeypatch.setattr(_producer, "_ALIVE", 0.01)
    for ask in (queue.get, queue.has_next):
        fresh = BoundedQueue(FixedDepth(1), "a queue")
        with pytest.raises(
            RuntimeError, match="the thread of a queue exited unexpectedly"
        ):
            getattr(fresh, ask.__name__)(dead)
        with pytest.raises(StopIteration):
            fresh.get(dead)


def test_what_a_dead_thread_made_is_handed_out_first(queue, monkeypatch):
    monkeypatch.setattr(_producer, "_ALIVE", 0.01)
    queue.put(1)
    assert queue.get(dead) == 1
    with pytest.raises(RuntimeError, match="exited unexpectedly"):
        queue.get(dead)


def test_a_thread_is_started_once(queue):
    started = []
    for _ in range(3):
        queue.start_once(lambda: started.append(True))
    assert started == [True]
    stopped = BoundedQueue(FixedDepth(1), "a queue")
    stopped.stop()
    stopped.start_once(lambda: started.append(True))
    assert started == [True]


def test_what_cannot_be_started_can_be_tried_again(queue):
    def fail():
        raise RuntimeError("can't start new thread")

    with pytest.raises(RuntimeError, match="new thread"):
        queue.start_once(fail)
    started = []
    queue.start_once(lambda: started.append(True))
    assert started


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


def test_a_finalizer_in_a_third_thread_does_not_wait_for_those_that_wait(queue):
    waiting = [Call(queue.get, alive) for _ in range(2)]
    assert all(each.waits for each in waiting)
    weakref.finalize(Thing(), queue.stop)  # at once
    for each in waiting:
        with pytest.raises(StopIteration):
            each.result()


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
def test_a_forked_child_is_told_and_never_waits(queue):
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
                except RuntimeError as told:
                    found = str(told)
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


def test_an_interrupted_consumer_can_go_on(queue):
    """Ctrl-C while it waits leaves the queue as it was."""

    def interrupt(*_):
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGUSR1, interrupt)
    try:
        timer = threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGUSR1))
        timer.start()
        with pytest.raises(KeyboardInterrupt):
            queue.get(alive)
        timer.join()
    finally:
        signal.signal(signal.SIGUSR1, before)
    wanted = Call(queue.wait_until_wanted)
    assert wanted.waits  # nobody waits any more
    queue.put(1)
    assert queue.get(alive) == 1
    queue.stop()
    assert wanted.result() is False


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


def test_several_producers_and_consumers_lose_nothing():
    sys.setswitchinterval(1e-5)
    try:
        queue = BoundedQueue(FixedDepth(3), "a queue")

        def produce(number):
            for item in range(200):
                assert queue.wait_until_not_full()
                queue.put((number, item))

        def consume():
            found = []
            while True:
                try:
                    found.append(queue.get(alive))
                except StopIteration:
                    return found

        consumers = [Call(consume) for _ in range(3)]
        producer = Call(produce, 0)
        producer.result()
        queue.end()
        found = [item for each in consumers for item in each.result()]
        assert sorted(found) == [(0, item) for item in range(200)]
    finally:
        sys.setswitchinterval(0.005)


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
        self.failure = KeyError("told") if fails else None
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


def test_a_queue_may_be_stopped_while_its_thread_starts(queue):
    """A thread that starts may run the finalizer of whom it works for."""
    stopping = []

    def start():
        stopping.append(Call(queue.stop))
        stopping[0].result()

    queue.start_once(start)
    assert queue.stopped
