"""Plans judged again by the measured times of ops, and replaced by faster ones."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from memcfg.errors import InfeasiblePlanError
from memcfg.plan.format._plan import Recosted
from memcfg.plan.format._simulate import simulate, tier_rates
from memcfg.plan.search._policy import algorithms_of
from memcfg.plan.search._request import measured_rate, stall
from memcfg.plan.search._time_bound import with_gap

if TYPE_CHECKING:
    from collections.abc import Callable

    from memcfg.graph import Graph
    from memcfg.plan.format._plan import Plan
    from memcfg.plan.search._policy import Policy

_MARGIN = 0.02  # relative; smaller differences are measurement noise


def reconsidered(
    policy: Policy | Callable[..., Plan],
    graph: Graph,
    plan: Plan,
    limit_bytes: int | None = None,
) -> Plan:
    """Predict a plan's time from new op times, and replace the plan if one is faster.

    Parameters
    ----------
    policy : Policy
        The policy that made the plan.
    graph : Graph
        The graph of the plan, with new op times.
    plan : Plan
        A plan for the graph.
    limit_bytes : int or None, default None
        The limit of another plan in bytes; None is no limit.

    Returns
    -------
    Plan
        The same actions with new predictions; or a new plan of the policy, if the
        policy chooses between methods (as `auto`), and the new plan takes at least 2 %
        less time, including waits for copies, with the same algorithms. The summary
        says which of them it is.

    Raises
    ------
    PlanError
        If the plan does not fit the graph.

    Notes
    -----
    The policy is not called if `time_lower_bound` proves that no plan gains 2 %.
    """
    stays = recosted(graph, plan)
    assert stays.summary is not None
    chosen = stays.summary.chosen_by
    if not chosen or (stays.gap is not None and stays.gap <= _MARGIN):
        return stays
    try:
        other = policy(graph, limit_bytes)
    except InfeasiblePlanError:  # the limit has been lowered since
        return stays
    seconds = stays.elapsed_seconds
    if other.elapsed_seconds > (1 - _MARGIN) * seconds or other.summary is None:
        return stays
    if algorithms_of(other) != algorithms_of(plan):  # results must keep their bits
        return stays
    record = Recosted(plan.elapsed_seconds, plan.method, seconds)
    return replace(other, summary=replace(other.summary, recosted=record))


def recosted(graph: Graph, plan: Plan) -> Plan:
    """Predict a plan's time from new op times.

    Parameters
    ----------
    graph : Graph
        The graph of the plan, with new op times.
    plan : Plan
        A plan for the graph.

    Returns
    -------
    Plan
        The same actions with new predictions; the summary has the old time.

    Raises
    ------
    PlanError
        If the plan does not fit the graph.
    """
    cost = simulate(graph, plan, tier_rates(graph))
    assert plan.summary is not None
    record = Recosted(plan.elapsed_seconds)
    predicted = replace(
        plan.predicted,
        seconds=cost.seconds,
        recompute_seconds=cost.recompute_seconds,
        stall_seconds=stall(cost),
        optimality_gap=None,  # proven for the old times only
    )
    rate = measured_rate(graph, plan.actions)
    summary = replace(plan.summary, recosted=record, copies_per_second=rate)
    return with_gap(graph, replace(plan, predicted=predicted, summary=summary))
