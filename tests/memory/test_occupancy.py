"""The bars that show how full a pool is, and what lies where in it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from memcfg import memory
from memcfg._core._words import fill_bar, occupancy_bar

MIB = 2**20


def test_it_shows_how_much_of_the_limit_is_in_use():
    pool = memory.Pool(memory.simulated("1GiB"), limit=16 * MIB)
    assert pool.occupancy(8) == "_" * 8
    blocks = [pool.allocate(4 * MIB) for _ in range(3)]
    assert pool.occupancy(8) == "******__"
    arena = pool.arena(2 * MIB)
    arena.grow(2 * MIB)
    assert pool.occupancy(8) == "*******_"
    sorted(blocks, key=lambda block: block.address)[1].free()
    assert pool.occupancy(8) == "*****.._"  # together, wherever they lie
    pool.trim()
    assert pool.occupancy(8) == "*****___"
    pool.set_limit(20 * MIB)
    assert pool.occupancy(10) == "*****_____"
    assert len(pool.occupancy()) == 100


def test_without_a_limit_it_is_what_the_pool_has():
    pool = memory.Pool(memory.simulated("1GiB"))
    assert pool.occupancy() == ""
    blocks = [pool.allocate(4 * MIB) for _ in range(4)]
    assert pool.occupancy(8) == "*" * 8
    blocks[0].free()
    assert pool.occupancy(8) == "******.."


def test_a_byte_in_use_is_seen():
    pool = memory.Pool(limit="1GiB")
    with pool.allocate(1):
        assert pool.occupancy(60)[0] == "*"
        assert pool.occupancy(60)[1:].strip("._") == ""


@given(
    st.lists(st.integers(0, 2**40), min_size=4, max_size=4),
    st.integers(1, 200),
)
def test_a_begun_letter_counts_for_what_comes_first(amounts, width):
    in_use, kept, free, unused = amounts
    bar = fill_bar(in_use, kept, free, unused, width)
    total = sum(amounts)
    if total == 0:
        assert bar == ""
        return
    assert len(bar) == width
    assert list(bar) == sorted(bar, key="*x._".index)
    for place, letter in enumerate(bar):
        first = place * total  # in units of a byte / width
        bounds = [in_use, in_use + kept, in_use + kept + free]
        state = sum(first >= bound * width for bound in bounds)
        assert letter == "*x._"[state]


def test_it_shows_blocks_memory_and_addresses():
    pool = memory.Pool(memory.simulated("1GiB"), limit=16 * MIB)
    assert pool.occupancy(addresses=True) == ""
    blocks = [pool.allocate(4 * MIB) for _ in range(4)]
    width = pool.stats().address_bytes // (4 * MIB)
    assert pool.occupancy(width, addresses=True).strip("_") == "****"
    sorted(blocks, key=lambda block: block.address)[1].free()
    assert pool.occupancy(width, addresses=True).strip("_") == "*.**"
    pool.trim()
    assert pool.occupancy(width, addresses=True).strip("_") == "*_**"
    assert len(pool.occupancy(addresses=True)) == 100


def test_what_a_thread_keeps_is_its_own_letter():
    pool = memory.Pool(limit=64 * MIB)
    blocks = [pool.allocate(4096) for _ in range(16)]
    assert pool.occupancy(1) == pool.occupancy(1, addresses=True) == "*"
    for block in blocks:
        block.free()
    assert pool.stats().current_bytes == 0
    assert pool.occupancy(1, addresses=True) in "x."
    assert pool.occupancy(1) in "x."


@pytest.mark.parametrize("bad", [0, -1, 1.5, "wide", None])
def test_a_width_is_a_number(bad):
    with pytest.raises((TypeError, ValueError)):
        memory.Pool().occupancy(bad)


STATES = st.sampled_from(["block", "cached", "free"])


@given(
    st.lists(st.tuples(STATES, st.integers(0, 50), st.integers(0, 50))),
    st.integers(1, 40),
)
def test_it_agrees_with_a_bar_drawn_byte_by_byte(extents, width):
    extents = [(state, a + b, a) for state, a, b in extents]
    cells = "".join(
        {"block": "*", "cached": "x"}.get(state, ".") * committed
        + {"block": "*", "cached": "x"}.get(state, "_") * (nbytes - committed)
        for state, nbytes, committed in extents
    )
    bar = occupancy_bar(extents, width)
    if not cells:
        assert bar == ""
        return
    assert len(bar) == width
    fine = [cell for cell in cells for _ in range(width)]  # each cell is whole then
    for place, letter in enumerate(bar):
        part = fine[place * len(cells) : (place + 1) * len(cells)]
        counts = {each: part.count(each) for each in "*x."}
        assert letter == "_" or counts[letter] == max(counts.values())
        assert (letter == "_") == (not any(counts.values()))
