"""Lower and lower limits, each with its plan or the reason that there is none."""

from __future__ import annotations

from typing import TYPE_CHECKING

from memcfg.commands._at_work import shown
from memcfg.errors import InfeasiblePlanError, MemcfgError
from memcfg.plan import lower_bound
from memcfg.units import ALIGNMENT, format_bytes

if TYPE_CHECKING:
    from collections.abc import Iterator

    from memcfg.graph import Graph
    from memcfg.plan import Plan, Policy

PARTS = tuple(range(100, 0, -10))  # limits in percent of the peak of `share`
_TRIES = 8  # of limits, where the first refusal did not name the smallest


class Rungs:
    """The plans of a policy by limit; limits and peaks in bytes.

    The smallest limit that a refusal names is tried, and not relied on: where a place
    to swap to has a limit, a method may fit less, or refuse that limit.

    Raises
    ------
    MemcfgError
        That of the largest limit, if none has a plan.
    """

    def __init__(self, policy: Policy, graph: Graph, default: int) -> None:
        self.planned: dict[int, Plan] = {}
        self.refused: dict[int, MemcfgError] = {}
        self._policy, self._graph = policy, graph
        self._bound = lower_bound(graph)
        steps = [default * part // 100 for part in PARTS]
        self._ask(1, "the smallest limit")
        first = self._named()
        if first is None or _is_short(graph):
            asked = {limit for limit in steps if limit >= self._bound}
        else:
            asked = {limit for limit in steps if limit > first}
        asked |= {first} if first is not None else set()
        for number, limit in enumerate(sorted(asked, reverse=True), 1):
            self._ask(limit, f"{format_bytes(limit)}, {number} of {len(asked)}")
        for limit in self._below():
            self._ask(limit, "the smallest limit")
        if not self.planned:
            raise self.refused[max(self.refused)]
        self.limits = [
            limit for limit in steps if limit in asked and limit > self.floor
        ]
        self.limits.append(self.floor)

    @property
    def floor(self) -> int:
        """The smallest limit that has a plan."""
        return min(self.planned)

    @property
    def refused_below(self) -> int | None:
        """The largest limit below the floor that is refused, or below the bound."""
        below = [limit for limit in self.refused if limit < self.floor]
        if self._bound <= self.floor:
            below.append(self._bound - 1)
        return max(below, default=0) or None

    def _ask(self, limit: int, what: str) -> None:
        with shown(f"planning: {what}"):
            try:
                self.planned[limit] = self._policy(self._graph, limit)
            except MemcfgError as error:
                self.refused[limit] = error

    def _named(self) -> int | None:
        """Return the least that was told of, lies below the floor, and is untried."""
        told = [plan.peak_bytes for plan in self.planned.values()]
        told += [
            error.smallest_limit_bytes
            for error in self.refused.values()
            if isinstance(error, InfeasiblePlanError)
        ]
        tried = self.planned.keys() | self.refused.keys()
        below = min(self.planned, default=None)
        untried = (each for each in told if below is None or each < below)
        return min(set(untried) - tried, default=None)

    def _below(self) -> Iterator[int]:
        """Give limits until a byte less than the floor is refused, or many were tried.

        What was told of comes first, then a byte less; where that has a plan, halves.
        """
        halve = False
        for _ in range(_TRIES):
            limit = self._named()
            if limit is None:
                if not self.planned:
                    return
                refused = self.refused_below or 0
                if self.floor - 1 <= refused:
                    return
                limit = (refused + self.floor) // 2 // ALIGNMENT * ALIGNMENT
                if not halve or limit <= refused:
                    limit = self.floor - 1
                halve = True
            yield limit


def _is_short(graph: Graph) -> bool:
    """Whether a place to swap to has a limit."""
    return any(tier.limit_bytes is not None for tier in graph.tiers)
