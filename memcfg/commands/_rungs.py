"""Lower and lower limits, each with its plan or the reason that there is none."""

from __future__ import annotations

from typing import TYPE_CHECKING

from memcfg.commands._at_work import shown
from memcfg.plan import lower_bound
from memcfg.plan.search._floor import Floor
from memcfg.units import format_bytes

if TYPE_CHECKING:
    from memcfg.graph import Graph
    from memcfg.plan import Plan, Policy

PARTS = tuple(range(100, 0, -10))  # limits in percent of the peak of `share`


class Rungs:
    """What a policy said at each limit; limits and peaks in bytes.

    Raises
    ------
    MemcfgError
        That of the largest limit, if none has a plan.
    """

    def __init__(self, policy: Policy, graph: Graph, default: int) -> None:
        self._policy, self._what = policy, "the smallest limit"
        bound = lower_bound(graph)
        self._found = floor = Floor(self._plan, graph, bound=bound)
        self.planned, self.refused = floor.planned, floor.refused
        steps = [default * part // 100 for part in PARTS]
        floor.ask(1)
        first = floor.named()
        if first is None or _is_short(graph):
            asked = {limit for limit in steps if limit >= bound}
        else:
            asked = {limit for limit in steps if limit > first}
        asked |= {first} if first is not None else set()
        for number, limit in enumerate(sorted(asked, reverse=True), 1):
            self._what = f"{format_bytes(limit)}, {number} of {len(asked)}"
            floor.ask(limit)
        self._what = "the smallest limit"
        floor.descend()
        if not self.planned:
            raise self.refused[max(self.refused)]
        self.limits = [
            limit for limit in steps if limit in asked and limit > self.floor
        ]
        self.limits.append(self.floor)

    @property
    def floor(self) -> int:
        """The smallest limit that has a plan."""
        return self._found.limit

    @property
    def refused_below(self) -> int | None:
        """The largest limit below the floor that is refused, or below the bound."""
        return self._found.refused_below() or None

    def _plan(self, graph: Graph, limit: int) -> Plan:
        with shown(f"planning: {self._what}"):
            return self._policy(graph, limit)


def _is_short(graph: Graph) -> bool:
    """Return whether a place to swap to has a limit."""
    return any(tier.limit_bytes is not None for tier in graph.tiers)
