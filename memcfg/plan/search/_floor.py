"""The smallest limit that a policy has a plan for."""

from __future__ import annotations

from typing import TYPE_CHECKING

from memcfg.errors import InfeasiblePlanError, MemcfgError
from memcfg.units import ALIGNMENT, align_up

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from memcfg.graph import Graph
    from memcfg.plan.format._plan import Plan

_TRIES = 8  # of limits, where the first refusal did not name the smallest


class Floor:
    """What a policy says at each limit that it is asked.

    Idea: a refusal names the smallest limit that it knows of, and a plan's peak may lie
    below its limit, so both are asked next, and then halves of what lies between. What
    a refusal names is tried and not relied on: where a place to swap to has a limit of
    its own, a method may plan within less, or refuse just that. Invariant: each limit
    in `planned` has a plan, and each in `refused` has none.

    Parameters
    ----------
    plan : callable
        Plans a graph within a limit, or raises.
    graph : Graph
        The graph.
    refusals : tuple of type, default (MemcfgError,)
        What it raises where there is no plan.

    Attributes
    ----------
    planned : dict of int to Plan
        By limit, in bytes.
    refused : dict of int to MemcfgError
        By limit, in bytes.
    """

    def __init__(
        self,
        plan: Callable[[Graph, int], Plan],
        graph: Graph,
        refusals: tuple[type[MemcfgError], ...] = (MemcfgError,),
    ) -> None:
        self.planned: dict[int, Plan] = {}
        self.refused: dict[int, MemcfgError] = {}
        self._plan, self._graph, self._refusals = plan, graph, refusals

    def ask(self, limit: int) -> Plan | None:
        """Return the plan within a limit; None: it is refused."""
        try:
            plan = self.planned[limit] = self._plan(self._graph, limit)
        except self._refusals as error:
            self.refused[limit] = error
            return None
        return plan

    @property
    def limit(self) -> int:
        """The smallest limit with a plan so far."""
        return min(self.planned)

    def refused_below(self) -> int:
        """Return the largest refused limit below the smallest with a plan; 0: none."""
        return max((each for each in self.refused if each < self.limit), default=0)

    def named(self) -> int | None:
        """Return the least that was told of, has no plan above it, and is untried."""
        told = [plan.peak_bytes for plan in self.planned.values()]
        told += [
            error.smallest_limit_bytes
            for error in self.refused.values()
            if isinstance(error, InfeasiblePlanError)
        ]
        tried = self.planned.keys() | self.refused.keys()
        below = min(self.planned, default=None)
        untried = {each for each in told if below is None or each < below}
        return min(untried - tried, default=None)

    def first_of(self, limits: Iterable[int]) -> Plan | None:
        """Ask rising limits above the refused ones until one has a plan."""
        for limit in limits:
            if limit > max(self.refused, default=0) and self.ask(limit) is not None:
                break
        return self.planned[self.limit] if self.planned else None

    def narrow(self, halvings: int, bound: int) -> Plan:
        """Ask for the peak of the plan, then halve what lies above the refused.

        No limit below a bound has a plan.
        """
        for attempt in range(1 + halvings):
            limit, bad = self.limit, max(self.refused_below(), bound - 1)
            most = min(self.planned[limit].peak_bytes, limit)
            middle = align_up((bad + most) // 2) if attempt else most
            if bad < middle < limit:
                self.ask(middle)
        return self.planned[self.limit]

    def descend(self, bound: int) -> None:
        """Ask until a byte less than the floor is refused, or many limits were asked.

        What was told of comes first, then a byte less; where that has a plan, halves.
        No limit below a bound has a plan.
        """
        halve = False
        for _ in range(_TRIES):
            limit = self.named()
            if limit is None:
                if not self.planned:
                    return
                refused = self.refused_below()
                if bound <= self.limit:
                    refused = max(refused, bound - 1)
                if self.limit - 1 <= refused:
                    return
                limit = (refused + self.limit) // 2 // ALIGNMENT * ALIGNMENT
                if not halve or limit <= refused:
                    limit = self.limit - 1
                halve = True
            self.ask(limit)


def lowest_plan(policy: Callable[..., Plan], graph: Graph) -> Plan:
    """Return the plan of the lowest peak that a policy finds.

    Where tensors may leave, a method may find none within the limit that it has named,
    so that larger ones are asked until one has a plan; what refuses the last of them is
    raised.
    """

    def plan(graph: Graph, limit: int) -> Plan:
        return policy(graph, limit_bytes=limit)  # by name, as policies are called

    floor = Floor(plan, graph, (InfeasiblePlanError,))
    limit = 1
    for _ in range(1 + _TRIES):
        result = floor.ask(limit)
        if result is not None:
            return result
        refusal = floor.refused[limit]
        assert isinstance(refusal, InfeasiblePlanError)
        limit = max(limit + ALIGNMENT, refusal.smallest_limit_bytes or 0)
    raise refusal
