from __future__ import annotations

import random
import signal
import threading
from collections import deque
from itertools import repeat
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from memcfg.errors import InfeasiblePlanError
from memcfg.plan import Buffer, place, read_buffers

DATA = Path(__file__).parents[1] / "fixtures"

buffers = st.lists(
    st.tuples(st.integers(-50, 50), st.integers(1, 30), st.integers(0, 500)),
    max_size=40,
).map(
    lambda rows: [
        Buffer(str(i), lower, lower + life, size)
        for i, (lower, life, size) in enumerate(rows)
    ]
)


def live(buffers) -> int:
    """The bytes alive at the busiest start of a life."""
    return max(
        (sum(b.size for b in buffers if b.lower <= a.lower < b.upper) for a in buffers),
        default=0,
    )


def overlapping(buffers, offsets) -> list[tuple[str, str]]:
    pairs = [*zip(buffers, offsets, strict=True)]
    return [
        (a.id, b.id)
        for i, (a, x) in enumerate(pairs)
        for b, y in pairs[:i]
        if a.lower < b.upper and b.lower < a.upper and x < y + b.size and y < x + a.size
        if a.size and b.size
    ]


@settings(max_examples=150, deadline=None)
@given(buffers=buffers, alignment=st.sampled_from([1, 64, 100]))
def test_placements_are_legal_and_not_below_the_bound(buffers, alignment):
    placement = place(buffers, alignment=alignment, time_limit=60)
    assert overlapping(buffers, placement.offsets) == []
    assert all(offset % alignment == 0 for offset in placement.offsets)
    rounded = [
        Buffer(b.id, b.lower, b.upper, -(-b.size // alignment) * alignment)
        for b in buffers
    ]
    assert placement.bound == live(rounded)
    ends = [
        o + b.size for o, b in zip(placement.offsets, rounded, strict=True) if b.size
    ]
    assert placement.height == max(ends, default=0) >= placement.floor
    assert placement.floor >= placement.bound
    assert place(buffers, alignment=alignment, time_limit=60) == placement


def test_perfect_packings_are_found_again():
    """A rectangle cut into pieces that fill it."""
    for seed in range(10):
        pieces = cut(random.Random(seed), 0, 64, 0, 1024, 5)
        placement = place(pieces)
        assert placement.height == placement.bound == 1024


def cut(chance, left, right, low, high, depth):
    if depth == 0 or right - left < 2 or high - low < 2:
        return [Buffer(f"{left}.{low}", left, right, high - low)]
    if chance.random() < 0.5:
        at = chance.randint(left + 1, right - 1)
        return [
            *cut(chance, left, at, low, high, depth - 1),
            *cut(chance, at, right, low, high, depth - 1),
        ]
    at = chance.randint(low + 1, high - 1)
    return [
        *cut(chance, left, right, low, at, depth - 1),
        *cut(chance, left, right, at, high, depth - 1),
    ]


def test_a_training_step_is_placed_at_its_bound():
    buffers = read_buffers((DATA / "somas" / "resnet50.csv").read_text())
    placement = place(buffers, time_limit=60)
    assert len(buffers) == 1042
    assert placement.height == placement.bound == 1_515_472_556
    assert overlapping(buffers, placement.offsets) == []


@pytest.mark.parametrize(
    "path", sorted((DATA / "minimalloc").glob("*.csv")), ids=lambda path: path.name[0]
)
def test_the_hard_instances_of_minimalloc_fit(path):
    capacity = int(path.name.split(".")[1])
    buffers = read_buffers(path.read_text())
    placement = place(buffers, capacity=capacity, time_limit=60)
    assert placement.height <= capacity == 1_048_576
    assert overlapping(buffers, placement.offsets) == []
    assert placement.order == "search"


def test_the_sample_of_minimalloc_fits_its_capacity():
    lives = [(0, 3), (3, 9), (0, 9), (9, 21), (0, 21)]
    sample = [Buffer(f"b{i}", *life, 4) for i, life in enumerate(lives)]
    assert place(sample, capacity=12).height == 12


def test_a_capacity_that_is_not_met_is_refused():
    two = [Buffer("a", 0, 2, 10), Buffer("b", 1, 3, 20)]
    assert place(two, capacity=30).height == 30
    with pytest.raises(InfeasiblePlanError) as refusal:
        place(two, capacity=29)
    assert refusal.value.smallest_limit_bytes == 30
    assert refusal.value.lower_bound_bytes == 30
    assert "30 B are alive in [1, 2)" in str(refusal.value)
    assert "The smallest limit that would do is 30 B" in str(refusal.value)


def dense(seed, capacity) -> list[Buffer]:
    """Buffers that fill up to `capacity` in most sections of time."""
    chance, load, found = random.Random(seed), [0] * 16, []
    for _ in range(400):
        lower = chance.randint(0, 15)
        upper, size = min(16, lower + chance.randint(1, 8)), chance.randint(1, 4)
        if len(found) < 12 and max(load[lower:upper]) + size <= capacity:
            load[lower:upper] = [each + size for each in load[lower:upper]]
            found.append(Buffer(str(len(found)), lower, upper, size))
    return found


def fits_somewhere(buffers, capacity, placed=()) -> bool:
    """Try every offset of every buffer."""
    if len(placed) == len(buffers):
        return True
    b = buffers[len(placed)]
    return any(
        fits_somewhere(buffers, capacity, (*placed, (b, at)))
        for at in range(capacity - b.size + 1)
        if all(
            a.upper <= b.lower
            or b.upper <= a.lower
            or low + a.size <= at
            or at + b.size <= low
            for a, low in placed
        )
    )


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 10_000), capacity=st.integers(3, 8))
def test_the_least_height_is_found_and_known_to_be(seed, capacity):
    found = dense(seed, capacity)
    placement = place(found, time_limit=60)
    assert placement.height == placement.floor
    assert fits_somewhere(found, placement.height)
    assert not fits_somewhere(found, placement.height - 1)


def test_it_is_said_whether_a_capacity_is_ruled_out():
    above = [
        buffers
        for seed in range(1500)
        if place(buffers := dense(seed, 6)).height > live(buffers)
    ]
    for found in above[:3]:
        with pytest.raises(InfeasiblePlanError, match="no placement fits") as refusal:
            place(found, capacity=live(found))
        assert refusal.value.lower_bound_bytes == live(found) + 1
        assert not fits_somewhere(found, live(found))
        assert fits_somewhere(found, live(found) + 1)
    assert above
    hard = read_buffers((DATA / "minimalloc" / "A.1048576.csv").read_text())
    with pytest.raises(InfeasiblePlanError, match="not ruled out") as refusal:
        place(hard, capacity=1_048_576, time_limit=1e-6)
    assert refusal.value.lower_bound_bytes == 1_048_576
    assert not refusal.value.is_smallest
    assert "would do, and a smaller one may." in str(refusal.value)


def test_a_search_can_be_interrupted():
    hard = read_buffers((DATA / "minimalloc" / "A.1048576.csv").read_text())
    timer = threading.Timer(0.01, signal.raise_signal, (signal.SIGINT,))
    timer.start()
    with pytest.raises(KeyboardInterrupt):
        deque((place(hard, capacity=1_048_576) for _ in repeat(0)), maxlen=0)
    timer.join()


@pytest.mark.parametrize(
    ("buffer", "fields", "words"),
    [
        (Buffer("a", 1, 1, 1), {}, "'a' has an empty lifetime"),
        (Buffer("a", 2, 1, 1), {}, "'a' has an empty lifetime"),
        (Buffer("a", 0, 1, -1), {}, "'a' has a negative size"),
        (Buffer("a", 0, 2**62, 1), {}, r"times beyond 2\*\*62"),
        (Buffer("a", 0, 1, 2**62), {}, r"sum to 2\*\*62"),
        (Buffer("a", 0, 1, 1), {"alignment": 0}, "alignment must be positive"),
        (Buffer("a", 0, 1, 1), {"capacity": -1}, "capacity cannot be negative"),
        (Buffer("a", 0, 1, 1), {"time_limit": 0}, "time limit must be positive"),
    ],
)
def test_bad_input_is_refused(buffer, fields, words):
    with pytest.raises(ValueError, match=words):
        place([buffer], **fields)


def test_nothing_is_placed_at_no_height():
    placement = place([])
    assert (placement.offsets, placement.height, placement.bound) == ((), 0, 0)


def test_the_winning_order_is_named():
    assert place([Buffer("a", 0, 1, 1)]).order == "size, first fit"
