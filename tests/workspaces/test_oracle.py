"""The oracle against the numbers of ND4J's own tests (alignment 16) and ours (64).

The numbers stand as they are there: sizes in bytes, of doubles of 8.
"""

from __future__ import annotations

import pytest
from workspace_oracle import Oracle
from workspace_rules import FullError, Rules, up

STRICT = None
MIB = 2**20
BASIC = {"initial": 10 * MIB, "overallocation": STRICT, "learning": "none"}


def nd4j(**rules) -> Oracle:
    return Oracle(Rules(alignment=16, upstream=True, **rules))


def ours(**rules) -> Oracle:
    return Oracle(Rules(**rules))


def cycle(oracle: Oracle, *counts: int) -> dict[str, int]:
    """Run a cycle of arrays of so many doubles; return the numbers after it."""
    oracle.open()
    made = [oracle.allocate(8 * count) for count in counts]
    inside = oracle.stats()
    for each in made:
        oracle.free(each)
    oracle.close()
    return inside


def sizes(oracle: Oracle, counts) -> list[int]:
    found = []
    for count in counts:
        cycle(oracle, count)
        found.append(oracle.size)
    return found


def test_w1_w2_w3_overallocation():
    assert nd4j(initial=1024, overallocation=1.0, learning="none").size == 2048
    for make, size in (nd4j, 1600), (ours, 1664):
        oracle = make(overallocation=1.0, max_size=10 * MIB)
        assert cycle(oracle, 100)["size"] == 0
        assert oracle.size == size
        oracle = make(overallocation=1.0, learning="over_time")
        assert set(sizes(oracle, range(10, 101, 10))) == {0}
        oracle.initialize()
        assert oracle.size == size


def test_w4_the_smallest_size_is_not_multiplied():
    oracle = nd4j(min_size=10 * MIB, overallocation=1.0)
    assert cycle(oracle, 100)["size"] == 0
    assert cycle(oracle, 100)["size"] == 10 * MIB


def test_w5_to_w9_loops():
    oracle = nd4j(overallocation=STRICT, learning="over_time")
    inside = cycle(oracle, 10, 1)
    assert (inside["offset"], inside["size"]) == (0, 0)
    oracle.initialize()
    assert oracle.size == 96
    for _ in range(10):
        assert cycle(oracle, 10)["offset"] == 80
        assert oracle.offset == 0
    oracle = nd4j(overallocation=STRICT)
    inside = cycle(oracle, 100, 10)
    assert (inside["offset"], inside["size"], oracle.size) == (0, 0, 880)
    oracle = nd4j(overallocation=STRICT)
    cycle(oracle, 100, 100)
    assert oracle.size == 1600
    assert cycle(oracle, 100)["offset"] == 800


def test_w10_to_w12_what_is_learned_over_time():
    oracle = nd4j(overallocation=STRICT, learning="over_time")
    for count in range(1, 101):
        cycle(oracle, count)
        assert oracle.last_cycle_bytes == up(8 * count, 16)
    oracle.initialize()
    assert oracle.size == 800
    cycle(oracle, 1000)
    oracle.initialize()
    assert oracle.size == 800
    oracle = nd4j(overallocation=STRICT, learning="over_time", learning_cycles=3)
    assert sizes(oracle, range(100, 1000, 100)) == [0, 0, *[2400] * 7]


def test_w13_w14_w15_growth():
    grow = {"learning": "over_time", "spill": "reallocate"}
    oracle = nd4j(overallocation=STRICT, **grow)
    cycle(oracle, 100)
    oracle.initialize()
    assert oracle.size == 800
    cycle(oracle, 1000)
    assert (oracle.max_cycle_bytes, oracle.size) == (8000, 8000)
    assert cycle(oracle, 500)["spilled_count"] == 0
    oracle = nd4j(overallocation=STRICT, learning_cycles=3, **grow)
    expected = [0, 0, *range(2400, 8001, 800)]
    assert sizes(oracle, range(100, 1001, 100)) == expected
    oracle = nd4j(overallocation=0.0, **grow)
    assert set(sizes(oracle, [100, 200, 300])) == {0}
    oracle.initialize()
    assert oracle.size == 2400
    counts = [*range(400, 1001, 100), *range(1000, 0, -100)]
    assert sizes(oracle, counts)[-1] == 8000


def test_w16_the_default():
    for make, size in (nd4j, 1040), (ours, 1081):
        oracle = make()
        cycle(oracle, 100)
        assert oracle.size == size


def test_s1_to_s6_offsets():
    assert cycle(nd4j(**BASIC), 5)["offset"] == 48
    assert cycle(nd4j(**BASIC), 5, 5)["offset"] == 96
    assert cycle(nd4j(**BASIC), 1000, 1000)["offset"] == 16000
    oracle = nd4j(**BASIC | {"initial": MIB, "spill": "fail"})
    oracle.open()
    oracle.allocate(40)
    with pytest.raises(FullError):
        oracle.allocate(80_000_000)
    assert oracle.offset == 48
    oracle.allocate(40)
    assert oracle.offset == 96


def test_r1_a_ring_without_blocks():
    oracle = nd4j(initial=80_000, circular=True, overallocation=STRICT)
    for number in range(100):
        cycle(oracle, 100)
        assert oracle.offset == 800 * (number + 1)
    cycle(oracle)
    assert oracle.offset == 80_000


@pytest.mark.parametrize(("make", "block"), [(nd4j, 1048), (ours, 1088)])
def test_r2_a_ring_that_learns_over_time(make, block):
    oracle = make(
        circular=True, overallocation=4.0, learning="over_time", learning_cycles=5
    )
    assert sizes(oracle, [100] * 4) == [0] * 4
    assert set(sizes(oracle, [100] * 96)) == {5 * block}
    assert oracle.block_size == block


def numbers(oracle: Oracle, *names: str) -> list[int]:
    return [oracle.stats()[name] for name in names]


@pytest.mark.parametrize(
    ("make", "first", "block", "large", "pinned"),
    [(nd4j, 8000, 10_408, 16_000, 36_000), (ours, 8064, 10_496, 16_000, 36_288)],
)
def test_r3_variable_series(make, first, block, large, pinned):
    oracle = make(circular=True, overallocation=3.0)
    cycle(oracle, 500, 500)
    names = "steps", "spilled_bytes", "block_size", "size"
    assert numbers(oracle, *names) == [0, first, block, 4 * block]
    cycle(oracle, 2000)
    names = "pinned_bytes", "pinned_count", "spilled_bytes", "offset", "steps"
    assert numbers(oracle, *names) == [large, 1, first, 0, 0]
    for step in range(4):
        for number in range(4):
            cycle(oracle, 500, 500)
            assert oracle.offset == (number + 1) * block
        assert numbers(oracle, "pinned_count") == [1 if step < 2 else 0]
    names = "spilled_bytes", "spilled_count", "pinned_bytes", "pinned_count"
    assert not any(numbers(oracle, *names))
    for _ in range(100):
        assert cycle(oracle, 500, 500, 500)["cycle_bytes"] == 3 * first // 2
    assert numbers(oracle, *names) == [0, 0, pinned, 9]
    for _ in range(100):
        cycle(oracle, 500, 500)
    assert numbers(oracle, *names) == [0, 0, 0, 0]


@pytest.mark.parametrize(
    ("make", "before", "after"), [(nd4j, 10_408, 15_608), (ours, 10_496, 15_744)]
)
def test_r4_a_ring_grows_when_nobody_can_see_the_old_one(make, before, after):
    oracle = make(circular=True, overallocation=3.0, spill="reallocate")
    cycle(oracle, 500, 500)
    assert oracle.size == 4 * before
    found = []
    for _ in range(100):
        cycle(oracle, 500, 500, 500)
        found.append(oracle.size)
    assert found.count(4 * before) == 11
    assert (found[-1], oracle.block_size) == (4 * after, after)
    names = "spilled_bytes", "spilled_count", "pinned_bytes", "pinned_count"
    assert numbers(oracle, *names) == [0, 0, 0, 0]


@pytest.mark.parametrize(
    ("make", "block", "rebuilt"),
    [(nd4j, 1_064_968, 2_129_928), (ours, 1_065_024, 2_129_984)],
)
def test_r5_variable_input(make, block, rebuilt):
    small, large = 8 * 128 * 100, 8 * 128 * 200
    oracle = make(circular=True, overallocation=3.0, spill="reallocate")
    names = "offset", "pinned_count", "cycles", "steps"
    expected = {
        small: [(0, 0, 1, 0), (block, 0, 2, 0)],
        large: [(block, 1, 3, 0)],
        -small: [(block, 2, 4, 0), (block, 3, 5, 1)],
    }
    for count, rows in expected.items():
        for row in rows:
            cycle(oracle, abs(count))
            assert (*numbers(oracle, *names),) == row
            assert (oracle.block_size, oracle.size) == (block, 4 * block)
    found = sizes(oracle, [small] * 12)
    assert found == [4 * block] * 7 + [4 * rebuilt] * 5
    assert (oracle.steps, oracle.offset) == (4, oracle.size)
    assert oracle.block_size == rebuilt


def test_r6_r7_the_first_round():
    oracle = nd4j(circular=True, overallocation=STRICT, min_size=10 * MIB)
    inside = cycle(oracle, 10_000)
    assert (inside["size"], inside["spilled_count"]) == (0, 1)
    names = "size", "offset", "spilled_count"
    assert numbers(oracle, *names) == [10 * MIB, 0, 1]
    cycle(oracle, 10_000)
    assert oracle.offset == oracle.block_size
    for _ in range(11 * MIB // 80_000):
        cycle(oracle, 10_000)
    assert oracle.spilled_count == 0


@pytest.mark.parametrize(
    ("make", "block", "size"),
    [(nd4j, 528_488, 13_740_688), (ours, 528_512, 13_741_312)],
)
def test_r8_a_ring_for_prefetching(make, block, size):
    oracle = make(
        circular=True, overallocation=25.0, min_size=10 * MIB, spill="reallocate"
    )
    for _ in range(100):
        cycle(oracle, 128 * 784 // 2, 128 * 10 // 2)
    assert (oracle.block_size, oracle.size) == (block, size)
    assert oracle.rules.ring_blocks == 26


def test_m2_m3_everything_spills():
    for initial in 10 * MIB, 0:
        oracle = nd4j(initial=initial, overallocation=STRICT)
        oracle.spill_everything = True
        inside = cycle(oracle, 100)
        names = "size", "offset", "spilled_bytes"
        assert [inside[name] for name in names] == [initial, 0, 800]
        oracle.open()
        assert numbers(oracle, *names) == [initial, 0, 0]


def test_n4_n5_of_libnd4j():
    oracle = nd4j(initial=65_536, overallocation=STRICT)
    for _ in range(5):
        cycle(oracle)
    assert numbers(oracle, "size", "offset", "spilled_bytes") == [65_536, 0, 0]
    oracle = nd4j(initial=128, overallocation=STRICT, spill="reallocate")
    cycle(oracle, 1)
    assert cycle(oracle, *[16] * 10)["spilled_bytes"] == 1152
    cycle(oracle)
    cycle(oracle, 1)
    assert numbers(oracle, "size", "spilled_bytes") == [1280, 0]


def test_where_we_differ_from_nd4j():
    for make, size in (nd4j, 800), (ours, 4096):
        oracle = make(overallocation=STRICT, max_size=4096, spill="reallocate")
        cycle(oracle, 100)
        cycle(oracle, 1000)  # more than the maximum: as it is, or the maximum
        assert oracle.size == (size if make is nd4j else 4096)
    for make in nd4j, ours:
        oracle = make(circular=True, overallocation=1.5)
        cycle(oracle, 100)
        whole = oracle.size == 2 * oracle.block_size
        assert whole == (make is ours)
        assert (oracle.block_size % oracle.rules.alignment == 0) == (make is ours)
    for make, size in (nd4j, 1600), (ours, 2080):
        oracle = make(spill="reallocate")
        cycle(oracle, 100)
        cycle(oracle, 200)
        assert oracle.size == size


def test_reclaimed_space_is_a_stack():
    oracle = ours(initial=4096, overallocation=STRICT, reclaim=True)
    oracle.open()
    first, second, third = (oracle.allocate(64) for _ in range(3))
    oracle.free(second)
    assert (oracle.offset, oracle.cycle_bytes) == (192, 192)
    oracle.free(third)
    assert (oracle.offset, oracle.cycle_bytes) == (64, 64)
    oracle.free(first)
    oracle.close()
    assert (oracle.offset, oracle.last_cycle_bytes) == (0, 192)
