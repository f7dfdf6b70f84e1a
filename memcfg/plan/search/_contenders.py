"""Alternatives to a plan of `auto`, to be compared in real steps."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING

from memcfg.errors import InfeasiblePlanError, PlanError
from memcfg.plan.search._auto import Auto
from memcfg.plan.search._overlap import overlapped
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

# Measured relative to keeping everything: steps that recomputed cheap ops took 0.91 to
# 0.98 (predicted 1.01 to 1.03), steps that copied 1.02 to 1.07 (predicted 1.00).
_SPREAD = 0.15  # relative error of predicted step times
_MOST = 6  # max. plans to compare
_SMALL = 2_000  # max. ops of a graph for which several methods are tried


def contenders(
    policy: Policy | Callable[..., Plan],
    graph: Graph,
    plan: Plan,
    limit_bytes: int | None = None,
) -> tuple[Plan, ...]:
    """Return plans of other methods that may be faster in real steps than `auto`'s.

    Parameters
    ----------
    policy : Policy
        The policy that made the plan.
    graph : Graph
        The graph of the plan.
    plan : Plan
        A plan for the graph.
    limit_bytes : int or None, default None
        The limit of other plans in bytes; None is no limit.

    Returns
    -------
    tuple of Plan
        At most six lossless plans with default algorithms and at most 1.15 of the
        plan's predicted time. First come the fastest plan that only recomputes, the
        fastest that only copies, and the fastest that does both; then the others by
        time. Empty if the policy is not `auto` with default algorithms, or the graph
        has more than 2,000 ops.

    Notes
    -----
    A sum of op times ignores caches and bandwidth: recomputed tensors are read from
    the cache, and copies use some of the memory bandwidth. `Model.compile` with
    ``times="measured"`` trains some steps under each plan, and keeps the plan with the
    fastest steps.
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
    """Return whether a plan recomputes, and whether it copies."""
    predicted = plan.predicted
    return predicted.recompute_seconds > 0, predicted.moved_bytes > 0


def _proposed(policy: Auto, graph: Graph, limit_bytes: int | None) -> Iterator[Plan]:
    """Yield the plans of the fast methods that `auto` tries."""
    request = Request.of(graph, policy.name, limit_bytes, policy.watch())
    methods = [look_ahead(), sqrt_checkpoint(), replay_elementwise()]
    if repeats(request):
        methods.append(repeated_blocks())
    if may_leave(graph):
        methods += [out_of_core(), evict(), trade()]
    for method in methods:
        if request.watch is not None and request.watch.is_over():
            return
        with suppress(InfeasiblePlanError, PlanError):  # a tier may be full
            made = overlapped(request, propose(method, request))
            if made.summary is not None:
                summary = replace(made.summary, chosen_by=policy.name)
                yield replace(made, summary=summary)
