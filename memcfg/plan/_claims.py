"""What the judge says of the numbers that a plan claims beside its actions.

Owns the comparison of claims with actions, and the list of what is not compared.
Refuses, like the rest of the judge, everything of the planners.

A claim of 0 (or none, for the gap) says nothing and is not judged, unless it stands
beside another: ``recompute_seconds`` of 0 with ``seconds`` of 3 is a claim. Times are
judged where they can be known: in a plan without copies and encodings, whose time the
format leaves open (they may overlap with ops or stall them), over a graph that states
times.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from memcfg.plan._actions import Compute, Decode, Encode, SwapIn, SwapOut

if TYPE_CHECKING:
    from collections.abc import Iterator

    from memcfg.graph import Graph
    from memcfg.plan._plan import Plan

__all__ = ["check_claims", "list_unchecked"]

_TOLERANCE = 1e-9  # of the time; sums in another order differ in the last digits


def check_claims(
    graph: Graph, plan: Plan, peak: int, away_peak: int, moved: int
) -> Iterator[str]:
    """Yield a sentence for each claim that does not hold; the rest are true bytes."""
    claims, limit = plan.predicted, plan.limit_bytes
    if plan.graph != graph.name:
        yield f"the plan is for {plan.graph!r}, the graph is {graph.name!r}"
    if claims.peak_bytes != peak:
        yield f"the peak is {peak} B, claimed are {claims.peak_bytes} B"
    if limit is not None and peak > limit:
        yield f"the peak of {peak} B is above the limit of {limit} B"
    if claims.lower_bound_bytes > peak:
        yield (
            f"the peak of {peak} B is below the claimed lower bound of "
            f"{claims.lower_bound_bytes} B"
        )
    for name, claimed, true in (
        ("host_peak_bytes", claims.host_peak_bytes, away_peak),
        ("moved_bytes", claims.moved_bytes, moved),
    ):
        if claimed and claimed != true:
            yield f"{name} is {true} B, claimed are {claimed} B"
    if _can_time(graph, plan):
        yield from _check_times(graph, plan)


def list_unchecked(graph: Graph, plan: Plan) -> list[str]:
    """List codecs, and claims that `check_claims` takes on trust, with a reason."""
    claims = plan.predicted
    codecs = (action.codec for action in plan.actions if isinstance(action, Encode))
    found = [
        f"codec {codec!r} (unknown: neither its sizes nor what it gives back)"
        for codec in dict.fromkeys(codecs)
        if codec != "zero_words"
    ]
    if claims.lower_bound_bytes:
        found.append("lower_bound_bytes (only that it is not above the peak)")
    if not _can_time(graph, plan):
        reason = (
            "the plan copies or encodes"
            if _is_timed(graph)
            else "the graph states no times"
        )
        found += [
            f"{name} ({reason})"
            for name in ("seconds", "recompute_seconds")
            if getattr(claims, name)
        ]
    if claims.planning_seconds:
        found.append("planning_seconds (it has passed)")
    if claims.optimality_gap is not None:
        found.append("optimality_gap (it takes a proof)")
    return found


def _has(plan: Plan, *kinds: type) -> bool:
    return any(isinstance(action, kinds) for action in plan.actions)


def _is_timed(graph: Graph) -> bool:
    return any(op.seconds or any(a.seconds for a in op.algorithms) for op in graph.ops)


def _can_time(graph: Graph, plan: Plan) -> bool:
    copies = _has(plan, SwapOut, SwapIn, Encode, Decode)
    return _is_timed(graph) and not copies


def _check_times(graph: Graph, plan: Plan) -> Iterator[str]:
    claims = plan.predicted
    if not claims.seconds and not claims.recompute_seconds:
        return
    seconds, again = _times(graph, plan)
    for name, claimed, true in (
        ("seconds", claims.seconds, seconds),
        ("recompute_seconds", claims.recompute_seconds, again),
    ):
        if not math.isclose(claimed, true, rel_tol=0, abs_tol=_TOLERANCE * seconds):
            yield f"{name} is {true:.9g}, claimed are {claimed:.9g}"


def _times(graph: Graph, plan: Plan) -> tuple[float, float]:
    """Sum the seconds of all computed ops, and of those computed before."""
    seconds = again = 0.0
    computed: set[int] = set()
    for action in plan.actions:
        if not isinstance(action, Compute) or not 0 <= action.op < len(graph.ops):
            continue  # blamed elsewhere
        op = graph.ops[action.op]
        named = [a.seconds for a in op.algorithms if a.name == action.algorithm]
        taken = named[0] if named else op.seconds
        seconds += taken
        again += taken if action.op in computed else 0.0
        computed.add(action.op)
    return seconds, again
