"""Lower bound of the time of any plan within a limit, and the gap of a plan."""

from __future__ import annotations

import math
import time
from dataclasses import replace
from typing import TYPE_CHECKING

from memcfg.plan.format._actions import Alias, Alloc, Compute, Free, Wait
from memcfg.plan.format._collectives import any_beside, runs_beside
from memcfg.plan.search._request import check, make_step
from memcfg.plan.search.network._network_bound import network_seconds

if TYPE_CHECKING:
    from collections.abc import Callable

    from memcfg.graph import Graph
    from memcfg.plan.format._plan import Plan
    from memcfg.plan.search._request import Request

# Effort of the search in numbers visited: for any graph, or per op if that is more.
# It takes one or two seconds. With a fixed effort, the bound of resnet(1001), 11,687
# ops, was 0.
_EFFORT = 150_000_000, 50_000
_MOST = 600_000_000  # max. effort: some seconds, which 12,000 ops get
_QUICK = 15_000_000, 5_000  # if the bound only decides what to search for
_ROUNDING = 1e-9  # relative rounding error of a sum of seconds


def time_lower_bound(graph: Graph, limit_bytes: int | None) -> float:
    """Return a lower bound of the time of any plan within a limit.

    Parameters
    ----------
    graph : Graph
        The graph.
    limit_bytes : int or None
        The limit in bytes; None is no limit.

    Returns
    -------
    float
        The bound in seconds; in a graph without times each op counts as 1. Infinite if
        it is proven that no plan fits.

    Raises
    ------
    TypeError
        If `graph` is not a graph, or the limit is not an integer.
    ValueError
        If the limit is not positive, or not below 2**63.
    GraphError
        If the sizes of the graph sum to 2**61 bytes or more.

    Notes
    -----
    The bound holds for plans that neither copy nor encode and use default algorithms,
    with any order, recomputation and placement. When an op is first computed, all its
    ancestors and none of its descendants have been computed. Each tensor that the
    descendants read is then in memory or recomputed later, and, if it is recomputed,
    so is each tensor that its op reads. Tensors that do not fit must be recomputed. The
    least time of that, over all such moments together, is a linear program in which
    fractions of ops can be recomputed. Its rows are maximum flows, the duals of minimum
    cuts between recomputed and kept tensors; they are added while the solution violates
    them. Work is limited, so the bound may be below the program's optimum. The same
    arguments give the same bound.

    References
    ----------
    .. [1] P. Jain et al., "Checkmate: Breaking the Memory Wall with Optimal Tensor
       Rematerialization", MLSys 2020, arXiv:1910.02653, whose linear relaxation is for
       a fixed order.
    .. [2] W. Ben-Ameur, J. Neto, "Acceleration of cutting-plane and column generation
       algorithms", Networks 49, 2007: the separation points of the cutting planes.
    """
    return _bound(graph, limit_bytes, None)


def _bound(
    graph: Graph,
    limit_bytes: int | None,
    is_over: Callable[[], bool] | None,
    efforts: tuple[int, int] = _EFFORT,
) -> float:
    check(graph, limit_bytes)
    once = sum(costs(graph))
    if limit_bytes is None or (is_over is not None and is_over()):
        return once
    replayable = frozenset(i for i, op in enumerate(graph.ops) if op.replayable)
    step = make_step(graph, frozenset(), replayable, is_over)
    effort = min(max(efforts[0], efforts[1] * len(graph.ops)), _MOST)
    return once + step.extra_cost(limit_bytes, effort=effort)


def beats_recomputation(request: Request, limit_bytes: int, seconds: float) -> bool:
    """Return whether `seconds` is proven faster than any plan without copies.

    False if no plan without copies fits, or the graph has no times.
    """
    graph = request.graph
    if seconds == math.inf or not any(op.seconds for op in graph.ops):
        return False
    least = request.once(
        ("time bound", limit_bytes),
        lambda: _bound(graph, limit_bytes, request.is_over, _QUICK),
    )
    return bool(seconds * (1 + _ROUNDING) < least < math.inf)


def is_as_fast_as_any(request: Request, limit_bytes: int, seconds: float) -> bool:
    """Return whether it is proven that no plan within a limit is faster, or fits."""
    least = request.once(
        ("whole time bound", limit_bytes),
        lambda: _bound(request.graph, limit_bytes, request.is_over),
    )
    return seconds <= least * (1 + _ROUNDING)


def with_gap(
    graph: Graph,
    plan: Plan,
    is_over: Callable[[], bool] | None = None,
    known: float | None = None,
) -> Plan:
    """Return the plan with its gap from the time lower bound, if it can be computed.

    A smaller gap that is already proven stays. ``is_over()`` ends the search for a
    bound, which is not made if that of plans without copies within the limit is known.
    If tensors may be swapped, the only bound is the time of each op once.
    With collectives, `network_seconds` bounds it, too.
    """
    meets = any_beside(graph)
    leaves = may_leave(graph)
    proven = None if leaves or meets else plan.gap
    if proven == 0:
        return plan
    began = time.perf_counter()
    each = costs(graph)
    taken = 0.0
    computed = 0
    for action in plan.actions:
        if isinstance(action, Compute) and action.algorithm is None:
            taken += each[action.op]
            computed += 1
        elif isinstance(action, Compute):
            return plan
        elif not isinstance(action, Alloc | Alias | Free | Wait):
            leaves = True
    if (leaves or meets) and not any(op.seconds for op in graph.ops):
        predicted = replace(plan.predicted, optimality_gap=None)
        return replace(plan, predicted=predicted)  # waits and ops have different units
    gap = 0.0
    if computed > len(each) or leaves or meets:
        taken += plan.elapsed_seconds - plan.predicted.seconds
        limit = None if leaves else plan.limit_bytes
        if known is None or leaves:
            known = _bound(graph, limit, is_over)
        least = max(known, network_seconds(graph)) if meets else known
        gap = max(0.0, taken / least - 1.0) if least else 0.0
        gap = gap if proven is None else min(gap, proven)
    seconds = plan.predicted.planning_seconds + time.perf_counter() - began
    predicted = replace(plan.predicted, optimality_gap=gap, planning_seconds=seconds)
    return replace(plan, predicted=predicted)


def may_leave(graph: Graph) -> bool:
    """Return whether `auto` may swap: a tier is configured by the user."""
    return any(tier.is_stated for tier in graph.tiers)


def costs(graph: Graph) -> list[float]:
    """Return the seconds of each op, or 1 for each op in a graph without times.

    With times, collectives count 0: others may run meanwhile.
    """
    timed = any(op.seconds for op in graph.ops)
    return [
        0.0 if timed and runs_beside(op) else op.seconds if timed else 1.0
        for op in graph.ops
    ]
