"""The dynamic program of lower sets against all strategies, as Kusumoto et al. say."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

from hypothesis import given, settings
from hypothesis import strategies as st

from memcfg._core.search import LowerSets

if TYPE_CHECKING:
    from collections.abc import Iterator


Nodes = frozenset[int]


class Listed:
    """A graph of at most seven nodes, and all that the paper says of it, by sets."""

    def __init__(self, seed: int, nodes: int) -> None:
        draw = random.Random(seed)
        density = draw.random()
        self.before = [
            [u for u in range(v) if draw.random() < density] for v in range(nodes)
        ]
        self.times = [draw.randint(0, 4) for _ in range(nodes)]
        self.sizes = [draw.randint(0, 5) for _ in range(nodes)]
        self.all = frozenset(range(nodes))

    def after(self, v: int) -> set[int]:
        return {w for w in self.all if v in self.before[w]}

    def lower(self) -> list[Nodes]:
        subsets = (
            frozenset(v for v in self.all if bits >> v & 1)
            for bits in range(1 << len(self.all))
        )
        return [s for s in subsets if all(s.issuperset(self.before[v]) for v in s)]

    def closures(self) -> list[Nodes]:
        """The empty set, all nodes, and each node's own ancestors with it."""
        found = {frozenset[int](), self.all}
        for v in self.all:
            closed = {v}
            for u in sorted(self.all, reverse=True):
                if any(u in self.before[w] for w in closed):
                    closed.add(u)
            found.add(frozenset(closed))
        return list(found)

    def boundary(self, lower: Nodes) -> Nodes:
        return frozenset(v for v in lower if not lower.issuperset(self.after(v)))

    def bytes(self, nodes) -> int:
        return sum(self.sizes[v] for v in nodes)

    def time(self, nodes) -> int:
        return sum(self.times[v] for v in nodes)

    def peak(self, kept: int, last: Nodes, lower: Nodes) -> int:
        successors = {w for v in lower for w in self.after(v)}
        others = {u for w in successors for u in self.before[w]}
        beside = self.bytes(successors - lower) + self.bytes(others - lower)
        return kept + 2 * self.bytes(lower - last) + beside

    def strategies(
        self, family: list[Nodes], budget: int, last: Nodes = frozenset(), kept: int = 0
    ) -> Iterator[int]:
        """The time of what every strategy within a budget computes again."""
        if last == self.all:
            yield 0
        for lower in family:
            if last < lower and self.peak(kept, last, lower) <= budget:
                edge = self.boundary(lower)
                again = self.time(lower - last - edge)
                keeps = kept + self.bytes(edge - last)
                for rest in self.strategies(family, budget, lower, keeps):
                    yield again + rest

    def time_of(self, segments: list[int]) -> int:
        total = 0
        for number in range(max(segments) + 1):
            lower = frozenset(v for v in self.all if segments[v] <= number)
            own = frozenset(v for v in self.all if segments[v] == number)
            assert all(lower.issuperset(self.before[v]) for v in lower)
            total += self.time(own - self.boundary(lower))
        return total


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 10**6), nodes=st.integers(1, 7), exact=st.booleans())
def test_the_dynamic_program_is_as_good_as_all_strategies(seed, nodes, exact):
    graph = Listed(seed, nodes)
    family = graph.lower() if exact else graph.closures()
    sets = LowerSets(graph.times, graph.sizes, graph.before, exact=exact, most=200)
    assert sets.complete
    assert len(sets) == len(family)
    assert sets.pairs == sum(a < b for a in family for b in family)
    draw = random.Random(seed)
    for budget in {sets.whole, *(draw.randint(0, sets.whole) for _ in range(6))}:
        times = list(graph.strategies(family, budget))
        assert sets.feasible(budget) == bool(times)
        for longest, best in ((False, min), (True, max)):
            found = sets.strategy(budget, longest=longest)
            assert (found is not None) == bool(times)
            if found is not None:
                assert graph.time_of(found) == best(times)


def test_the_published_values_of_a_chain():
    """16 units in a row: the last segment is charged, too, as the paper does."""
    before = [[v - 1] if v else [] for v in range(16)]
    sets = LowerSets([1] * 16, [1] * 16, before, exact=True, most=17)
    listed = Listed(0, 0)
    listed.before, listed.times, listed.all = before, [1] * 16, frozenset(range(16))
    overhead = {}
    for budget in (6, 8, 10, 12, 16, 20):
        found = sets.strategy(budget, longest=False)
        overhead[budget] = found and listed.time_of(found)
    assert overhead == {6: None, 8: None, 10: 8, 12: 6, 16: 2, 20: 1}


def test_more_sets_than_wanted_are_not_listed():
    wide = [[] for _ in range(12)]
    sets = LowerSets([1] * 12, [1] * 12, wide, exact=True, most=4095)
    assert not sets.complete
    assert sets.strategy(10**6, longest=False) is None
    assert not sets.feasible(10**6)
    assert LowerSets([1] * 12, [1] * 12, wide, exact=True, most=4096).complete
    assert not LowerSets([1] * 12, [1] * 12, wide, exact=False, most=13).complete
    assert len(LowerSets([1] * 12, [1] * 12, wide, exact=False, most=14)) == 14
