"""The bar that shows what lies where in a pool."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from memcfg import memory
from memcfg._core._words import occupancy_bar

MIB = 2**20


def test_it_shows_blocks_memory_and_addresses():
    pool = memory.Pool(memory.simulated("1GiB"), limit=16 * MIB)
    assert pool.occupancy() == ""
    blocks = [pool.allocate(4 * MIB) for _ in range(4)]
    width = pool.stats().address_bytes // (4 * MIB)
    assert pool.occupancy(width).strip("_") == "****"
    sorted(blocks, key=lambda block: block.address)[1].free()
    assert pool.occupancy(width).strip("_") == "*.**"
    pool.trim()
    assert pool.occupancy(width).strip("_") == "*_**"
    assert len(pool.occupancy()) == 100


def test_what_a_thread_keeps_is_its_own_letter():
    pool = memory.Pool(limit=64 * MIB)
    blocks = [pool.allocate(4096) for _ in range(16)]
    assert pool.occupancy(1) == "*"
    for block in blocks:
        block.free()
    assert pool.stats().current_bytes == 0
    assert pool.occupancy(1) in "x."


@pytest.mark.parametrize("bad", [0, -1, 1.5, "wide", None])
def test_a_width_is_a_number(bad):
    with pytest.raises((TypeError, ValueError)):
        memory.Pool().occupancy(bad)


STATES = st.sampled_from(["block", "kept", "hole"])


@given(
    st.lists(st.tuples(STATES, st.integers(0, 50), st.integers(0, 50))),
    st.integers(1, 40),
)
def test_it_agrees_with_a_bar_drawn_byte_by_byte(stretches, width):
    stretches = [(state, a + b, a) for state, a, b in stretches]
    cells = "".join(
        {"block": "*", "kept": "x"}.get(state, ".") * committed
        + {"block": "*", "kept": "x"}.get(state, "_") * (nbytes - committed)
        for state, nbytes, committed in stretches
    )
    bar = occupancy_bar(stretches, width)
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
