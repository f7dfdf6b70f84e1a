"""Which cells of a product of parameters an ordinary run has."""

from __future__ import annotations

from itertools import combinations, product

import pytest
from covering import covering

SIZES = [(5,), (2, 2, 2), (3, 1, 4), (4, 3, 5), (2, 3, 2, 4), (10, 2, 3, 3, 2)]


def meetings(rows, strength):
    """Every combination of values at so many places, by brute force."""
    return {
        (places, tuple(row[place] for place in places))
        for row in rows
        for places in combinations(range(len(row)), strength)
    }


@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_whatever_meets_in_the_product_meets_in_the_chosen_rows(sizes):
    rows = list(product(*map(range, sizes)))
    for some in (rows, rows[::3], [row for row in rows if sum(row) % 3]):
        for strength in range(1, len(sizes) + 1):
            chosen = covering(some, strength)
            assert chosen == sorted(set(chosen))
            found = meetings([some[place] for place in chosen], strength)
            assert found == meetings(some, strength)


def test_pairs_take_few_rows():
    """The largest two factors are a bound below, which greedy choices come close to."""
    for sizes in SIZES[1:]:
        rows = list(product(*map(range, sizes)))
        small, large = sorted(sizes)[-2:]
        assert small * large <= len(covering(rows, 2)) <= 1.5 * small * large
        assert len(covering(rows, 1)) <= max(sizes) + 1


def test_values_are_chosen_about_equally_often():
    chosen = covering(list(product(range(20), range(5))), 1)
    assert [[place % 5 for place in chosen].count(n) for n in range(5)] == [4] * 5


def test_rows_that_are_too_short_are_all_chosen():
    assert covering([(1,), (2,), (2,)], 2) == [0, 1, 2]
    assert covering([], 2) == []


def selected(pytester, *options):
    """The cells that a run of this product has."""
    pytester.makepyfile("""
        import pytest

        @pytest.fixture(params="xyz")
        def device(request):
            return request.param

        @pytest.mark.parametrize("one, two", [(1, 1), (2, 2), (3, 3)])
        @pytest.mark.parametrize("policy", "abcd")
        def test_pairs(device, one, two, policy): ...

        @pytest.mark.parametrize(
            "one, two, three", [(1, 1, 2), (1, 2, 1), (2, 1, 1), (1, 1, 1)]
        )
        def test_given_together(one, two, three): ...

        @pytest.mark.strength(1)
        @pytest.mark.parametrize("policy", "abcd")
        def test_singles(device, policy): ...

        @pytest.mark.strength(1, unless=lambda its: its["device"] == its["kind"])
        @pytest.mark.parametrize("kind", "xy")
        def test_left_out(device, kind): ...

        @pytest.mark.strength(3)
        @pytest.mark.parametrize("op", "+-*")
        @pytest.mark.parametrize("policy", "abcd")
        def test_all(device, op, policy): ...

        def test_plain(): ...
    """)
    pytester.makeini("[pytest]\nmarkers =\n  slow: as in this suite")
    result = pytester.runpytest(
        "-p", "covering_cells", "--collect-only", "-q", "--strict-markers", *options
    )
    return [line for line in result.outlines if "::" in line]


def test_an_ordinary_run_has_all_pairs_and_the_full_one_the_product(pytester):
    full = selected(pytester, "-m", "slow or not slow")
    assert len(full) == 36 + 4 + 12 + 4 + 36 + 1
    few = selected(pytester, "-m", "not slow")
    assert set(few) < set(full)
    tests = [line.partition("::")[2].partition("[")[0] for line in few]
    assert 12 <= tests.count("test_pairs") <= 18
    assert tests.count("test_given_together") == 4
    assert 4 <= tests.count("test_singles") <= 5
    assert tests.count("test_left_out") == 3
    assert tests.count("test_all") == 36
    assert tests.count("test_plain") == 1
    (spare, *_) = set(full) - set(few)
    assert selected(pytester, "-m", "not slow", spare) == [spare]  # it is asked for
