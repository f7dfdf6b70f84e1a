"""Errors of plans that exceed the limits of tiers.

With limited tiers, the device bytes that a method needs depend on the bytes it may use
on tiers, and a larger limit does not guarantee a plan. So errors name only limits for
which a plan was made.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from memcfg._advice import larger_limit_or
from memcfg.errors import InfeasiblePlanError, PlanError
from memcfg.plan.format._actions import Compute
from memcfg.plan.format._simulate import simulate
from memcfg.plan.format._tier_choice import tiers_of
from memcfg.plan.search._bound import lower_bound
from memcfg.plan.search._floor import Floor
from memcfg.units import exact

if TYPE_CHECKING:
    from collections.abc import Callable

    from memcfg.graph import Graph
    from memcfg.plan.format._plan import Plan
    from memcfg.plan.format._simulate import Simulation
    from memcfg.plan.search._request import Request

_HALVINGS = 2  # bisection steps between a limit without a plan and one with a plan


class TierFullError(PlanError):
    """A plan exceeds the limit of a tier."""


def limits_of(graph: Graph) -> dict[str, int]:
    """Map the tiers that have a limit to the limit in bytes."""
    tiers = tiers_of(graph)
    return {t.name: t.limit_bytes for t in tiers if t.limit_bytes is not None}


def beyond_limits(method: str, graph: Graph, simulation: Simulation) -> str:
    """Return a message about bytes beyond limits of tiers; empty if there are none."""
    excess, parts = 0, list[str]()
    for name, limit in limits_of(graph).items():
        there = simulation.tier_peak_bytes.get(name, 0)
        excess += max(there - limit, 0)
        of = "" if parts else f" of {graph.name!r}"
        parts.append(f"{exact(there)}{of} on {name!r}, whose limit is {exact(limit)}")
    message = f"{method} has {', and '.join(parts)}: {exact(excess)} too much."
    return message if excess else ""


def tier_excess(request: Request, plan: Plan) -> int:
    """Return the bytes by which a plan exceeds the limits of tiers."""
    if not plan.predicted.host_peak_bytes or not limits_of(request.graph):
        return 0
    simulation = simulate(request.graph, in_own_numbers(request, plan))
    limits = limits_of(request.graph)
    there = simulation.tier_peak_bytes
    return sum(max(there.get(t, 0) - limit, 0) for t, limit in limits.items())


def within_tier(request: Request, plan: Plan) -> Plan:
    """Return the plan, or raise TierFullError if it exceeds the limit of a tier."""
    if not tier_excess(request, plan):
        return plan
    simulation = simulate(request.graph, in_own_numbers(request, plan))
    message = beyond_limits(request.method, request.graph, simulation)
    raise TierFullError(f"{message} Raise spill_limit, or use another method")


def in_own_numbers(request: Request, plan: Plan) -> Plan:
    """Return a plan with op indices of the request's graph instead of the original."""
    number = {given: index for index, given in enumerate(request.order)}
    actions = tuple(
        replace(action, op=number[action.op]) if isinstance(action, Compute) else action
        for action in plan.actions
    )
    return replace(plan, actions=actions)


def within_tiers(
    name: str,
    graph: Graph,
    limit_bytes: int | None,
    plan: Callable[[Graph, int | None], Plan],
    tried: Callable[[Graph, int], Plan] | None = None,
) -> Plan:
    """Plan; if that fails, raise an error that names a limit for which a plan exists.

    Parameters
    ----------
    name : str
        The method's name.
    graph : Graph
        The graph.
    limit_bytes : int or None
        The limit in bytes.
    plan : callable
        ``plan(graph, limit)`` returns a plan, or raises InfeasiblePlanError or
        TierFullError.
    tried : callable or None, default None
        Like `plan`, but it need not look for the lowest peak; None uses `plan`.

    Returns
    -------
    Plan
        The plan.

    Raises
    ------
    InfeasiblePlanError
        If there is no plan within the limit, but one within a larger limit.
    TierFullError
        If no limit of the device was found to suffice.
    """
    try:
        return plan(graph, limit_bytes)
    except (InfeasiblePlanError, TierFullError) as error:
        if limit_bytes is None or not limits_of(graph):
            raise
        refusal = error
    refusals = InfeasiblePlanError, TierFullError
    floor = Floor(tried or plan, graph, refusals, lower_bound(graph))
    floor.refused[limit_bytes] = refusal
    everything = sum(graph.aligned_bytes)
    everything += max((op.scratch_bytes for op in graph.ops), default=0)
    named = getattr(refusal, "smallest_limit_bytes", 0)
    if floor.first_of(sorted({named, everything})) is None:
        raise refusal
    lowest = floor.narrow(_HALVINGS)
    raise _refused(name, graph, limit_bytes, lowest, tried or plan) from None


def _refused(
    name: str,
    graph: Graph,
    limit_bytes: int,
    lowest: Plan,
    plan: Callable[[Graph, int], Plan],
) -> InfeasiblePlanError:
    """Return an error that names a sufficient limit, and what tiers lack for less."""
    enough = lowest.limit_bytes or 0
    first, other = "raise spill_limit", "raise the limit"
    advice = larger_limit_or(graph.batch_size, other, first=first)
    try:
        wanted = plan(_with_room(graph), limit_bytes)
    except (InfeasiblePlanError, TierFullError):
        pass  # larger tiers would not suffice
    else:
        needs = simulate(_with_room(graph), wanted)
        if lacking := beyond_limits(name, graph, needs):
            advice = f"{lacking} {advice}"
    return InfeasiblePlanError(
        f"{name} cannot plan {graph.name!r} within {exact(limit_bytes)} and "
        "the limits of its tiers.",
        smallest_limit_bytes=enough,
        lower_bound_bytes=lowest.lower_bound_bytes,
        is_smallest=False,
        requested_bytes=enough,
        limit_bytes=limit_bytes,
        hint=advice,
    )


def _with_room(graph: Graph) -> Graph:
    """Return the graph with the last tier's limit removed."""
    *tiers, last = tiers_of(graph)
    return replace(graph, tiers=(*tiers, replace(last, limit_bytes=None)))
