"""The pool: a limit that holds, books that balance, errors that tell."""

from __future__ import annotations

import pickle
import threading

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from memcfg._core import Block, Pool, get_num_threads, set_num_threads
from memcfg.errors import ResourceExhaustedError
from memcfg.units import align_up


def test_block_is_aligned_and_rounded():
    pool = Pool()
    for nbytes in (1, 64, 65, 100_000):
        with pool.allocate(nbytes) as block:
            assert block.address % 64 == 0
            assert (block.nbytes, block.requested) == (align_up(nbytes), nbytes)
            assert memoryview(block).nbytes == block.nbytes
    assert pool.stats().current_bytes == 0


def test_stats_are_of_bytes_in_use():
    pool = Pool(4096, name="cpu")
    block = pool.allocate(100, owner="a")
    pool.allocate(1000, owner="b").free()
    stats = pool.stats()
    assert stats.current_bytes == stats.reserved_bytes == 128
    assert stats.requested_bytes == 100
    assert stats.peak_bytes == 128 + 1024
    assert stats.largest_free_bytes == 4096 - 128
    assert (stats.allocation_count, stats.limit_bytes) == (2, 4096)
    assert pool.owners() == {"a": 128}
    pool.reset_peak()
    assert pool.stats().peak_bytes == 128
    block.free()
    pool.check()


def test_no_limit_is_none():
    stats = Pool().stats()
    assert (stats.limit_bytes, stats.largest_free_bytes) == (None, None)


def test_refusal_carries_every_field_and_takes_nothing():
    pool = Pool(1000, name="/device:CPU:0")
    block = pool.allocate(500, owner="weights")
    before = pool.stats()
    with pytest.raises(ResourceExhaustedError) as caught:
        pool.allocate(449, owner="more")
    error = caught.value
    assert error.requested_bytes == 449
    assert error.in_use_bytes == block.nbytes == 512
    assert error.limit_bytes == 1000
    assert error.largest_free_bytes == 448
    assert error.device == "/device:CPU:0"
    assert error.owners == {"weights": 512}
    assert "memcfg.config.set_memory_limit" in error.hint
    assert pickle.loads(pickle.dumps(error)).owners == error.owners
    assert pool.stats() == before
    assert pool.allocate(448).nbytes == 448


@pytest.mark.parametrize("nbytes", [2**60, 2**63 - 1, 2**64 - 64, 2**64 - 1, 2**70])
@pytest.mark.parametrize("limit", [None, 4096])
def test_more_than_any_machine_has_is_refused(limit, nbytes):
    pool = Pool(limit)
    with pytest.raises(ResourceExhaustedError):
        pool.allocate(nbytes)
    assert pool.stats().current_bytes == pool.stats().peak_bytes == 0
    pool.check()


def test_system_refusal_says_so():
    pool = Pool()
    with pytest.raises(ResourceExhaustedError, match="The system refuses") as caught:
        pool.allocate(2**60)
    assert caught.value.limit_bytes is None
    assert caught.value.largest_free_bytes is None


def test_set_limit_gives_the_one_before_and_refuses_below_use():
    pool = Pool(4096)
    block = pool.allocate(1024)
    assert pool.set_limit(2048) == 4096
    with pytest.raises(ResourceExhaustedError, match="below the bytes in use"):
        pool.set_limit(1023)
    assert pool.limit == 2048
    assert pool.set_limit(1024) == 2048
    with pytest.raises(ResourceExhaustedError):
        pool.allocate(1)
    assert pool.set_limit(None) == 1024
    assert pool.limit is None
    assert pool.allocate(10_000).nbytes + block.nbytes == pool.stats().current_bytes


@pytest.mark.parametrize("limit", [0, -1, 2**64, 2**70])
def test_limits_that_are_none(limit):
    with pytest.raises(ValueError, match="positive"):
        Pool(limit)
    pool = Pool(64)
    with pytest.raises(ValueError, match="positive"):
        pool.set_limit(limit)
    assert pool.limit == 64


@pytest.mark.parametrize("value", ["4MiB", 1.5, True, float("nan"), [1]])
def test_what_is_no_size(value):
    with pytest.raises(TypeError, match="is an int, not"):
        Pool(value)
    with pytest.raises(TypeError, match="is an int, not"):
        Pool().allocate(value)
    with pytest.raises(TypeError, match="is an int, not"):
        Pool().set_limit(value)


@pytest.mark.parametrize("nbytes", [0, -1])
def test_no_bytes_cannot_be_allocated(nbytes):
    with pytest.raises(ValueError, match=r"at least one byte|negative"):
        Pool().allocate(nbytes)


def test_numpy_integers_are_sizes():
    assert Pool(np.int64(64)).allocate(np.uint8(10)).requested == 10


def test_block_frees_once():
    pool = Pool()
    block = pool.allocate(10)
    block.free()
    for use in (
        block.free,
        block.__enter__,
        lambda: block.address,
        lambda: block.nbytes,
        lambda: block.requested,
        lambda: memoryview(block),
    ):
        with pytest.raises(ValueError, match="freed"):
            use()
    with pool.allocate(10) as inner:
        inner.free()  # and leaving the context is no second time
    assert pool.stats().current_bytes == 0


def test_exported_buffer_keeps_the_block():
    pool = Pool()
    block = pool.allocate(64)
    view = np.frombuffer(block, np.uint8)
    view[:] = 7
    with pytest.raises(BufferError, match="1 exported"):
        block.free()
    del block
    assert pool.stats().current_bytes == 64
    assert view.sum() == 7 * 64
    del view
    assert pool.stats().current_bytes == 0


def test_block_outlives_its_pool():
    block = Pool(64).allocate(64)
    memoryview(block)[0] = 1
    block.free()


def test_owners_may_have_any_name():
    pool = Pool(name="\udcff")
    blocks = [Block(pool, 1, owner=name) for name in ("ä", "\udcff", "", "a" * 1000)]
    assert pool.owners() == {block.owner: 64 for block in blocks}
    assert pool.name == "\udcff"


def test_threads_share_the_limit():
    pool = Pool(64 * 50)
    refused = []

    def work(lane: int) -> None:
        held = []
        for step in range(400):
            try:
                held.append(pool.allocate(1 + step % 300, owner=str(lane)))
            except ResourceExhaustedError:
                refused.append(lane)
                held.clear()

    threads = [threading.Thread(target=work, args=(lane,)) for lane in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert refused
    assert pool.stats().current_bytes == 0
    assert pool.stats().peak_bytes <= 64 * 50
    pool.check()


class PoolMachine(RuleBasedStateMachine):
    """A pool against a dict of what was written into its blocks."""

    def __init__(self) -> None:
        super().__init__()
        self.limit = 64 * 40
        self.pool = Pool(self.limit)
        self.blocks: list[tuple[Block, bytes]] = []
        self.peak = 0

    def in_use(self) -> int:
        return sum(len(pattern) for _, pattern in self.blocks)

    @rule(nbytes=st.integers(1, 64 * 30), pattern=st.integers(0, 255))
    def allocate(self, nbytes: int, pattern: int) -> None:
        fits = self.in_use() + align_up(nbytes) <= self.limit
        if not fits:
            with pytest.raises(ResourceExhaustedError) as caught:
                self.pool.allocate(nbytes)
            assert caught.value.largest_free_bytes < nbytes
            return
        block = self.pool.allocate(nbytes)
        memoryview(block)[:] = written = bytes([pattern]) * align_up(nbytes)
        self.blocks.append((block, written))
        self.peak = max(self.peak, self.in_use())

    @precondition(lambda self: self.blocks)
    @rule(place=st.integers(0, 1000), explicitly=st.booleans())
    def free(self, place: int, explicitly: bool) -> None:
        block, written = self.blocks.pop(place % len(self.blocks))
        assert bytes(block) == written
        if explicitly:
            block.free()

    @rule(limit=st.integers(1, 64 * 60))
    def set_limit(self, limit: int) -> None:
        if limit < self.in_use():
            with pytest.raises(ResourceExhaustedError):
                self.pool.set_limit(limit)
            return
        assert self.pool.set_limit(limit) == self.limit
        self.limit = limit

    @invariant()
    def books_balance(self) -> None:
        self.pool.check()
        stats = self.pool.stats()
        assert stats.current_bytes == self.in_use()
        assert stats.peak_bytes == self.peak
        assert stats.limit_bytes == self.pool.limit == self.limit
        assert stats.largest_free_bytes == (self.limit - self.in_use()) // 64 * 64


TestPoolMachine = PoolMachine.TestCase
TestPoolMachine.settings = settings(max_examples=50, deadline=None)


def test_threads_are_set_and_read_back():
    before = get_num_threads()
    assert before >= 1
    assert set_num_threads(1) == before
    assert get_num_threads() == 1
    assert set_num_threads(before) == 1
    for bad in (0, -1, 2**40):
        with pytest.raises(ValueError, match="at least 1"):
            set_num_threads(bad)
    with pytest.raises(TypeError):
        set_num_threads("2")
    assert get_num_threads() == before
