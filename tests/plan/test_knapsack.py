"""Bytes that groups share, against all choices there are."""

from __future__ import annotations

import itertools

from hypothesis import given, settings
from hypothesis import strategies as st

from memcfg.plan.methods import _knapsack
from memcfg.plan.methods._knapsack import Option, divide, front, hull

options = st.builds(Option, st.integers(0, 60), st.integers(0, 50).map(float))
groups = st.lists(
    st.lists(options, max_size=4).map(lambda row: [Option(0, 50.0), *row]), max_size=5
)


def taken(rows, chosen):
    picked = [row[number] for row, number in zip(rows, chosen, strict=True)]
    return sum(o.nbytes for o in picked), sum(o.seconds for o in picked)


@given(rows=groups, total=st.integers(0, 200))
@settings(max_examples=300, deadline=None)
def test_no_choice_within_the_bytes_is_faster(rows, total):
    found = divide(rows, total)
    assert found.proven
    nbytes, seconds = taken(rows, found.chosen)
    assert nbytes <= total
    every = (
        taken(rows, each) for each in itertools.product(*map(range, map(len, rows)))
    )
    assert seconds == min(time for size, time in every if size <= total)


@given(row=st.lists(options, max_size=8))
def test_a_front_has_what_no_other_beats(row):
    numbers = front(row)
    kept = [row[n] for n in numbers]
    assert kept == sorted(set(kept))
    for option in row:
        assert any(
            k.nbytes <= option.nbytes and k.seconds <= option.seconds for k in kept
        )
    for one, other in itertools.permutations(kept, 2):
        assert one.nbytes > other.nbytes or one.seconds > other.seconds


@given(row=st.lists(options, min_size=1, max_size=8))
def test_rates_fall_along_a_hull(row):
    corners = hull([row[n] for n in front(row)])
    rates = [
        (a.seconds - b.seconds) / (b.nbytes - a.nbytes)
        for a, b in itertools.pairwise(corners)
    ]
    assert rates == sorted(set(rates), reverse=True)


def test_many_groups_are_proven_with_few_states():
    """160 convolutions of seven options: bounds leave little of 7 ** 160."""
    rows = [
        [Option(0, 9.0 + k % 7)]
        + [
            Option((k * 37 + n * 101) % 997 * 64 + 64, (k + n * 3) % 9)
            for n in range(6)
        ]
        for k in range(160)
    ]
    every = sum(max(option.nbytes for option in row) for row in rows)
    for percent in (1, 10, 30, 60, 100):
        assert divide(rows, every * percent // 100).proven


def test_what_is_cut_is_said(monkeypatch):
    rows = [[Option(0, 10.0), *(Option(n, 10.0 - n) for n in range(1, 9))]] * 4
    whole = divide(rows, 17)
    monkeypatch.setattr(_knapsack, "_STATES", 1)
    cut = divide(rows, 17)
    assert whole.proven
    assert not cut.proven
    assert taken(rows, cut.chosen)[0] <= 17


def test_nothing_is_divided_among_nobody():
    assert divide([], 0).chosen == ()
    assert divide([[Option(0, 1.0), Option(1, 0.0)]], 0).chosen == (0,)
