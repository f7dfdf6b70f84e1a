"""The fastest method that fits."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from memcfg.errors import InfeasiblePlanError
from memcfg.plan._actions import Compute
from memcfg.plan._exact import exact_if_small
from memcfg.plan._lifetimes import Request
from memcfg.plan._look_ahead import look_ahead
from memcfg.plan._policy import draft
from memcfg.plan._repeated_blocks import repeated_blocks, repeats
from memcfg.plan._replay_elementwise import replay_elementwise
from memcfg.plan._share import share
from memcfg.plan._sqrt_checkpoint import sqrt_checkpoint
from memcfg.plan._time_bound import with_gap
from memcfg.units import format_bytes

_SMALL = 2_000  # ops of a graph for which every method is tried

if TYPE_CHECKING:
    from memcfg.graph import Graph
    from memcfg.plan._plan import Plan
    from memcfg.plan._policy import Policy


@dataclass(frozen=True)
class Auto:
    """The policy that `auto` makes."""

    name: str = "auto"

    def __call__(self, graph: Graph, limit_bytes: int | None = None) -> Plan:
        """Plan a graph; see `Policy`."""
        request = Request.of(graph, self.name, limit_bytes)
        try:
            plan = draft(share(), graph, request)
        except InfeasiblePlanError:
            plan = _fastest(graph, request)
        plan = with_gap(graph, plan)
        assert plan.summary is not None
        return replace(plan, summary=replace(plan.summary, chosen_by="auto"))


def _fastest(graph: Graph, request: Request) -> Plan:
    """Take the fastest plan that recomputes; refuse with the smallest limit."""
    plans: list[Plan] = []
    refusals: list[InfeasiblePlanError] = []
    policies = [look_ahead(), sqrt_checkpoint(), replay_elementwise()]
    policies.insert(0 if repeats(request) else len(policies), repeated_blocks())
    for policy in (*policies, *exact_if_small(graph)):
        if plans and len(graph.ops) > _SMALL:
            break
        try:
            plans.append(draft(policy, graph, request))
        except InfeasiblePlanError as refusal:
            refusals.append(refusal)
    if not plans:
        least = min(refusals, key=lambda refusal: refusal.smallest_limit_bytes)
        fields = {name: getattr(least, name) for name in least._fields}
        fields["hint"] = "Raise the limit or lower the batch size."
        raise InfeasiblePlanError(
            f"No method that auto takes can plan {graph.name!r} within "
            f"{format_bytes(request.limit_bytes or 0, exact=True)}.",
            **fields,
        )
    return min(plans, key=_time)


def _time(plan: Plan) -> tuple[float, int, int]:
    computed = sum(isinstance(action, Compute) for action in plan.actions)
    return plan.predicted.seconds, computed, plan.peak_bytes


def auto() -> Policy:
    """Take the fastest of all other policies that fits.

    Returns
    -------
    Policy
        The policy. It prefers the least predicted time, then the fewest computed
        ops (which decides where a graph states no times), then the smaller peak.

    Notes
    -----
    `keep_all` and `share` compute every op once, so nothing is faster, and the peak
    of `share` is the smaller one: it is taken when it fits. When it does not,
    `look_ahead`, `sqrt_checkpoint`, `replay_elementwise` and `repeated_blocks` plan for
    the least recomputation that fits, and the fastest plan is taken. In graphs of up to
    24 ops `exact` plans, too: with at most 8 ops nothing is faster, and no lower limit
    has a plan. For a graph of more than 2,000 ops, whose planning takes long, the plan
    of the first of them that has one is taken, which is `repeated_blocks` where blocks
    repeat.
    """
    return Auto()
