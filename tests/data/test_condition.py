"""Waiting for a change of what a lock guards, wherever a signal interrupts."""

from __future__ import annotations

import random
import signal
import threading
from contextlib import suppress

import pytest
from calls import Call, data_threads, settle

from memcfg.data import Dataset

# Waiting by itself, which a pass does in many threads at once.
from memcfg.data.engine._condition import Condition


@pytest.fixture
def lock():
    return threading.RLock()


def test_who_waits_is_woken_when_it_is_so(lock):
    condition, found = Condition(lock), []
    waiting = Call(condition.wait_for, lambda: found)
    assert waiting.waits
    condition.notify_all()
    assert waiting.waits
    found.append(1)
    condition.notify_all()
    assert waiting.result() is True


def test_all_are_woken(lock):
    condition, found = Condition(lock), []
    waiting = [Call(condition.wait_for, lambda: found) for _ in range(3)]
    assert all(one.waits for one in waiting)
    found.append(1)
    condition.notify_all()
    assert [one.result() for one in waiting] == [True] * 3


def test_a_timeout_ends_and_leaves_nothing(lock):
    condition = Condition(lock)
    assert condition.wait_for(lambda: False, 0.01) is False
    assert condition._waiters == []


def test_nobody_holds_the_lock_while_it_waits(lock):
    condition, found = Condition(lock), []
    waiting = Call(condition.wait_for, lambda: found)
    assert waiting.waits
    with lock:
        found.append(1)
        condition.notify_all()
    assert waiting.result() is True


def test_a_finalizer_may_notify_in_a_thread_that_holds_the_lock(lock):
    condition = Condition(lock)

    def is_over():
        condition.notify_all()
        return True

    assert condition.wait_for(is_over) is True


def pipelines():
    """Each thread is there after the first element: `Thread.start` has conditions."""
    numbers = Dataset.range(10**5)
    return {
        "prefetch": numbers.batch(4).prefetch(2),
        "map": numbers.map(lambda x: x + 1, num_parallel_calls=1),
        "map and batch": numbers.map(lambda x: x + 1, num_parallel_calls=1).batch(4),
        "interleave": numbers.interleave(
            lambda x: Dataset.range(9), cycle_length=2, num_parallel_calls=1
        ),
    }


@pytest.fixture
def interrupts():
    """Make interrupts of the main thread, some time from now on."""
    before = signal.signal(signal.SIGALRM, signal.default_int_handler)
    yield lambda seconds: signal.setitimer(signal.ITIMER_REAL, seconds)
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, before)


@pytest.mark.parametrize("name", pipelines())
def test_an_interrupt_at_any_point_ends_the_threads(name, interrupts, tenths):
    """Ctrl-C in `threading.Condition` left its lock held, and the threads with it."""
    times = random.Random(5)
    for _ in range(20 * tenths):
        iterator = iter(pipelines()[name])
        next(iterator)  # the threads have been started
        with suppress(KeyboardInterrupt):
            try:
                interrupts(times.uniform(1e-5, 2e-3))
                for _ in iterator:
                    pass
            finally:
                interrupts(0)
        del iterator
        assert settle(lambda: not data_threads())


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
