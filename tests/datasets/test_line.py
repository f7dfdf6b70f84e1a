"""The line between a thread and its consumer: order, waiting, ends."""

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
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from memcfg.data.engine import _bounded_queue
from memcfg.data.engine._bounded_queue import FixedDepth, Line


def alive() -> bool:
    return True


def dead() -> bool:
    return False


class Thing:
    """Something that can be referred to weakly."""


@pytest.fixture
def line():
    return Line(FixedDepth(2), "a line")


def test_items_come_in_order(line):
    for item in (1, None, "3"):
        line.put(item)
    assert [line.get(alive) for _ in range(3)] == [1, None, "3"]
    assert line.taken == 3


def test_there_is_room_below_the_capacity(line):
    assert line.wait_for_room()
    line.put(1)
    assert line.wait_for_room()
    line.put(2)
    assert len(line) == 2
    waiting = Call(line.wait_for_room)
    assert waiting.waits
    assert line.get(alive) == 1
    assert waiting.result() is True


def test_a_depth_that_grows_makes_room():
    class Growing(FixedDepth):
        def consumed(self, waiting, waited):
            self.capacity += 2

    line = Line(Growing(1), "a line")
    line.put(1)
    waiting = Call(line.wait_for_room)
    assert waiting.waits
    line.get(alive)
    assert waiting.result()
    for item in range(2):
        line.put(item)
    assert line.wait_for_room()


def test_the_depth_hears_what_waited_and_how_long():
    heard = []

    class Curious(FixedDepth):
        def consumed(self, waiting, waited):
            heard.append((waiting, waited > 0))

    line = Line(Curious(5), "a line")
    for item in range(2):
        line.put(item)
    for _ in range(2):
        line.get(alive)
    late = Call(line.get, alive)
    assert late.waits
    line.put(3)
    late.result()
    assert heard == [(2, False), (1, False), (0, True)]
    assert line.waited > 0.01


def test_a_consumer_waits_for_an_item(line):
    late = Call(line.get, alive)
    assert late.waits
    line.put("item")
    assert late.result() == "item"


def test_the_end_comes_behind_the_items(line):
    line.put(1)
    line.end()
    assert line.get(alive) == 1
    for _ in range(3):
        with pytest.raises(StopIteration):
            line.get(alive)


@pytest.mark.parametrize(
    "kind", [ValueError, KeyboardInterrupt, SystemExit, GeneratorExit, StopIteration]
)
def test_a_failure_comes_behind_the_items_and_once(line, kind):
    failure = kind("told")
    line.put(1)
    line.end(failure)
    assert line.get(alive) == 1
    assert line.has_next(alive)
    with pytest.raises(kind) as caught:
        line.get(alive)
    assert caught.value is failure
    assert not line.has_next(alive)
    with pytest.raises(StopIteration):
        line.get(alive)


def test_the_end_wakes_all_that_wait(line):
    waiting = [Call(line.get, alive) for _ in range(3)]
    asking = Call(line.has_next, alive)
    assert all(each.waits for each in waiting)
    line.end()
    assert asking.result() is False
    for each in waiting:
        with pytest.raises(StopIteration):
            each.result()


def test_a_failure_goes_to_one_of_those_that_wait(line):
    waiting = [Call(line.get, alive) for _ in range(3)]
    assert all(each.waits for each in waiting)
    line.end(KeyError("told"))
    errors = []
    for each in waiting:
        with pytest.raises((KeyError, StopIteration)) as caught:
            each.result()
        errors.append(caught.type)
    assert sorted(errors, key=str) == sorted([KeyError] + [StopIteration] * 2, key=str)


def test_stopping_wakes_both_sides_and_drops_the_items(line):
    things = [Thing(), Thing()]
    there = [weakref.ref(thing) for thing in things]
    for thing in things:
        line.put(thing)
    del thing, things
    full = Call(line.wait_for_room)
    unwanted = Call(line.wait_until_wanted)
    assert full.waits
    line.stop()
    assert full.result() is False
    assert unwanted.result() is False
    assert [each() for each in there] == [None, None]
    assert line.stopped
    line.put(1)
    line.end(KeyError("nobody hears"))
    assert len(line) == 0
    assert line.has_next(alive) is False
    with pytest.raises(StopIteration):
        line.get(alive)
    line.stop()


def test_stopping_wakes_a_consumer(line):
    waiting, asking = Call(line.get, alive), Call(line.has_next, alive)
    assert waiting.waits
    line.stop()
    with pytest.raises(StopIteration):
        waiting.result()
    assert asking.result() is False


def test_asking_takes_nothing(line):
    line.put(1)
    assert line.has_next(alive)
    assert line.has_next(alive)
    assert (len(line), line.taken) == (1, 0)
    assert line.get(alive) == 1


def test_an_item_is_wanted_when_none_is_there_and_somebody_waits(line):
    line.put(1)
    wanted = Call(line.wait_until_wanted)
    assert wanted.waits
    assert line.get(alive) == 1
    assert wanted.waits
    asking = Call(line.has_next, alive)
    assert wanted.result() is True
    line.put(2)
    assert asking.result() is True


def test_a_thread_that_dies_without_a_word_is_noticed(line, monkeypatch):
    monkeypatch.setattr(_bounded_queue, "_LOOK", 0.01)
    for ask in (line.get, line.has_next):
        fresh = Line(FixedDepth(1), "a line")
        with pytest.raises(
            RuntimeError, match="the thread of a line died without a word"
        ):
            getattr(fresh, ask.__name__)(dead)
        with pytest.raises(StopIteration):
            fresh.get(dead)


def test_what_a_dead_thread_made_is_handed_out_first(line, monkeypatch):
    monkeypatch.setattr(_bounded_queue, "_LOOK", 0.01)
    line.put(1)
    assert line.get(dead) == 1
    with pytest.raises(RuntimeError, match="died without a word"):
        line.get(dead)


def test_a_thread_is_started_once(line):
    started = []
    for _ in range(3):
        line.begin(lambda: started.append(True))
    assert started == [True]
    stopped = Line(FixedDepth(1), "a line")
    stopped.stop()
    stopped.begin(lambda: started.append(True))
    assert started == [True]


def test_what_cannot_be_started_can_be_tried_again(line):
    def fail():
        raise RuntimeError("can't start new thread")

    with pytest.raises(RuntimeError, match="new thread"):
        line.begin(fail)
    started = []
    line.begin(lambda: started.append(True))
    assert started


def test_finalizers_may_stop_it_while_its_lock_is_held():
    """The collector may run between any two instructions of the holder."""
    line = Line(FixedDepth(1), "a line")
    stopped = []

    class Nasty(FixedDepth):
        def consumed(self, waiting, waited):
            node = Thing()
            node.node = node
            weakref.finalize(node, lambda: (line.stop(), stopped.append(True)))
            del node
            gc.collect()

    line.depth = Nasty(1)
    line.put(1)
    assert Call(line.get, alive).result() == 1
    assert stopped
    assert line.stopped


def test_a_finalizer_in_a_third_thread_does_not_wait_for_those_that_wait(line):
    waiting = [Call(line.get, alive) for _ in range(2)]
    assert all(each.waits for each in waiting)
    weakref.finalize(Thing(), line.stop)  # at once
    for each in waiting:
        with pytest.raises(StopIteration):
            each.result()


@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="POSIX signals")
def test_a_signals_handler_may_stop_it_at_any_instruction():
    """Until the handler has run, items are handed out; afterwards the end."""
    for turn in range(200):
        line = Line(FixedDepth(10), "a line")
        for item in range(10):
            line.put(item)
        got = []
        before = signal.signal(signal.SIGALRM, lambda *_, line=line: line.stop())
        try:
            signal.setitimer(signal.ITIMER_REAL, 1e-6 * (turn + 1))
            while True:
                try:
                    got.append(line.get(alive))
                except StopIteration:
                    break
                if len(got) == 10:
                    line.end()
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, before)
        assert got == list(range(len(got)))


@pytest.mark.skipif(not hasattr(os, "fork"), reason="POSIX processes")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_forked_child_is_told_and_never_waits(line):
    line.put(1)
    holding, go_on = threading.Event(), threading.Event()

    def hold():
        with line._lock:
            holding.set()
            go_on.wait(SOON)

    held = Call(hold)
    holding.wait(SOON)
    child = os.fork()
    if child == 0:
        code = 1
        try:
            signal.alarm(SOON)
            for ask in (line.get, line.has_next):
                found = ""
                try:
                    ask(alive)
                except RuntimeError as told:
                    found = str(told)
                assert "in the process that was forked" in found
            line.stop()
            line.end()
            assert line.wait_for_room() is False
            assert len(line) == 0
            code = 0
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    go_on.set()
    held.result()
    assert line.get(alive) == 1


def test_an_interrupted_consumer_can_go_on(line):
    """Ctrl-C while it waits leaves the line as it was."""

    def interrupt(*_):
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGUSR1, interrupt)
    try:
        timer = threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGUSR1))
        timer.start()
        with pytest.raises(KeyboardInterrupt):
            line.get(alive)
        timer.join()
    finally:
        signal.signal(signal.SIGUSR1, before)
    wanted = Call(line.wait_until_wanted)
    assert wanted.waits  # nobody waits any more
    line.put(1)
    assert line.get(alive) == 1
    line.stop()
    assert wanted.result() is False


@given(st.integers(1, 5), st.lists(st.integers(0, 3), max_size=60), st.integers(0, 60))
def test_whatever_the_pace_all_items_come_once_and_in_order(capacity, pauses, stop_at):
    """Two threads, at random paces; the consumer may stop early."""
    line, items = Line(FixedDepth(capacity), "a line"), range(len(pauses))
    longest = 0

    def produce():
        nonlocal longest
        for item, pause in zip(items, pauses, strict=True):
            if not line.wait_for_room():
                break
            assert len(line) < capacity
            for _ in range(pause):
                time.sleep(0)
            line.put(item)
            longest = max(longest, len(line))
        line.end()

    producer, got = Call(produce), []
    while len(got) < stop_at and line.has_next(alive):
        got.append(line.get(alive))
    line.stop()
    producer.result()
    assert got == list(items)[:stop_at]
    assert longest <= capacity


def test_several_producers_and_consumers_lose_nothing():
    sys.setswitchinterval(1e-5)
    try:
        line = Line(FixedDepth(3), "a line")

        def produce(number):
            for item in range(200):
                assert line.wait_for_room()
                line.put((number, item))

        def consume():
            found = []
            while True:
                try:
                    found.append(line.get(alive))
                except StopIteration:
                    return found

        consumers = [Call(consume) for _ in range(3)]
        producer = Call(produce, 0)
        producer.result()
        line.end()
        found = [item for each in consumers for item in each.result()]
        assert sorted(found) == [(0, item) for item in range(200)]
    finally:
        sys.setswitchinterval(0.005)


class Model(RuleBasedStateMachine):
    """The line against a deque and two words; nothing here waits."""

    def __init__(self):
        super().__init__()
        self.line = Line(FixedDepth(3), "a line")
        self.items, self.state, self.failure = deque(), "running", None
        self.number = 0

    @precondition(lambda self: self.state == "running" and len(self.items) < 3)
    @rule()
    def put(self):
        assert self.line.wait_for_room()
        self.line.put(self.number)
        self.items.append(self.number)
        self.number += 1

    @precondition(lambda self: self.items or self.state != "running")
    @rule()
    def get(self):
        if self.items:
            assert self.line.get(alive) == self.items.popleft()
        elif self.failure is not None:
            with pytest.raises(KeyError) as caught:
                self.line.get(alive)
            assert caught.value is self.failure
            self.failure = None
        else:
            with pytest.raises(StopIteration):
                self.line.get(alive)

    @precondition(lambda self: self.items or self.state != "running")
    @rule()
    def has_next(self):
        assert self.line.has_next(alive) == bool(self.items or self.failure)

    @precondition(lambda self: self.state == "running")
    @rule(fails=st.booleans())
    def end(self, fails):
        self.failure = KeyError("told") if fails else None
        self.line.end(self.failure)
        self.state = "ended"

    @rule()
    def stop(self):
        if self.number % 5 == 4:  # rarely
            self.line.stop()
            self.items.clear()
            self.state, self.failure = "stopped", None

    @invariant()
    def agrees(self):
        assert len(self.line) == len(self.items)
        assert self.line.stopped == (self.state == "stopped")


TestModel = Model.TestCase


def test_a_line_may_be_stopped_while_its_thread_starts(line):
    """A thread that starts may run the finalizer of whom it works for."""
    stopping = []

    def start():
        stopping.append(Call(line.stop))
        stopping[0].result()

    line.begin(start)
    assert line.stopped
