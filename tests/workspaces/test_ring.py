"""Circular workspaces: R1 to R10 of ND4J's tests, R9 without its GPU."""

from __future__ import annotations

import numpy as np
import pytest
from workspace_rules import up

import memcfg as mc
from memcfg.errors import WorkspaceConfigError

MIB = 2**20
RING = mc.WorkspaceConfig(reset="end_of_buffer", overallocation=3.0)
STRICT = RING.replace(allocation="strict")
COUNTERS = "spilled_bytes", "spilled_count", "pinned_bytes", "pinned_count"


@pytest.fixture
def make(pool):
    return lambda config: mc.workspace("ring", config, resource=pool)


def cycle(ws, *counts: int) -> mc.workspaces.WorkspaceStats:
    with ws:
        arrays = [np.empty(count) for count in counts]
        inside = ws.stats()
        del arrays
    return inside


def numbers(ws, *names: str) -> list[int]:
    stats = ws.stats()
    return [getattr(stats, name) for name in names]


def block_of(cycle_bytes: int) -> int:
    """Say how large the block of a ring is: always larger than a multiple of 64."""
    block = int(cycle_bytes * 1.3)
    return block + 64 - block % 64


def test_r1_a_ring_that_is_told_its_size(make):
    ws = make(STRICT.replace(initial_size=100 * up(800)))
    for number in range(100):
        cycle(ws, 100)
        assert ws.stats().offset == up(800) * (number + 1)
    assert ws.stats().offset == ws.stats().size
    cycle(ws)
    assert mc.workspaces.current_workspace() is None
    assert cycle(ws, 100).offset == up(800)


def test_r2_a_ring_learns_over_time(make):
    ws = make(RING.replace(overallocation=4, learning="over_time", learning_cycles=5))
    for step in range(100):
        cycle(ws, 100)
        if step > 4:
            assert numbers(ws, "block_size", "size") == [1088, 5440]
        elif step < 4:
            assert ws.stats().size == 0
    assert ws.stats().size == 5440


def test_r3_series_of_variable_length(make):
    ws = make(RING)
    cycle(ws, 500, 500)
    block = block_of(2 * up(4000))
    assert block == 10_496
    names = "steps", "spilled_bytes", "block_size", "size"
    assert numbers(ws, *names) == [0, 2 * up(4000), block, 4 * block]
    cycle(ws, 2000)
    assert numbers(ws, *COUNTERS) == [2 * up(4000), 2, 16_000, 1]
    assert numbers(ws, "offset", "cycle_bytes", "steps") == [0, 0, 0]
    for step in range(4):
        for number in range(4):
            cycle(ws, 500, 500)
            assert ws.stats().offset == (number + 1) * block
        assert ws.stats().pinned_count == (1 if step < 2 else 0)
    assert not any(numbers(ws, *COUNTERS))
    for _ in range(100):
        assert cycle(ws, 500, 500, 500).cycle_bytes == 3 * up(4000)
    assert numbers(ws, *COUNTERS) == [0, 0, 9 * up(4000), 9]
    for _ in range(100):
        cycle(ws, 500, 500)
    assert not any(numbers(ws, *COUNTERS))


def test_r4_a_ring_that_reallocates(make):
    ws = make(RING.replace(spill="reallocate"))
    cycle(ws, 500, 500)
    before, after = block_of(2 * up(4000)), block_of(3 * up(4000))
    for step in range(1, 101):
        cycle(ws, 500, 500, 500)
        block = before if step < 12 else after
        assert numbers(ws, "block_size", "size") == [block, 4 * block]
        if step == 12:
            assert ws.stats().steps == 3
    assert not any(numbers(ws, *COUNTERS))


def test_r5_variable_input(make):
    small, large = 8 * 128 * 100, 8 * 128 * 200
    block, rebuilt = block_of(8 * small), block_of(8 * large)
    ws = make(RING.replace(spill="reallocate"))
    names = "offset", "pinned_count", "cycles", "steps"
    for count, expected in [
        (small, [0, 0, 1, 0]),
        (small, [block, 0, 2, 0]),
        (large, [block, 1, 3, 0]),
        (small, [block, 2, 4, 0]),
        (small, [block, 3, 5, 1]),
    ]:
        cycle(ws, count)
        assert numbers(ws, *names) == expected
        assert numbers(ws, "block_size", "size") == [block, 4 * block]
    for step in range(6, 18):
        cycle(ws, small)
        assert ws.stats().size == 4 * (block if step < 13 else rebuilt)
    assert numbers(ws, "steps", "offset") == [4, 4 * rebuilt]


def test_r6_spills_are_forgotten_at_the_first_wrap(make):
    ws = make(STRICT.replace(min_size="10MiB"))
    inside = cycle(ws, 10_000)
    assert (inside.size, inside.spilled_count) == (0, 1)
    assert numbers(ws, "size", "offset", "spilled_count") == [10 * MIB, 0, 1]
    seen = []
    for _ in range(11 * MIB // 80_000 + 1):
        cycle(ws, 10_000)
        seen.append(ws.stats().spilled_count)
    assert seen == sorted(seen, reverse=True)
    assert (seen[0], seen[-1]) == (1, 0)


def test_r7_the_second_cycle_ends_at_a_block(make):
    ws = make(STRICT.replace(min_size="10MiB"))
    cycle(ws, 10)
    assert numbers(ws, "size", "offset") == [10 * MIB, 0]
    cycle(ws, 10)
    assert ws.stats().offset == ws.stats().block_size == block_of(up(80))


def test_r8_a_ring_for_prefetching(make):
    config = RING.replace(overallocation=25, min_size="10MiB", spill="reallocate")
    assert config.ring_blocks == 26
    ws = make(config)
    kept = []
    for step in range(100):
        with ws:
            features = ws.full((128, 784), step, np.float32)
            labels = ws.full((128, 10), step, np.float32)
            kept.append((features, labels))
            del features, labels
        for age, (features, labels) in enumerate(reversed(kept)):
            assert features[0, 0] == features[-1, -1] == step - age
            assert labels[0, 0] == labels[-1, -1] == step - age
            del features, labels
        del kept[:-24]
    block = block_of(128 * 784 * 4 + 128 * 10 * 4)
    assert numbers(ws, "block_size", "size") == [block, 26 * block]
    assert ws.stats().escaped_arrays == 0
    assert ws.stats().retired_bytes == 0


def test_r9_arrays_that_come_round_again(make):
    ws = make(STRICT.replace(initial_size="10MiB", spill="fail"))
    for step in range(100):
        with ws:
            first = np.full(1_000_000, step, np.float32)
            if step % 2:
                second = np.full(1_000_000, -step, np.float32)
                assert second[0] == second[-1] == -step
                del second
            assert first[0] == first[-1] == step
            del first
    assert not any(numbers(ws, *COUNTERS))


def test_r10_a_ring_of_less_than_two_blocks():
    with pytest.raises(WorkspaceConfigError, match="ring"):
        RING.replace(overallocation=0.9)
    assert RING.replace(overallocation=0.9, allocation="strict").ring_blocks == 1
    assert RING.replace(overallocation=1).ring_blocks == 2


def test_a_ring_of_slots(pool):
    with mc.RingWorkspace(slots=3, name="slots", resource=pool) as ws:
        first = ws.zeros(100)
        del first
    assert ws.config.ring_blocks == 3
    assert ws.stats().size == 3 * ws.stats().block_size == 3 * block_of(up(800))
