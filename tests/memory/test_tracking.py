"""Tracking: who holds what, and what happened, against models."""

from __future__ import annotations

import _thread
import gc
import inspect
import threading
import time
import weakref

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from resources import MAKERS

from memcfg import memory
from memcfg.errors import ResourceExhaustedError
from memcfg.units import align_up, format_bytes


def rows_of(trace):
    """Rows of a trace with names in place of numbers."""
    return [
        (int(action), int(address), int(nbytes), trace.tags[tag])
        for action, address, nbytes, tag in zip(
            trace.action, trace.address, trace.nbytes, trace.tag, strict=True
        )
    ]


def test_it_lists_who_holds_what():
    tracked = memory.tracking(memory.Pool(limit="1MiB", name="GPU:0"))
    before = time.time()
    first = tracked.allocate(100, tag="weights")
    second = tracked.allocate(5000)
    blocks = {block.address: block for block in tracked.live()}
    assert list(blocks) == sorted(blocks)
    assert set(blocks) == {first.address, second.address}
    block = blocks[first.address]
    assert (block.nbytes, block.rounded_bytes) == (100, 128)
    assert (block.tag, block.resource) == ("weights", "GPU:0")
    assert (block.thread, block.stack) == (threading.get_native_id(), ())
    assert 0 <= block.seconds <= time.time() - before + 1
    time.sleep(0.05)
    assert tracked.live()[0].seconds >= 0.05
    first.free()
    assert [block.nbytes for block in tracked.live()] == [5000]
    second.free()
    assert tracked.live() == []


def test_the_thread_is_the_one_that_took_it():
    tracked = memory.tracking(memory.system())
    held = []

    def take():
        held.append((threading.get_native_id(), tracked.allocate(64)))

    worker = threading.Thread(target=take)
    worker.start()
    worker.join()
    (number, block) = held[0]
    assert [each.thread for each in tracked.live()] == [number]
    block.free()
    assert tracked.trace().thread.tolist() == [number, threading.get_native_id()]


def test_a_trace_tells_what_happened():
    tracked = memory.tracking(memory.Pool(limit="1MiB"))
    before = time.time()
    first = tracked.allocate(100, tag="a")
    with pytest.raises(ResourceExhaustedError):
        tracked.allocate(2**21, tag="b")
    with pytest.raises(ValueError, match="least"):
        tracked.allocate(0)
    address = first.address
    first.free()
    trace = tracked.trace()
    assert rows_of(trace) == [
        (0, address, 100, "a"),
        (2, 0, 2**21, "b"),
        (1, address, 100, "a"),
    ]
    assert before - 1 <= trace.seconds[0] <= trace.seconds[-1] <= time.time() + 1
    assert trace.stack.tolist() == [-1] * 3
    tracked.clear()
    assert len(tracked.trace()) == 0
    assert tracked.trace().tags == ("",)


STEPS = st.lists(
    st.one_of(
        st.tuples(
            st.just("take"), st.integers(1, 5000), st.sampled_from(["", "a", "é"])
        ),
        st.tuples(st.just("give"), st.integers(0, 1000)),
        st.tuples(st.just("refuse"), st.integers(2**40, 2**41)),
        st.tuples(st.just("clear")),
    ),
    max_size=60,
)


class Story:
    """Everything that happened, and what of it must be remembered."""

    def __init__(self, most):
        self.most = most
        self.rows = []
        self.before = {}  # blocks that were out when the oldest row happened
        self.dropped = 0

    def note(self, row):
        self.rows.append(row)
        if len(self.rows) > self.most:
            self.dropped += 1
            self._pass(self.rows.pop(0))

    def _pass(self, row):
        if row[0] == 0:
            self.before[row[1]] = row
        elif row[0] == 1:
            del self.before[row[1]]

    def clear(self):
        for row in self.rows:
            self._pass(row)
        self.rows.clear()
        self.dropped = 0


@given(STEPS, st.integers(1, 30))
def test_a_history_agrees_with_a_model(steps, most):
    tracked = memory.tracking(memory.Pool(limit="1MiB"), max_entries=most)
    story, blocks = Story(most), []
    for kind, *numbers in steps:
        if kind == "take":
            nbytes, tag = numbers
            blocks.append(tracked.allocate(nbytes, tag=tag))
            story.note((0, blocks[-1].address, nbytes, tag))
        elif kind == "give" and blocks:
            block = blocks.pop(numbers[0] % len(blocks))
            story.note((1, block.address, block.requested, block.tag))
            block.free()
        elif kind == "refuse":
            with pytest.raises(ResourceExhaustedError):
                tracked.allocate(numbers[0])
            story.note((2, 0, numbers[0], ""))
        elif kind == "clear":
            tracked.clear()
            story.clear()
    trace = tracked.trace()
    assert rows_of(trace) == [*story.before.values(), *story.rows]
    assert (tracked.dropped, tracked.max_entries) == (story.dropped, most)
    assert (np.diff(trace.seconds) >= 0).all()
    assert {block.address for block in tracked.live()} == {
        block.address for block in blocks
    }
    tracked.check()


def here():
    return inspect.currentframe().f_back.f_lineno


def take_inside(tracked, lines):
    lines.append(here() + 1)
    return tracked.allocate(64)


def test_a_stack_is_the_calls_that_took_the_block():
    tracked = memory.tracking(memory.system(), stacks=True)
    lines = []
    lines.append(here() + 1)
    block = take_inside(tracked, lines)
    (listed,) = tracked.live()
    inner, outer, *rest = listed.stack
    assert inner == (__file__, lines[1], "take_inside")
    name = "test_a_stack_is_the_calls_that_took_the_block"
    assert outer == (__file__, lines[0], name)
    assert 0 < len(rest) < 98
    block.free()
    trace = tracked.trace()
    assert trace.stack.tolist() == [0, 0]  # a free has the stack of its block
    assert trace.stacks == (listed.stack,)
    assert tracked.stacks
    assert not memory.tracking(memory.system()).stacks


def test_a_refused_request_has_a_stack():
    tracked = memory.tracking(memory.Pool(limit=64), stacks=True)
    with pytest.raises(ResourceExhaustedError):
        tracked.allocate(65)
    trace = tracked.trace()
    assert trace.stacks[trace.stack[0]][0][2] == "test_a_refused_request_has_a_stack"


def test_a_deep_stack_is_its_innermost_hundred_calls():
    tracked = memory.tracking(memory.system(), stacks=True)

    def dive(depth):
        return tracked.allocate(64) if depth == 0 else dive(depth - 1)

    block = dive(150)
    (listed,) = tracked.live()
    assert len(listed.stack) == 100
    assert {function for _, _, function in listed.stack} == {dive.__qualname__}
    block.free()


def test_without_a_python_call_there_is_no_stack():
    tracked = memory.tracking(memory.system(), stacks=True)
    _thread.start_new_thread(tracked.allocate, (64,))  # called by C, not by Python
    deadline = time.monotonic() + 30
    while len(tracked.trace()) < 2 and time.monotonic() < deadline:
        time.sleep(0.001)
    trace = tracked.trace()
    assert trace.action.tolist() == [0, 1]
    assert trace.stack.tolist() == [-1, -1]
    assert trace.stacks == ()


def make_code():
    names = {}
    exec("def take(tracked):\n    return tracked.allocate(64)", names)
    return names.pop("take")  # nobody else has it


def test_code_lives_as_long_as_a_stack_has_it():
    tracked = memory.tracking(memory.system(), stacks=True, max_entries=3)
    take = make_code()
    code = weakref.ref(take.__code__)
    block = take(tracked)
    del take
    assert code() is not None
    block.free()
    assert tracked.trace().stacks[0][0][:2] == ("<string>", 2)
    tracked.clear()
    tracked.allocate(64).free()  # the next stack lets those go that nobody has
    assert code() is None

    take = make_code()
    code = weakref.ref(take.__code__)
    take(tracked).free()
    del take
    for _ in range(3):
        tracked.allocate(64).free()  # the history forgets it
    assert code() is None


def test_code_is_let_go_with_the_resource():
    tracked = memory.tracking(memory.system(), stacks=True)
    take = make_code()
    code = weakref.ref(take.__code__)
    block = take(tracked)
    del take
    block.free()
    del block, tracked
    gc.collect()
    assert code() is None


class Nuisance:
    """Allocates and frees when it is collected, wherever that happens."""

    def __init__(self, tracked):
        self.tracked = tracked
        self.block = tracked.allocate(64)
        self.myself = self

    def __del__(self):
        self.block.free()
        self.tracked.allocate(128).free()
        self.tracked.live()


def test_finalizers_may_run_while_a_stack_is_taken():
    tracked = memory.tracking(memory.Pool(), stacks=True, max_entries=50)
    before = gc.get_threshold()
    gc.set_threshold(1)
    try:
        for depth in range(200):
            Nuisance(tracked)
            (lambda: tracked.allocate(64 + depth).free())()
    finally:
        gc.set_threshold(*before)
    gc.collect()
    tracked.check()
    assert tracked.live() == []


def test_an_error_on_its_way_survives_a_stack():
    tracked = memory.tracking(memory.system(), stacks=True)

    def fail():
        try:
            raise KeyError("mine")
        finally:
            tracked.allocate(64).free()

    with pytest.raises(KeyError, match="mine"):
        fail()


def test_threads_take_stacks_of_their_own():
    tracked = memory.tracking(memory.Pool(), stacks=True, max_entries=500)
    wrong = []

    def work(number):
        def mine():
            return tracked.allocate(64 + number, tag=str(number))

        for _ in range(300):
            block = mine()
            for listed in tracked.live():
                if listed.tag == str(number):
                    wrong.extend([listed] * (listed.stack[0][2] != mine.__qualname__))
            block.free()

    threads = [threading.Thread(target=work, args=(number,)) for number in range(3)]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        tracked.trace()
        tracked.check()
    for thread in threads:
        thread.join()
    assert not wrong
    assert tracked.dropped == 3 * 600 - 500


@pytest.mark.parametrize("maker", MAKERS)
def test_it_stands_on_any_resource(maker):
    tracked = memory.tracking(MAKERS[maker](), stacks=True)
    with tracked.allocate(1000, tag="x") as block:
        assert [each.address for each in tracked.live()] == [block.address]
    assert rows_of(tracked.trace())[1][0] == 1


def test_with_stacks_it_does_not_stand_below_a_pool():
    tracked = memory.tracking(memory.system(), stacks=True)
    for below in (tracked, memory.statistics(tracked)):
        with pytest.raises(ValueError, match="on top of a pool"):
            memory.Pool(below)
    plain = memory.tracking(memory.system())
    with memory.Pool(plain).allocate(1000):
        assert len(plain.live()) == 1


def test_what_is_out_is_told_in_lines():
    tracked = memory.tracking(memory.Pool(name="a name of a device"), stacks=True)
    assert tracked.leaks() == ""
    blocks = [
        tracked.allocate(10 ** (place % 7 + 1), tag=f"owner number {place}")
        for place in range(30)
    ]
    lines = tracked.leaks().splitlines()
    assert len(lines) == 21
    assert all(len(line) <= 80 for line in lines)
    assert lines[0].split()[0] == "9.54"  # MiB
    assert "tracking.py:" in lines[0]
    total = sum(sorted(block.requested for block in blocks)[:10])
    assert lines[-1] == f"10 more blocks, {format_bytes(total)} together"
    assert len(tracked.leaks(3).splitlines()) == 4
    assert len(tracked.leaks(30).splitlines()) == 30
    with pytest.raises(ValueError, match="at least 0"):
        tracked.leaks(-1)
    for block in blocks:
        block.free()


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ({"max_entries": 0}, ValueError),
        ({"max_entries": -1}, ValueError),
        ({"max_entries": 2**62}, MemoryError),
        ({"max_entries": 2**100}, MemoryError),
        ({"max_entries": 1.0}, TypeError),
        ({"max_entries": True}, TypeError),
        ({"stacks": 1}, TypeError),
        ({"stacks": None}, TypeError),
    ],
)
def test_arguments_that_are_none(arguments, error):
    with pytest.raises(error):
        memory.tracking(memory.system(), **arguments)


@pytest.mark.parametrize("bad", [None, 3, "pool"])
def test_it_stands_on_a_resource(bad):
    with pytest.raises(TypeError):
        memory.tracking(bad)


def test_its_numbers_are_its_own():
    pool = memory.Pool(limit="1MiB")
    others = pool.allocate(5000)
    tracked = memory.tracking(pool)
    with tracked.allocate(100, tag="a"):
        stats = tracked.stats()
        assert (stats.current_bytes, stats.requested_bytes) == (align_up(100), 100)
        assert stats.metadata_bytes > pool.stats().metadata_bytes
        assert tracked.owners() == {"a": 128}
    others.free()
