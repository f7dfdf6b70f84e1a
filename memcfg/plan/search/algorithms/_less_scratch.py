"""Plans with algorithms of less scratch, if the default algorithms do not fit."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from memcfg._checks import check_policy
from memcfg.errors import InfeasiblePlanError
from memcfg.plan.format._actions import Compute
from memcfg.plan.format._plan import Group
from memcfg.plan.search._request import FEW

if TYPE_CHECKING:
    from collections.abc import Callable

    from memcfg.graph import Algorithm, Graph, Op
    from memcfg.plan.format._plan import Plan

_TRIES = 5  # bisection steps between the least scratch and the default scratch


def plan_within(
    policy: Callable[..., Plan],
    graph: Graph,
    limit_bytes: int | None = None,
) -> Plan:
    """Plan a graph, with algorithms of less scratch if the defaults do not fit.

    Parameters
    ----------
    policy : Policy
        The policy.
    graph : Graph
        The graph, whose ops list algorithms.
    limit_bytes : int or None, default None
        The limit in bytes; None is no limit.

    Returns
    -------
    Plan
        The policy's plan for the default algorithms, if there is one. Otherwise the
        plan with the largest scratch per op, of up to seven amounts tried, that fits:
        an op that needs more than that amount uses the fastest of its algorithms that
        does not. The plan names algorithms other than the defaults, whose results may
        differ in the last digits.

    Raises
    ------
    TypeError
        If the policy has no argument `limit_bytes`.
    InfeasiblePlanError
        If the policy has no plan with the least scratch either. It names the smaller of
        the two smallest limits.
    """
    check_policy(policy)
    try:
        return policy(graph, limit_bytes=limit_bytes)
    except InfeasiblePlanError as error:
        refusal = error
    choices = [_choices(op) for op in graph.ops]
    sizes = sorted({each.scratch_bytes for row in choices for each in row})
    if not sizes:
        raise refusal
    try:
        best = _plan(policy, graph, limit_bytes, choices, sizes[0])
    except InfeasiblePlanError as least:
        raise min(least, refusal, key=_smallest) from None
    low, high = 0, len(sizes)
    for _ in range(_TRIES):
        if high - low < 2:
            break
        middle = (low + high) // 2
        try:
            best = _plan(policy, graph, limit_bytes, choices, sizes[middle])
        except InfeasiblePlanError:
            high = middle
        else:
            low = middle
    if best.summary is None:
        return best
    more = _smallest(refusal) - best.peak_bytes
    group = replace(best.summary.less_scratch, nbytes=more)
    return replace(best, summary=replace(best.summary, less_scratch=group))


def _smallest(error: InfeasiblePlanError) -> int:
    return error.smallest_limit_bytes


def _choices(op: Op) -> list[Algorithm]:
    """Return the algorithms of an op with less scratch than the default."""
    return [each for each in op.algorithms if each.scratch_bytes < op.scratch_bytes]


def _plan(
    policy: Callable[..., Plan],
    graph: Graph,
    limit_bytes: int | None,
    choices: list[list[Algorithm]],
    most: int,
) -> Plan:
    """Plan with at most `most` bytes of scratch per op, as far as ops have a choice."""
    taken = {
        index: _take(row, most)
        for index, (op, row) in enumerate(zip(graph.ops, choices, strict=True))
        if row and op.scratch_bytes > most
    }
    ops = list(graph.ops)
    for index, chosen in taken.items():
        ops[index] = replace(
            ops[index],
            scratch_bytes=chosen.scratch_bytes,
            seconds=chosen.seconds,
        )
    plan = policy(replace(graph, ops=tuple(ops)), limit_bytes=limit_bytes)
    actions = tuple(
        replace(action, algorithm=taken[action.op].name)
        if isinstance(action, Compute)
        and action.algorithm is None
        and action.op in taken
        else action
        for action in plan.actions
    )
    if taken:  # the gap holds only among plans with these algorithms
        predicted = replace(plan.predicted, optimality_gap=None)
        plan = replace(plan, predicted=predicted)
    summary = plan.summary and replace(plan.summary, less_scratch=_group(graph, taken))
    return replace(plan, actions=actions, summary=summary)


def _take(row: list[Algorithm], most: int) -> Algorithm:
    """Return the fastest algorithm within an amount of scratch, else the least."""
    fitting = [each for each in row if each.scratch_bytes <= most]
    if fitting:
        return min(fitting, key=lambda each: each.seconds)
    return min(row, key=lambda each: (each.scratch_bytes, each.seconds))


def _group(graph: Graph, taken: dict[int, Algorithm]) -> Group:
    """Return the group of ops with less scratch; names are by the default's scratch."""
    ops = [graph.ops[index] for index in taken]
    ops.sort(key=lambda op: -op.scratch_bytes)
    return Group(len(ops), names=tuple(op.name for op in ops[:FEW]))
