"""Checkmate (Jain et al. 2020): optimal recomputation in the order of the graph."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from memcfg.errors import PlanError
from memcfg.plan.methods._candidates import plan_cheapest
from memcfg.plan.methods._highs import solve
from memcfg.plan.methods._stages import Stages
from memcfg.plan.search._policy import Method, fits
from memcfg.plan.search._watch import seconds_left

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    from memcfg.plan.format._plan import Plan
    from memcfg.plan.search._policy import Policy
    from memcfg.plan.search._request import Request

Again = frozenset[tuple[int, int]]  # (stage, op) of each recomputation

_OPS = 48  # max. ops of a graph for the mixed-integer program
_LP_OPS = 96  # max. ops of a graph for the linear relaxation
_ROUNDS = 4  # searches with a tighter goal when placement exceeds the limit
_BUDGETS = 6
_THRESHOLDS = [tenth / 10 for tenth in range(1, 10)]


def checkmate() -> Policy:
    """Recompute optimally in the graph's order, by integer programming.

    Returns
    -------
    Policy
        The policy. Without a limit it minimizes the peak; with a limit, recomputation
        within it. Calls raise MissingDependencyError without HiGHS (``pip install
        highspy``), and PlanError for a graph of more than 48 ops; use `checkmate_lp` or
        `auto` for these.

    Notes
    -----
    Stage t first recomputes ops in the graph's order and then computes op t for the
    first time. This is the partitioned formulation of [1]_ per tensor, with in-place
    pairs and scratch, and with the condition that only an op that runs frees memory,
    which the published program lacks in its linear form. Inputs and state count
    throughout. All replayable ops, gradients included, may be recomputed. HiGHS is
    stopped after a fixed amount of work, and the best schedule found is taken. The
    plan's summary is `unproven` in this case, and if no schedule that is optimal for
    the program could be placed. Minimizing the peak is a separate program.

    References
    ----------
    .. [1] P. Jain et al., "Checkmate: Breaking the Memory Wall with Optimal Tensor
       Rematerialization", MLSys 2020, arXiv:1910.02653.
    """
    return Method("checkmate", _checkmate, "auto()")


def checkmate_lp() -> Policy:
    """Round the linear relaxation of `checkmate`, and improve the result.

    Returns
    -------
    Policy
        The policy. Without a limit it looks for the lowest peak; with a limit, for the
        least recomputation within it. Calls raise MissingDependencyError without HiGHS
        (``pip install highspy``), and PlanError for a graph of more than 96 ops.

    Notes
    -----
    The relaxation is solved for six budgets between its smallest feasible budget and
    the peak without recomputation. From each solution, tensors whose residency exceeds
    a threshold (0.1 to 0.9) are kept, and the ops that must then run again are added:
    the two-phase rounding of [1]_. With a limit, recomputations are then removed one at
    a time, the most expensive first, as long as the plan fits.

    References
    ----------
    .. [1] P. Jain et al., "Checkmate: Breaking the Memory Wall with Optimal Tensor
       Rematerialization", MLSys 2020, arXiv:1910.02653.
    """
    return Method("checkmate_lp", _checkmate_lp, "auto()")


def _refuse_large(request: Request, most: int, other: str) -> None:
    count = len(request.graph.ops)
    if count > most:
        raise PlanError(
            f"{request.method} plans graphs of at most {most} ops, and "
            f"{request.graph.name!r} has {count}. Plan with {other}."
        )


def _checkmate(request: Request) -> Plan:
    return plan_stages(request)


def plan_stages(request: Request, *, times: int | None = None) -> Plan:
    """Plan the optimal schedule of stages; an op runs at most `times` times."""
    larger = len(request.graph.ops) > _LP_OPS
    other = "auto()" if larger else "checkmate_lp() or auto()"
    _refuse_large(request, _OPS, other)
    nothing = request.scheduled(range(len(request.graph.ops)))
    if request.limit_bytes is not None and fits(nothing):
        return nothing
    return _solved(request, Stages(request, times=times), nothing)


def _solved(request: Request, stages: Stages, nothing: Plan) -> Plan:
    """Solve for the lowest peak and, if it is within the limit, for the least cost."""
    answer = solve(stages, None, start=stages.values(frozenset()))
    is_least = answer.optimal
    lowest = _again(stages, answer.columns)
    least = request.scheduled(stages.sequence(lowest))
    if nothing.peak_bytes <= least.peak_bytes:
        least, lowest = nothing, frozenset()
    if not (answer.columns and fits(least)):  # without columns, its time was over
        return least if is_least else _unproven(least)
    limit = request.limit_bytes or least.peak_bytes
    counted = stages.base + round(answer.value * stages.unit)
    measured = request.step.measure(stages.sequence(lowest))[0]
    goal = limit + max(0, counted - measured)  # the program overestimates the peak
    start = stages.values(lowest)
    proven = is_least or request.limit_bytes is not None
    for _ in range(_ROUNDS):
        answer = solve(stages, goal, start=start)
        if not answer.columns:
            break
        again = _polished(request, stages, _again(stages, answer.columns), limit)
        plan = request.scheduled(stages.sequence(again))
        proven = proven and answer.optimal
        if plan.peak_bytes <= limit:
            return plan if proven else _unproven(plan)
        proven = False  # schedules above the next goal might fit when placed
        goal -= plan.peak_bytes - limit
    again = _polished(request, stages, lowest, limit)
    plan = request.scheduled(stages.sequence(again))
    return _unproven(plan if plan.peak_bytes <= limit else least)


def _unproven(plan: Plan) -> Plan:
    assert plan.summary is not None
    return replace(plan, summary=replace(plan.summary, unproven=True))


def _again(stages: Stages, columns: list[float]) -> Again:
    """Return the recomputations of a solution; empty without a solution."""
    if not columns:
        return frozenset()
    return frozenset(key for key, c in stages.again.items() if columns[c] > 1 / 2)


def _checkmate_lp(request: Request) -> Plan:
    _refuse_large(request, _LP_OPS, "auto()")
    nothing = range(len(request.graph.ops))
    if request.limit_bytes is not None:
        plan = request.scheduled(nothing)
        if fits(plan):
            return plan
    stages = Stages(request)
    rounded = {frozenset[tuple[int, int]](), *_rounded(request, stages)}
    ordered = sorted(rounded, key=sorted)
    plan = plan_cheapest(request, [stages.sequence(again) for again in ordered])
    if request.limit_bytes is not None and fits(plan):
        limit = request.limit_bytes
        polished = {_polished(request, stages, again, limit) for again in ordered}
        rows = [stages.sequence(again) for again in sorted(polished, key=sorted)]
        better = plan_cheapest(request, rows)
        plan = min((plan, better), key=lambda p: (not fits(p), _again_seconds(p)))
    return _unproven(plan) if seconds_left() <= 0 else plan


def _again_seconds(plan: Plan) -> tuple[float, int]:
    return plan.predicted.recompute_seconds, len(plan.actions)


def _rounded(request: Request, stages: Stages) -> Iterator[Again]:
    """Yield roundings of the relaxation, for several budgets and thresholds."""
    relaxed = solve(stages, None, whole=False)
    if not relaxed.columns:  # its time was over
        return
    low = stages.base + relaxed.value * stages.unit
    high = request.step.measure(range(len(request.graph.ops)))[0]
    for part in range(_BUDGETS):
        budget = round(low + (high - low) * part / _BUDGETS) + 1
        columns = solve(stages, budget, whole=False).columns
        if not columns:
            continue
        for threshold in _THRESHOLDS:
            kept = {k for k, c in stages.resident.items() if columns[c] > threshold}
            yield _repaired(stages, kept)


def _repaired(stages: Stages, kept: Collection[tuple[int, int]]) -> Again:
    """Return the minimal recomputations for a choice of kept tensors.

    A tensor that is kept in a stage was kept or computed in the stage before; if it was
    neither, it is recomputed there.
    """
    graph = stages.graph
    made = graph.producer
    again: set[tuple[int, int]] = set()
    for stage, tensor in kept:
        maker = made[tensor]
        assert maker is not None
        before = stage - 1
        if maker < before and (before, tensor) not in kept:
            again.add((before, maker))
    ends = {(stages.last, tensor) for tensor in graph.keep} - {*kept}
    for stage, tensor in ends:  # tensors of `keep` that are not resident at the end
        maker = made[tensor]
        if maker is not None and (stage, maker) in stages.again:
            again.add((stage, maker))
    for stage in range(stages.last + 1):
        waiting = [*stages.first_runs(stage), *(op for s, op in again if s == stage)]
        while waiting:
            for tensor in graph.ops[waiting.pop()].inputs:
                maker = made[tensor]
                if maker is None or maker >= stage or (stage, tensor) in kept:
                    continue
                if (stage, maker) in stages.again and (stage, maker) not in again:
                    again.add((stage, maker))
                    waiting.append(maker)
    return frozenset(key for key in again if key in stages.again)


def _polished(request: Request, stages: Stages, again: Again, limit: int) -> Again:
    """Remove recomputations, the most expensive first, within the limit."""
    current = again
    for key in sorted(again, key=lambda k: (-stages.costs[k[1]], k)):
        trial = current - {key}
        if request.step.measure(stages.sequence(trial))[0] <= limit:
            current = trial
    return current
