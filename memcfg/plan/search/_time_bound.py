"""A time that no plan is below within a limit, and how far plans are from it."""

from __future__ import annotations

import math
import time
from dataclasses import replace
from typing import TYPE_CHECKING

from memcfg.plan.format._actions import Alias, Alloc, Compute, Free
from memcfg.plan.search._request import check, make_step

if TYPE_CHECKING:
    from collections.abc import Callable

    from memcfg.graph import Graph
    from memcfg.plan.format._plan import Plan
    from memcfg.plan.search._request import Request

# Work by op keeps the bound useful for large graphs: with a fixed effort the bound of
# resnet(1001), 11,687 ops, was 0.
# Of the search, in numbers looked at: of any graph, or by op if more; a second or two.
_EFFORT = 150_000_000, 50_000
_QUICK = 15_000_000, 5_000  # where it decides what is searched for
_ROUNDING = 1e-9  # of a sum of seconds


def time_lower_bound(graph: Graph, limit_bytes: int | None) -> float:
    """Return a time that no plan within a limit is below.

    Parameters
    ----------
    graph : Graph
        The graph.
    limit_bytes : int or None
        The limit in bytes; None: no limit.

    Returns
    -------
    float
        Seconds; in a graph that states no times each op counts 1. Infinite if it is
        proven that no plan fits, whatever time it takes.

    Raises
    ------
    TypeError
        If it is not a graph, or the limit no whole number.
    ValueError
        If the limit is not positive, or beyond 64 bits.
    GraphError
        If the sizes of the graph sum to more than 2**62 bytes.

    Notes
    -----
    It holds for plans that neither copy nor encode and run each op by its default
    algorithm: in any order, each op as often as they like, wherever the bytes lie. When
    an op is first computed, its ancestors were and its descendants were not. What these
    read is in memory at that moment, or computed again later, and so is, in turn, what
    that reads. What does not fit has to be computed again; how much time that takes at
    least, over all such moments together, is a linear program, in which parts of ops
    can be computed again. Its rows are maximal flows, the duals of minimal cuts between
    what is computed again and what is kept, and are added while its solution violates
    them. Work is limited, so the bound may be lower than the program's optimum. The
    same arguments give the same bound.

    References
    ----------
    .. [1] P. Jain et al., "Checkmate: Breaking the Memory Wall with Optimal Tensor
       Rematerialization", MLSys 2020, arXiv:1910.02653, whose linear relaxation is for
       a fixed order.
    .. [2] W. Ben-Ameur, J. Neto, "Acceleration of cutting-plane and column generation
       algorithms", Networks 49, 2007: where rows are looked for.
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
    effort = max(efforts[0], efforts[1] * len(graph.ops))
    return once + step.extra_cost(limit_bytes, effort=effort)


def beats_recomputation(request: Request, limit_bytes: int, seconds: float) -> bool:
    """Return whether no plan within a limit takes as few seconds without copies.

    False, too, where that is not known: that no plan fits, or how long ops take.
    """
    graph = request.graph
    if seconds == math.inf or not any(op.seconds for op in graph.ops):
        return False
    least = request.once(
        ("time bound", limit_bytes),
        lambda: _bound(graph, limit_bytes, request.is_over, _QUICK),
    )
    return bool(seconds * (1 + _ROUNDING) < least < math.inf)


def with_gap(
    graph: Graph, plan: Plan, is_over: Callable[[], bool] | None = None
) -> Plan:
    """Say how far a plan is from the least time of its limit, if that can be known.

    What was proven of it stays; ``is_over()`` ends the search for a bound. Where
    tensors may leave the device, no bound is known but each op once.
    """
    leaves = may_leave(graph)
    proven = None if leaves else plan.gap
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
        elif not isinstance(action, Alloc | Alias | Free):
            leaves = True
    if leaves and not any(op.seconds for op in graph.ops):
        predicted = replace(plan.predicted, optimality_gap=None)
        return replace(plan, predicted=predicted)  # waits are seconds; ops have none
    gap = 0.0
    if computed > len(each) or leaves:
        taken += plan.elapsed_seconds - plan.predicted.seconds
        limit = None if leaves else plan.limit_bytes
        least = _bound(graph, limit, is_over)
        gap = max(0.0, taken / least - 1.0) if least else 0.0
        gap = gap if proven is None else min(gap, proven)
    seconds = plan.predicted.planning_seconds + time.perf_counter() - began
    predicted = replace(plan.predicted, optimality_gap=gap, planning_seconds=seconds)
    return replace(plan, predicted=predicted)


def may_leave(graph: Graph) -> bool:
    """Return whether `auto` may have tensors leave the device."""
    return any(tier.is_stated for tier in graph.tiers)


def costs(graph: Graph) -> list[float]:
    """Return the seconds of each op; 1 in a graph that states none."""
    timed = any(op.seconds for op in graph.ops)
    return [op.seconds if timed else 1.0 for op in graph.ops]
