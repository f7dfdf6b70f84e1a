"""A search for offsets asks whether it is over."""

from __future__ import annotations

import random

import pytest

from memcfg._core import search


@pytest.fixture
def crowd():
    """800 buffers of which many meet, so that a branch takes long."""
    chance = random.Random(0)
    lower = [chance.randrange(800) for _ in range(800)]
    upper = [begin + chance.randrange(1, 800) for begin in lower]
    return lower, upper, [chance.randrange(1, 1000) for _ in lower]


def test_a_search_asks_whether_it_is_over_amid_its_branches(crowd):
    asked = []
    search.pack(
        *crowd, effort=200_000_000, goal=0, is_over=lambda: bool(asked.append(0))
    )
    assert len(asked) >= 8  # this effort is less than that of its first round


def test_an_error_ends_all_searches(crowd):
    asked = []

    def is_over():
        asked.append(0)
        raise LookupError

    with pytest.raises(LookupError):
        search.pack(*crowd, effort=200_000_000, goal=0, is_over=is_over)
    assert len(asked) == 1
