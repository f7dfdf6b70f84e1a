"""Threads that do what they are given: order, waiting, and every way to end."""

from __future__ import annotations

import contextlib
import gc
import subprocess
import sys
import threading
import time
from functools import partial

import numpy as np
import pytest

from memcfg.data.engine._thread_pool import Workers
from memcfg.errors import ResourceExhaustedError
from memcfg.memory import Pool, numpy_allocator

NONE = contextlib.nullcontext


def names():
    return [one.name for one in threading.enumerate() if "memcfg-data-w" in one.name]


def gone():
    end = time.monotonic() + 10
    while names() and time.monotonic() < end:
        time.sleep(0.01)
    return not names()


def test_results_are_had_in_any_order():
    workers = Workers(3, "w", NONE)
    tickets = [workers.submit(partial(pow, number, 2)) for number in range(100)]
    assert [ticket.result() for ticket in reversed(tickets)] == [
        number**2 for number in reversed(range(100))
    ]
    assert len(names()) <= 3
    assert workers.stop(wait=True)
    assert gone()


def test_tasks_begin_in_the_order_in_which_they_were_given():
    begun = []
    workers = Workers(1, "w", NONE)
    tickets = [workers.submit(partial(begun.append, number)) for number in range(50)]
    tickets[-1].result()
    assert begun == list(range(50))
    workers.stop(wait=True)


def test_no_thread_starts_before_there_is_something_to_do():
    workers = Workers(5, "w", NONE)
    assert names() == []
    workers.submit(int).result()
    assert len(names()) == 1
    workers.stop(wait=True)


def test_more_threads_start_and_too_many_leave_when_the_count_changes():
    workers = Workers(1, "w", NONE)
    meet = threading.Barrier(3, timeout=60)
    workers.count = 3
    for ticket in [workers.submit(meet.wait) for _ in range(3)]:
        ticket.result()
    assert len(names()) == 3
    workers.count = 1
    end = time.monotonic() + 10
    while len(names()) > 1 and time.monotonic() < end:
        time.sleep(0.01)
    assert len(names()) == 1
    assert workers.submit(lambda: 7).result() == 7
    workers.stop(wait=True)


@pytest.mark.parametrize("kind", [ValueError, KeyboardInterrupt, SystemExit])
def test_what_a_task_raises_is_raised_where_it_is_asked_for(kind):
    boom = kind("boom")

    def fail():
        raise boom

    workers = Workers(1, "w", NONE)
    ticket, after = workers.submit(fail), workers.submit(lambda: 1)
    assert after.result() == 1
    with pytest.raises(kind) as caught:
        ticket.result()
    assert caught.value is boom
    workers.stop(wait=True)


def test_a_stop_iteration_is_no_end():
    workers = Workers(1, "w", NONE)
    ticket = workers.submit(lambda: next(iter(())))
    with pytest.raises(RuntimeError, match="raised StopIteration"):
        ticket.result()
    workers.stop(wait=True)


def test_the_first_that_is_done_is_found():
    hold = threading.Event()
    workers = Workers(2, "w", NONE)
    slow, quick = workers.submit(hold.wait), workers.submit(int)
    assert workers.first([slow, quick]) is quick
    hold.set()
    assert slow.result()
    assert workers.first([slow, quick]) is slow
    workers.stop(wait=True)


def test_stopping_drops_what_waits_and_wakes_who_waits():
    hold, begun, done = threading.Event(), threading.Event(), []

    def act():
        begun.set()
        hold.wait(60)

    workers = Workers(1, "w", NONE)
    workers.submit(act)
    second = workers.submit(partial(done.append, 1))
    assert begun.wait(60)
    threading.Timer(0.1, lambda: workers.stop(wait=False)).start()
    with pytest.raises(StopIteration):
        second.result()
    with pytest.warns(RuntimeWarning, match="still at work after 0.05 s"):
        assert not workers.stop(wait=True, patience=0.05)
    hold.set()
    assert workers.stop(wait=True)
    assert done == []
    with pytest.raises(StopIteration):
        workers.submit(int).result()


def test_threads_end_when_nobody_refers_to_them():
    workers = Workers(2, "w", NONE)
    workers.submit(int).result()
    del workers
    gc.collect()
    assert gone()


def test_results_are_let_go():
    pool = Pool(limit="1MiB", name="small")
    workers = Workers(1, "w", partial(numpy_allocator, pool))
    ticket = workers.submit(lambda: np.ones(1000))
    assert ticket.result().sum() == 1000
    assert pool.stats().current_bytes == 0
    with pytest.raises(ResourceExhaustedError):
        workers.submit(lambda: np.ones(2**20)).result()
    assert workers.submit(lambda: np.ones(1000)).result().sum() == 1000
    workers.stop(wait=True)
    gc.collect()
    assert pool.stats().current_bytes == 0


def test_the_end_of_the_interpreter_does_not_wait_for_long():
    script = (
        "import time, contextlib\n"
        "from memcfg.data.engine._thread_pool import Workers\n"
        "workers = Workers(2, 'w', contextlib.nullcontext)\n"
        "tickets = [workers.submit(lambda: time.sleep(100)) for _ in range(3)]\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, timeout=60, check=True
    )
    assert done.stderr == b""


def test_a_desk_may_be_closed_while_its_thread_starts(monkeypatch):
    """A thread that starts may run the finalizer of whom it works for."""
    start = threading.Thread.start
    workers = Workers(1, "w", NONE)

    def close_first(thread):
        closing = threading.Thread(target=workers._desk.close, daemon=True)
        start(closing)
        closing.join(10)
        assert not closing.is_alive()
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", close_first)
    with pytest.raises(StopIteration):
        workers.submit(int).result()
    assert workers.stop(wait=True)
    assert gone()
