"""What else `auto` might have taken, for real steps to judge."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING

from memcfg.errors import InfeasiblePlanError, PlanError
from memcfg.plan.search._auto import Auto
from memcfg.plan.search._policy import fits, names_algorithms, propose
from memcfg.plan.search._request import Request
from memcfg.plan.search._time_bound import may_leave, with_gap
from memcfg.plan.search.recompute._look_ahead import look_ahead
from memcfg.plan.search.recompute._recomputation import sqrt_checkpoint
from memcfg.plan.search.recompute._repeated_blocks import repeated_blocks, repeats
from memcfg.plan.search.recompute._replay_elementwise import replay_elementwise
from memcfg.plan.search.swaps._evict import evict
from memcfg.plan.search.swaps._out_of_core import out_of_core
from memcfg.plan.search.swaps._trade import trade

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from memcfg.graph import Graph
    from memcfg.plan.format._plan import Plan
    from memcfg.plan.search._policy import Policy

# Steps that recomputed cheap ops took 0.91 to 0.98 of those that kept everything, where
# 1.01 to 1.03 was predicted; steps that copied took 1.02 to 1.07 where 1.00 was.
_SPREAD = 0.15  # of the time: how far real steps were from what ops take alone
_MOST = 6  # plans that real steps judge
_SMALL = 2_000  # ops of a graph for which several methods are tried


def contenders(
    policy: Policy | Callable[..., Plan],
    graph: Graph,
    plan: Plan,
    limit_bytes: int | None = None,
) -> tuple[Plan, ...]:
    """List plans of other methods that may be faster in real steps than one of `auto`.

    Parameters
    ----------
    policy : Policy
        What made the plan.
    graph : Graph
        The graph of the plan.
    plan : Plan
        A plan for the graph.
    limit_bytes : int or None, default None
        What a plan may use, in bytes; None: there is no limit.

    Returns
    -------
    tuple of Plan
        At most six that take no more than 1.15 of the plan's predicted time, by
        default algorithms and without loss: first the fastest that only computes
        again, the fastest that only moves, and the fastest that does both; then the
        others by their time. None, if the policy is not `auto`, may take any algorithm,
        or the graph has more than 2,000 ops.

    Notes
    -----
    The time of an op depends on what the caches hold, which no sum of op times knows:
    what was computed again a moment ago is read from them, and copies take some of the
    memory's bandwidth. `Model.compile` with ``times="measured"`` trains some steps
    under each, and keeps the one of the fastest steps.
    """
    if not isinstance(policy, Auto) or policy.algorithms != "default":
        return ()
    if len(graph.ops) > _SMALL:
        return ()
    most = (1 + _SPREAD) * plan.elapsed_seconds
    result: list[Plan] = []
    for other in _proposed(policy, graph, limit_bytes):
        known = (plan.actions, *(each.actions for each in result))
        if fits(other) and not names_algorithms(other) and other.actions not in known:
            result.append(other)
    result = sorted(
        (each for each in result if each.elapsed_seconds <= most),
        key=lambda each: each.elapsed_seconds,
    )
    levers = [_levers(each) for each in result]
    rows = sorted(range(len(result)), key=lambda n: (levers[n] in levers[:n], n))
    return tuple(with_gap(graph, result[n]) for n in rows[:_MOST])


def _levers(plan: Plan) -> tuple[bool, bool]:
    """Return whether a plan computes again, and whether it moves."""
    predicted = plan.predicted
    return predicted.recompute_seconds > 0, predicted.moved_bytes > 0


def _proposed(policy: Auto, graph: Graph, limit_bytes: int | None) -> Iterator[Plan]:
    """Plan by methods that are soon done."""
    request = Request.of(graph, policy.name, limit_bytes, policy.watch())
    methods = [look_ahead(), sqrt_checkpoint(), replay_elementwise()]
    if repeats(request):
        methods.append(repeated_blocks())
    if may_leave(graph):
        methods += [out_of_core(), evict(), trade()]
    for method in methods:
        if request.watch is not None and request.watch.is_over():
            return
        with suppress(InfeasiblePlanError, PlanError):  # such as a tier that is full
            made = propose(method, request)
            if made.summary is not None:
                summary = replace(made.summary, chosen_by=policy.name)
                yield replace(made, summary=summary)
