"""A plan judged again by seconds that its steps took, and replaced if it is slower."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from memcfg.errors import InfeasiblePlanError
from memcfg.plan.format._plan import Recosted
from memcfg.plan.format._simulate import simulate
from memcfg.plan.search._policy import algorithms_of
from memcfg.plan.search._request import measured_rate, stall, tier_rates
from memcfg.plan.search._time_bound import with_gap

if TYPE_CHECKING:
    from collections.abc import Callable

    from memcfg.graph import Graph
    from memcfg.plan.format._plan import Plan
    from memcfg.plan.search._policy import Policy

_MARGIN = 0.02  # of the time: less is within the noise of measured seconds


def reconsidered(
    policy: Policy | Callable[..., Plan],
    graph: Graph,
    plan: Plan,
    limit_bytes: int | None = None,
) -> Plan:
    """Cost a plan by a graph's seconds, and replace it if another is faster by them.

    Parameters
    ----------
    policy : Policy
        What made the plan.
    graph : Graph
        The graph of the plan, with other seconds than the plan was made by.
    plan : Plan
        A plan for the graph.
    limit_bytes : int or None, default None
        What another plan may use, in bytes; None: there is no limit.

    Returns
    -------
    Plan
        The same actions with what they cost by these seconds; or the plan that the
        policy makes of them, if the policy chose the method of the first, and the new
        one takes at least 2 percent less time, with what ops wait for copies, by the
        same algorithms. The summary says which.

    Raises
    ------
    PlanError
        If the plan is not one for the graph.

    Notes
    -----
    Nothing is planned where `time_lower_bound` proves that no plan gains as much.
    """
    stays = recosted(graph, plan)
    assert stays.summary is not None
    chosen = stays.summary.chosen_by
    if not chosen or (stays.gap is not None and stays.gap <= _MARGIN):
        return stays
    try:
        other = policy(graph, limit_bytes)
    except InfeasiblePlanError:  # the limit is lower by now
        return stays
    seconds = stays.elapsed_seconds
    if other.elapsed_seconds > (1 - _MARGIN) * seconds or other.summary is None:
        return stays
    if algorithms_of(other) != algorithms_of(plan):  # bits are not to change
        return stays
    told = Recosted(plan.elapsed_seconds, plan.method, seconds)
    return replace(other, summary=replace(other.summary, recosted=told))


def recosted(graph: Graph, plan: Plan) -> Plan:
    """Cost a plan by a graph's seconds.

    Parameters
    ----------
    graph : Graph
        The graph of the plan, with other seconds than the plan was made by.
    plan : Plan
        A plan for the graph.

    Returns
    -------
    Plan
        The same actions with what they cost by these seconds, which the summary says.

    Raises
    ------
    PlanError
        If the plan is not one for the graph.
    """
    cost = simulate(graph, plan, tier_rates(graph))
    assert plan.summary is not None  # whoever chose the plan said why
    told = Recosted(plan.elapsed_seconds)
    predicted = replace(
        plan.predicted,
        seconds=cost.seconds,
        recompute_seconds=cost.recompute_seconds,
        stall_seconds=stall(cost),
        optimality_gap=None,  # what was proven was so by other seconds
    )
    rate = measured_rate(graph, plan.actions)
    summary = replace(plan.summary, recosted=told, copies_per_second=rate)
    return with_gap(graph, replace(plan, predicted=predicted, summary=summary))
