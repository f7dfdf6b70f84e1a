"""Bars of occupancy, against bars drawn byte by byte."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from memcfg._core._words import fill_bar, occupancy_bar


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
