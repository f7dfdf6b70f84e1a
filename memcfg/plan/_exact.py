"""All schedules of a small graph: the one that takes the least time, proven."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar

from memcfg.errors import GraphError, InfeasiblePlanError
from memcfg.plan._bound import lower_bound
from memcfg.plan._lifetimes import Request
from memcfg.plan._policy import fits
from memcfg.units import format_bytes

if TYPE_CHECKING:
    from memcfg.graph import Graph
    from memcfg.plan._plan import Plan
    from memcfg.plan._policy import Policy

_EFFORT = 20_000_000  # states that are compared for one limit: about 10 s
_ROUNDS = 8  # searches with a tighter goal where placement exceeds the limit
_FOUND, _NONE = 0, 1  # verdicts of a search
_PARTS = 4  # of the effort: all searches for the lowest peak take so many each


@dataclass(frozen=True)
class Exact:
    """The policy that `exact` makes."""

    lossless: ClassVar = True
    name: str = "exact"
    effort: int = _EFFORT

    def __call__(self, graph: Graph, limit_bytes: int | None = None) -> Plan:
        """Plan a graph; see `Policy`."""
        request = Request.of(graph, self.name, limit_bytes)
        if not request.step.is_small:
            raise GraphError(
                f"exact() searches graphs of up to 64 ops and 128 tensors; "
                f"{graph.name!r} has {len(graph.ops)} and {len(graph.tensors)}"
            )
        if limit_bytes is None:
            return self.lowest(request)
        plan, why = self.within(request, limit_bytes)
        if plan is not None:
            return plan
        least = self.lowest(request)
        if fits(least):
            return least
        raise self._refusal(request, least, why)

    def within(self, request: Request, limit: int) -> tuple[Plan | None, str]:
        """Find the plan of least time within a limit, or say why there is none."""
        request = request.of_method(self.name)
        goal = limit
        why = ""
        for _ in range(_ROUNDS):
            verdict, sequence, _, states = request.step.least_cost(
                goal, effort=self.effort
            )
            if verdict == _NONE:
                return None, why or "no schedule needs as little"
            if verdict != _FOUND:
                return None, why or f"none was found in {states} states"
            plan = request.scheduled(sequence)
            if plan.peak_bytes <= limit:
                return _with_gap(plan, 0.0 if goal == limit else None), ""
            why = "schedules that need as little were placed higher"
            load, _, _ = request.step.measure(sequence)
            goal = min(goal - (plan.peak_bytes - limit), load - 1)
        return None, why

    def lowest(self, request: Request, known: Plan | None = None) -> Plan:
        """Find the plan of the lowest peak, and of those the one of least time.

        The search starts from a known plan, which stays if no peak is lower.
        """
        request = request.of_method(self.name)
        ops = list(range(len(request.graph.ops)))
        start = ops if known is None else request.sequence_of(known)
        effort = self.effort // _PARTS
        sequence, load, _ = request.step.least_load(start, effort=effort)
        if known is not None and load >= known.peak_bytes:
            return known
        plan, _ = self.within(request, load)
        if plan is not None:  # proven for this limit, not for a higher one
            return plan if request.limit_bytes is None else _with_gap(plan, None)
        plans = (request.scheduled(sequence), known or request.ordered(ops))
        return min(plans, key=lambda each: each.peak_bytes)

    def _refusal(self, request: Request, least: Plan, why: str) -> InfeasiblePlanError:
        limit = request.limit_bytes or 0
        return InfeasiblePlanError(
            f"{self.name} cannot plan {request.graph.name!r} within "
            f"{format_bytes(limit, exact=True)}: {why}.",
            smallest_limit_bytes=least.peak_bytes,
            lower_bound_bytes=lower_bound(request.graph),
            requested_bytes=least.peak_bytes,
            limit_bytes=limit,
            hint="Raise the limit or lower the batch size.",
        )


def _with_gap(plan: Plan, gap: float | None) -> Plan:
    return replace(plan, predicted=replace(plan.predicted, optimality_gap=gap))


def exact() -> Policy:
    """Search all schedules of a small graph, of any order and with any repetitions.

    Returns
    -------
    Policy
        The policy, for graphs of up to 64 ops and 128 tensors; larger ones are a
        `memcfg.errors.GraphError`. Without a limit it plans for the lowest peak;
        with one, for the least time within it, and then for the fewest computations.

    Notes
    -----
    The search goes from state to state: which ops have run, and which values are
    resident [1]_. It is complete, so where it ends within its work limit the plan is
    the best: its `optimality_gap` is 0. Bytes are those in use at the busiest moment,
    with outputs in the buffers of inputs of the same size. Placement may need more;
    then schedules that need less are placed, and nothing is proven. A refusal says
    whether there is no such schedule, none was found, or none could be placed.

    References
    ----------
    .. [1] P. E. Hart, N. J. Nilsson, B. Raphael, "A Formal Basis for the Heuristic
       Determination of Minimum Cost Paths", IEEE Transactions on Systems Science and
       Cybernetics 4(2), 1968.
    """
    return Exact()
