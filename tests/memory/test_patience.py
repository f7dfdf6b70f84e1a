"""A pool that waits for other threads, and one that gives back what is not used."""

from __future__ import annotations

import signal
import threading
import time

import pytest

from memcfg import memory
from memcfg.errors import ResourceExhaustedError

MIB = 2**20


@pytest.mark.parametrize("wait", [30, 1e9, 1e300])
def test_a_block_that_another_thread_frees_in_time_is_granted(wait):
    pool = memory.Pool(limit="4MiB", retry_seconds=wait)
    held = pool.allocate(3 * MIB)
    threading.Timer(0.1, held.free).start()
    begin = time.monotonic()
    with pool.allocate(3 * MIB):
        assert pool.stats().current_bytes == 3 * MIB
    assert time.monotonic() - begin < 15


@pytest.mark.parametrize("between", [lambda pool: pool, memory.statistics])
def test_a_pool_below_another_does_not_wait(between):
    """The one above asks with its lock held: nobody could free what it waits for."""
    below = memory.Pool(limit="4MiB", retry_seconds=30)
    above = memory.Pool(between(below))
    with above.allocate(3 * MIB):
        begin = time.monotonic()
        with pytest.raises(ResourceExhaustedError):
            above.allocate(3 * MIB)
        assert time.monotonic() - begin < 15
    above.check()


def test_a_wait_heeds_signals():
    pool = memory.Pool(limit="4MiB", retry_seconds=1e9)

    def interrupt(_signal, _frame):
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        with pool.allocate(3 * MIB):
            signal.setitimer(signal.ITIMER_REAL, 0.1)
            with pytest.raises(KeyboardInterrupt):
                pool.allocate(3 * MIB)
            assert pool.stats().allocation_count == 1
    finally:
        signal.signal(signal.SIGALRM, before)
    pool.check()


def test_what_is_no_request_does_not_wait():
    pool = memory.Pool(limit="4MiB", retry_seconds=1e9)
    for bad in (0, -1, "1KiB"):
        with pytest.raises((TypeError, ValueError)):
            pool.allocate(bad)


def test_a_pool_that_waits_in_vain_refuses_after_the_wait():
    pool = memory.Pool(limit="4MiB", retry_seconds=0.2)
    assert pool.retry_seconds == 0.2
    with pool.allocate(3 * MIB):
        begin = time.monotonic()
        with pytest.raises(ResourceExhaustedError):
            pool.allocate(3 * MIB)
        assert time.monotonic() - begin >= 0.2
    pool.check()


def test_by_default_nothing_waits():
    assert memory.Pool().retry_seconds == 0


@pytest.mark.parametrize("wait", [-1, -1e-9, float("nan"), float("inf"), -float("inf")])
def test_what_is_no_wait(wait):
    with pytest.raises(ValueError, match="seconds"):
        memory.Pool(retry_seconds=wait)


def test_what_is_used_again_stays_and_what_is_not_goes_back():
    pool = memory.Pool()
    with pool.allocate(64 * MIB), pool.allocate(64):  # the second keeps them apart
        used = pool.allocate(8 * MIB)
    used.free()
    assert pool.decay() == 0  # the first call only looks
    before = pool.stats().reserved_bytes
    given = pool.decay()
    assert given >= 64 * MIB
    assert pool.stats().reserved_bytes == before - given
    pool.check()
    with pool.allocate(8 * MIB):
        pass
    assert pool.decay() == 0  # used since the last call
    assert pool.decay() > 0
    assert pool.decay() == 0
    pool.check()


@pytest.mark.parametrize(
    "below", [memory.system, lambda: memory.limiting(memory.Pool(), "1GiB")]
)
def test_decay_ends_where_only_whole_blocks_can_go(below):
    pool = memory.Pool(below())
    with pool.allocate(2**16):
        assert pool.decay() == 0
        assert pool.decay() == 0
    pool.decay()
    pool.check()
