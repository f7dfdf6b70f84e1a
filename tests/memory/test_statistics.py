"""Statistics: regions that nest as RMM's do, and numbers by tag."""

from __future__ import annotations

import pickle
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from memcfg import memory
from memcfg.memory import RegionStats
from memcfg.units import align_up


def test_a_region_counts_what_goes_through_while_it_is_open():
    counted = memory.statistics(memory.system())
    before = counted.allocate(1000)
    counted.push()
    with counted.allocate(100), counted.allocate(200):
        pass
    last = counted.allocate(300)
    assert counted.pop() == RegionStats(
        current_bytes=320,
        peak_bytes=384,
        total_bytes=128 + 256 + 320,
        current_count=1,
        peak_count=2,
        total_count=3,
    )
    last.free()
    before.free()


def test_a_region_that_frees_what_came_before_goes_below_zero():
    counted = memory.statistics(memory.system())
    outside = counted.allocate(64)
    counted.push()
    counted.push()
    outside.free()
    inner = counted.pop()
    assert (inner.current_bytes, inner.peak_bytes, inner.total_bytes) == (-64, 0, 0)
    assert (inner.current_count, inner.peak_count) == (-1, 0)
    outer = counted.pop()
    assert (outer.current_bytes, outer.peak_bytes) == (-64, 0)
    assert counted.stats().current_bytes == 0


def test_there_must_be_a_region_to_pop():
    counted = memory.statistics(memory.system())
    with pytest.raises(ValueError, match="no region"):
        counted.pop()
    counted.push()
    counted.pop()
    with pytest.raises(ValueError, match="no region"):
        counted.pop()


def test_a_region_is_a_value():
    counted = memory.statistics(memory.system())
    counted.push()
    region = counted.pop()
    assert pickle.loads(pickle.dumps(region)) == region
    with pytest.raises(AttributeError):
        region.current_bytes = 1


class Oracle:
    """Every region replays the whole story of what happened since its push."""

    def __init__(self) -> None:
        self.story: list[int] = []
        self.starts: list[int] = []

    def pop(self) -> tuple[int, int, int]:
        current = peak = total = 0
        for change in self.story[self.starts.pop() :]:
            current += change
            total += max(change, 0)
            peak = max(peak, current)
        return current, peak, total


@given(st.lists(st.sampled_from(["take", "give", "push", "pop"]), max_size=60))
def test_regions_agree_with_a_replay(steps):
    counted = memory.statistics(memory.simulated("1GiB"))
    oracle = Oracle()
    blocks = []
    for place, step in enumerate(steps):
        if step == "take":
            blocks.append(counted.allocate(1 + 100 * place))
            oracle.story.append(blocks[-1].nbytes)
        elif step == "give" and blocks:
            oracle.story.append(-blocks[0].nbytes)
            blocks.pop(0).free()
        elif step == "push":
            counted.push()
            oracle.starts.append(len(oracle.story))
        elif step == "pop" and oracle.starts:
            region = counted.pop()
            found = region.current_bytes, region.peak_bytes, region.total_bytes
            assert found == oracle.pop()


def test_tags_are_remembered_when_they_hold_nothing():
    counted = memory.statistics(memory.Pool())
    held = counted.allocate(100, tag="held")
    for nbytes in (1, 65, 1000):
        counted.allocate(nbytes, tag="passing").free()
    assert counted.owners() == {"held": 128}
    rows = counted.by_tag()
    assert set(rows) == {"held", "passing"}
    assert rows["held"] == RegionStats(128, 128, 128, 1, 1, 1)
    total = sum(map(align_up, (1, 65, 1000)))
    assert rows["passing"] == RegionStats(0, 1024, total, 0, 1, 3)
    held.free()


def test_its_numbers_are_its_own_and_memory_is_upstreams():
    pool = memory.Pool(limit="1MiB")
    others = pool.allocate(5000)
    counted = memory.statistics(pool)
    with counted.allocate(100):
        stats = counted.stats()
        assert (stats.current_bytes, stats.allocation_count) == (128, 1)
        assert stats.reserved_bytes == pool.stats().reserved_bytes >= 5000
        assert stats.limit_bytes == 2**20
        assert stats.metadata_bytes > pool.stats().metadata_bytes
    others.free()


def test_regions_count_what_every_thread_does():
    counted = memory.statistics(memory.system())
    counted.push()

    def work():
        for _ in range(200):
            counted.allocate(64).free()

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    region = counted.pop()
    assert (region.total_count, region.total_bytes) == (600, 600 * 64)
    assert region.current_count == 0
    assert 1 <= region.peak_count <= 3
