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

# Threads that run tasks, without a pipeline that would hide their order.
from memcfg.data.engine._thread_pool import ThreadPool
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
    threads = ThreadPool(3, "w", NONE)
    futures = [threads.submit(partial(pow, number, 2)) for number in range(100)]
    assert [future.result() for future in reversed(futures)] == [
        number**2 for number in reversed(range(100))
    ]
    assert len(names()) <= 3
    assert threads.stop(wait=True)
    assert gone()


def test_tasks_begin_in_the_order_in_which_they_were_given():
    begun = []
    threads = ThreadPool(1, "w", NONE)
    futures = [threads.submit(partial(begun.append, number)) for number in range(50)]
    futures[-1].result()
    assert begun == list(range(50))
    threads.stop(wait=True)


def test_no_thread_starts_before_there_is_something_to_do():
    threads = ThreadPool(5, "w", NONE)
    assert names() == []
    threads.submit(int).result()
    assert len(names()) == 1
    threads.stop(wait=True)


def test_more_threads_start_and_too_many_leave_when_the_count_changes():
    threads = ThreadPool(1, "w", NONE)
    meet = threading.Barrier(3, timeout=60)
    threads.size = 3
    for future in [threads.submit(meet.wait) for _ in range(3)]:
        future.result()
    assert len(names()) == 3
    threads.size = 1
    end = time.monotonic() + 10
    while len(names()) > 1 and time.monotonic() < end:
        time.sleep(0.01)
    assert len(names()) == 1
    assert threads.submit(lambda: 7).result() == 7
    threads.stop(wait=True)


@pytest.mark.parametrize("kind", [ValueError, KeyboardInterrupt, SystemExit])
def test_what_a_task_raises_is_raised_where_it_is_asked_for(kind):
    boom = kind("boom")

    def fail():
        raise boom

    threads = ThreadPool(1, "w", NONE)
    future, after = threads.submit(fail), threads.submit(lambda: 1)
    assert after.result() == 1
    with pytest.raises(kind) as caught:
        future.result()
    assert caught.value is boom
    threads.stop(wait=True)


def test_a_stop_iteration_is_no_end():
    threads = ThreadPool(1, "w", NONE)
    future = threads.submit(lambda: next(iter(())))
    with pytest.raises(RuntimeError, match="raised StopIteration"):
        future.result()
    threads.stop(wait=True)


def test_the_first_that_is_done_is_found():
    hold = threading.Event()
    threads = ThreadPool(2, "w", NONE)
    slow, quick = threads.submit(hold.wait), threads.submit(int)
    assert threads.first_done([slow, quick]) is quick
    hold.set()
    assert slow.result()
    assert threads.first_done([slow, quick]) is slow
    threads.stop(wait=True)


def test_stopping_drops_what_waits_and_wakes_who_waits():
    hold, begun, done = threading.Event(), threading.Event(), []

    def act():
        begun.set()
        hold.wait(60)

    threads = ThreadPool(1, "w", NONE)
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


def test_threads_end_when_nobody_refers_to_them():
    threads = ThreadPool(2, "w", NONE)
    threads.submit(int).result()
    del threads
    gc.collect()
    assert gone()


def test_results_are_released():
    pool = Pool(limit="1MiB", name="small")
    threads = ThreadPool(1, "w", partial(numpy_allocator, pool))
    future = threads.submit(lambda: np.ones(1000))
    assert future.result().sum() == 1000
    assert pool.stats().current_bytes == 0
    with pytest.raises(ResourceExhaustedError):
        threads.submit(lambda: np.ones(2**20)).result()
    assert threads.submit(lambda: np.ones(1000)).result().sum() == 1000
    threads.stop(wait=True)
    gc.collect()
    assert pool.stats().current_bytes == 0


def test_the_end_of_the_interpreter_does_not_wait_for_long():
    script = (
        "import time, contextlib\n"
        "from memcfg.data.engine._thread_pool import ThreadPool\n"
        "threads = ThreadPool(2, 'w', contextlib.nullcontext)\n"
        "futures = [threads.submit(lambda: time.sleep(100)) for _ in range(3)]\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, timeout=60, check=True
    )
    assert done.stderr == b""


def test_a_queue_may_be_closed_while_its_thread_starts(monkeypatch):
    """A thread that starts may run the finalizer of whom it works for."""
    start = threading.Thread.start
    threads = ThreadPool(1, "w", NONE)

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
    assert gone()
