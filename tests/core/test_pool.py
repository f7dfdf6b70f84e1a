"""The pool: a limit that holds, pages that come and go, errors that tell.

What a pool shares with every other resource stands in tests/memory.
"""

from __future__ import annotations

import pickle

import numpy as np
import pytest

from memcfg._core import (
    Pool,
    SimulatedResource,
    SystemResource,
    get_num_threads,
    set_num_threads,
)
from memcfg.errors import ResourceExhaustedError

PAGE = 4096
MIB = 2**20


def test_limit_is_on_rounded_bytes_and_exact():
    pool = Pool(limit=1000)
    block = pool.allocate(500)
    assert pool.allocate(448).nbytes + block.nbytes == 960
    block.free()
    pool.check()


def test_no_limit_is_none():
    stats = Pool().stats()
    assert (stats.limit_bytes, stats.largest_free_bytes) == (None, None)


def test_refusal_carries_every_field_and_takes_nothing():
    pool = Pool(limit=1000, name="/device:CPU:0")
    block = pool.allocate(500, tag="weights")
    before = pool.stats()
    with pytest.raises(ResourceExhaustedError) as caught:
        pool.allocate(449, tag="more")
    error = caught.value
    assert (error.requested_bytes, error.rounded_bytes) == (449, 512)
    assert error.in_use_bytes == block.nbytes == 512
    assert error.reserved_bytes == before.reserved_bytes == PAGE
    assert error.limit_bytes == 1000
    assert error.largest_free_bytes == before.largest_free_bytes
    assert 0 <= error.fragmentation <= 1
    assert error.device == "/device:CPU:0"
    assert error.owners == {"weights": 512}
    assert "memcfg.config.set_memory_limit" in error.hint
    assert pickle.loads(pickle.dumps(error)).owners == error.owners
    assert pool.stats() == before


def test_memory_comes_page_by_page_and_goes_back():
    pool = Pool(SimulatedResource("1GiB"), limit=16 * MIB)
    assert pool.stats().reserved_bytes == 0
    blocks = [pool.allocate(MIB) for _ in range(16)]
    assert pool.stats().reserved_bytes == 16 * MIB
    for block in blocks[::2]:
        block.free()
    stats = pool.stats()
    assert (stats.current_bytes, stats.reserved_bytes) == (8 * MIB, 16 * MIB)
    assert stats.fragmentation == 1 - 1 / 8
    large = pool.allocate(8 * MIB)  # no free chunk fits: it takes addresses, not memory
    assert pool.stats().reserved_bytes <= 16 * MIB + PAGE
    large.free()
    assert pool.trim(keep=MIB) >= 7 * MIB
    assert pool.trim() <= MIB
    assert pool.stats().reserved_bytes == 8 * MIB


def test_free_chunks_that_share_a_page_are_fragmentation_too():
    pool = Pool(limit=640 * 64)
    blocks = [pool.allocate(64) for _ in range(640)]
    del blocks[::2]
    stats = pool.stats()
    assert stats.current_bytes == 320 * 64
    assert stats.fragmentation > 0.9
    with pytest.raises(
        ResourceExhaustedError, match=r"Fragmentation (9.|100)%"
    ) as caught:
        pool.allocate(300 * 64)
    assert caught.value.fragmentation > 0.9
    blocks.clear()
    pool.allocate(640 * 64).free()
    assert pool.stats().fragmentation == 0


def test_without_growth_the_whole_limit_is_taken_at_once():
    device = SimulatedResource("64MiB")
    pool = Pool(device, limit="16MiB", growth=False)
    assert not pool.growth
    assert Pool().growth
    assert pool.stats().reserved_bytes == device.stats().reserved_bytes == 16 * MIB
    with pool.allocate(16 * MIB):
        assert device.stats().reserved_bytes <= 16 * MIB + PAGE
    with pytest.raises(ResourceExhaustedError):
        Pool(device, limit="49MiB", growth=False)
    with pytest.raises(ValueError, match="limit"):
        Pool(growth=False)


@pytest.mark.parametrize("below", [SystemResource, lambda: Pool(name="below")])
def test_a_pool_takes_whole_blocks_of_what_has_no_pages(below):
    upstream = below()
    pool = Pool(upstream)
    with pool.allocate(1000) as block:
        assert upstream.owners() == {"pool": pool.stats().reserved_bytes}
        memoryview(block)[:] = b"x" * 1000
    pool.trim()
    assert upstream.stats().current_bytes == pool.stats().reserved_bytes == 0
    assert (pool.upstream, pool.name) == (upstream, upstream.name)


def test_what_stands_below_must_be_a_resource():
    for bad in (4096, "64MiB", object()):
        with pytest.raises(TypeError):
            Pool(bad)


def test_numpy_integers_are_sizes():
    assert Pool(limit=np.int64(64)).allocate(np.uint8(10)).requested == 10


def test_any_text_is_a_name():
    assert Pool(name="\udcff").name == "\udcff"


def test_set_limit_gives_the_one_before_and_refuses_below_use():
    pool = Pool(limit=4096)
    block = pool.allocate(1024)
    assert pool.set_limit("2KiB") == 4096
    with pytest.raises(
        ResourceExhaustedError, match="below the bytes in use"
    ) as caught:
        pool.set_limit(1023)
    assert "higher limit" in caught.value.hint
    assert pool.limit == 2048
    assert pool.set_limit(1024) == 2048
    with pytest.raises(ResourceExhaustedError):
        pool.allocate(1)
    assert pool.set_limit(None) == 1024
    assert pool.limit is None
    assert pool.allocate(10_000).nbytes + block.nbytes == pool.stats().current_bytes


@pytest.mark.parametrize("reserve", [None, 2**20])
def test_an_arena_of_a_device_without_memory(reserve):
    pool = Pool(SimulatedResource("1GiB"), limit="16MiB")
    arena = pool.arena(reserve, tag="model")
    arena.grow(100_000)
    assert pool.owners() == {"model": arena.nbytes}
    assert arena.pool is pool
    with pytest.raises(BufferError, match="no memory"):
        memoryview(arena)
    arena.shrink(0)
    arena.free()
    assert pool.stats().reserved_bytes == pool.upstream.stats().reserved_bytes == 0


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
