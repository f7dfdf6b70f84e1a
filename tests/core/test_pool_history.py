"""Histories of pools, below `memcfg.memory.MemoryHistory`."""

from __future__ import annotations

import gc

from memcfg._core import Pool, PoolHistory


def test_a_history_that_the_garbage_collector_drops_ends():
    pool = Pool(limit="1MiB")
    ring = [PoolHistory(pool, 10)]
    ring.append(ring)
    pool.allocate(10_000, tag="x").free()
    assert "x" not in pool.occupancy(1000)
    del ring
    gc.collect()
    pool.allocate(10_000, tag="x").free()
    assert "x" in pool.occupancy(1000)
    pool.check()
