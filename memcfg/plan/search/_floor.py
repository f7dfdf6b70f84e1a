"""Search for the smallest limit for which a policy has a plan."""

from __future__ import annotations

from typing import TYPE_CHECKING

from memcfg._frames import without_frames
from memcfg.errors import InfeasiblePlanError, MemcfgError
from memcfg.units import ALIGNMENT, align_up

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from memcfg.graph import Graph
    from memcfg.plan.format._plan import Plan

_TRIES = 8  # max. limits to try if the first error did not name the smallest


class Floor:
    """Results of a policy at several limits, to find the smallest limit with a plan.

    Idea: an error names the smallest limit that the policy knows, and a plan's peak may
    be below its limit, so both are tried next, and then a bisection. The named limit is
    not relied on: with limited tiers, a method may plan within less, or fail there.
    Invariant: each limit in `planned` has a plan, and each in `refused` has none.

    Parameters
    ----------
    plan : callable
        ``plan(graph, limit)`` returns a plan or raises.
    graph : Graph
        The graph.
    refusals : tuple of type, default (MemcfgError,)
        The exceptions that mean that there is no plan.
    bound : int, default 0
        A lower bound of any limit, in bytes.

    Attributes
    ----------
    planned : dict of int to Plan
        Plans by limit, in bytes.
    refused : dict of int to MemcfgError
        Exceptions by limit, in bytes.
    """

    def __init__(
        self,
        plan: Callable[[Graph, int], Plan],
        graph: Graph,
        refusals: tuple[type[MemcfgError], ...] = (MemcfgError,),
        bound: int = 0,
    ) -> None:
        self.planned: dict[int, Plan] = {}
        self.refused: dict[int, MemcfgError] = {}
        self._plan, self._graph = plan, graph
        self._refusals, self._bound = refusals, bound

    def ask(self, limit: int) -> Plan | None:
        """Plan within a limit; return the plan, or None if there is none."""
        try:
            plan = self.planned[limit] = self._plan(self._graph, limit)
        except self._refusals as error:
            self.refused[limit] = without_frames(error)
            return None
        return plan

    @property
    def limit(self) -> int:
        """The smallest tried limit with a plan."""
        return min(self.planned)

    def refused_below(self) -> int:
        """Return the largest limit below `limit` without a plan, or 0.

        It was refused, or is below the bound.
        """
        limits = [each for each in self.refused if each < self.limit]
        if 0 < self._bound <= self.limit:
            limits.append(self._bound - 1)
        return max(limits, default=0)

    def named(self) -> int | None:
        """Return the smallest untried limit below `limit` that results name, or None.

        Results name the peaks of plans and the smallest limits of errors.
        """
        limits = [plan.peak_bytes for plan in self.planned.values()]
        limits += [
            error.smallest_limit_bytes
            for error in self.refused.values()
            if isinstance(error, InfeasiblePlanError)
        ]
        tried = self.planned.keys() | self.refused.keys()
        below = min(self.planned, default=None)
        untried = {each for each in limits if below is None or each < below}
        return min(untried - tried, default=None)

    def first_of(self, limits: Iterable[int]) -> Plan | None:
        """Try limits, in increasing order and above the refused ones, until one fits.

        Return the plan at the smallest limit, or None.
        """
        for limit in limits:
            if limit > max(self.refused, default=0) and self.ask(limit) is not None:
                break
        return self.planned[self.limit] if self.planned else None

    def narrow(self, halvings: int) -> Plan:
        """Try the peak of the best plan, then bisect down to the refused limits.

        Return the plan at the smallest limit.
        """
        for attempt in range(1 + halvings):
            limit, bad = self.limit, self.refused_below()
            most = min(self.planned[limit].peak_bytes, limit)
            middle = align_up((bad + most) // 2) if attempt else most
            if bad < middle < limit:
                self.ask(middle)
        return self.planned[self.limit]

    def descend(self) -> None:
        """Try limits until one byte less is refused, or `_TRIES` limits were tried.

        Named limits come first, then one byte less; if that has a plan, a bisection.
        """
        halve = False
        for _ in range(_TRIES):
            limit = self.named()
            if limit is None:
                if not self.planned:
                    return
                refused = self.refused_below()
                if self.limit - 1 <= refused:
                    return
                limit = (refused + self.limit) // 2 // ALIGNMENT * ALIGNMENT
                if not halve or limit <= refused:
                    limit = self.limit - 1
                halve = True
            self.ask(limit)


def lowest_plan(policy: Callable[..., Plan], graph: Graph) -> Plan:
    """Return the plan with the lowest peak that a policy finds.

    With limited tiers, a method may have no plan within the limit that its error names,
    so larger limits are tried until one has a plan; otherwise the last error is raised.
    """

    def plan(graph: Graph, limit: int) -> Plan:
        return policy(graph, limit_bytes=limit)  # policies take the limit by keyword

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
