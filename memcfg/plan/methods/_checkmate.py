"""Checkmate (Jain et al. 2020): optimal recomputation in the order of the graph."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from memcfg._checks import unknown
from memcfg.errors import InfeasiblePlanError, PlanError
from memcfg.plan.methods._candidates import plan_cheapest
from memcfg.plan.methods._contraction import Contraction
from memcfg.plan.methods._highs import solve
from memcfg.plan.methods._stages import Stages
from memcfg.plan.search._auto import auto
from memcfg.plan.search._policy import Method, fits, propose
from memcfg.plan.search._watch import seconds_left

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Sequence

    from memcfg.plan.format._plan import Plan
    from memcfg.plan.search._policy import Policy
    from memcfg.plan.search._request import Request

Again = frozenset[tuple[int, int]]  # (stage, op) of each recomputation

_GRANULARITIES = ("op", "layer")
_OPS = 48  # max. ops of a graph for the mixed-integer program
_RUNS = 64  # max. ops, or runs of ops, of one by layers
_LP_OPS = 96  # max. ops of a graph for the linear relaxation
_ROUNDS = 4  # searches with a tighter goal when placement exceeds the limit
_BUDGETS = 6
_THRESHOLDS = [tenth / 10 for tenth in range(1, 10)]


def checkmate(*, granularity: str = "op") -> Policy:
    """Recompute optimally in the graph's order, by integer programming.

    Parameters
    ----------
    granularity : {"op", "layer"}, default "op"
        What the program decides about. With "layer", neighbouring ops of a graph of
        more than 64 ops are joined until 64 runs are left, which are computed again as
        a whole, as in [1]_: for networks of any size.

    Returns
    -------
    Policy
        The policy. Without a limit it minimizes the peak; with a limit, recomputation
        within it. Calls raise MissingDependencyError without HiGHS (``pip install
        highspy``), and PlanError with "op" for a graph of more than 48 ops, with
        "layer" for one whose phases alternate.

    Raises
    ------
    ValueError
        If `granularity` is another one.

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

    With "layer", a cheap op belongs to a run with its neighbours, a backward op may
    share one with updates of state, which run once, and what only a run itself reads is
    its scratch. Within a limit the search starts from the schedule of `auto`; ops of a
    run that need not run again are left out. The plan is `unproven`, and takes no more
    time than that of `auto` without tiers.

    References
    ----------
    .. [1] P. Jain et al., "Checkmate: Breaking the Memory Wall with Optimal Tensor
       Rematerialization", MLSys 2020, arXiv:1910.02653.
    """
    if granularity not in _GRANULARITIES:
        raise unknown("granularity", f"{granularity}", _GRANULARITIES)
    make = _of_runs if granularity == "layer" else _checkmate
    return Method("checkmate", make, "auto()")


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


def _refuse_large(request: Request, most: int, *others: str) -> None:
    count = len(request.graph.ops)
    if count > most:
        hint = " or ".join([*filter(None, [", ".join(others)]), "auto()"])
        raise PlanError(
            f"{request.method} plans graphs of at most {most} ops, and "
            f"{request.graph.name!r} has {count}. Plan with {hint}."
        )


def _checkmate(request: Request) -> Plan:
    return plan_stages(request, others=("checkmate(granularity='layer')",))


def _of_runs(request: Request) -> Plan:
    """Plan the best schedule of runs of ops that is found from that of `auto`."""
    nothing = request.scheduled(range(len(request.graph.ops)))
    if request.limit_bytes is not None and fits(nothing):
        return nothing
    request, known = _in_order_of_auto(request)
    runs = Contraction(request, _RUNS)
    if len(runs.graph.ops) > _RUNS:
        raise PlanError(
            f"{request.method} plans at most {_RUNS} runs of ops, and the phases of "
            f"{request.graph.name!r} alternate too often for so few. Plan with auto()."
        )
    again = frozenset(runs.stages_of(known))
    nothing = request.scheduled(range(len(request.graph.ops)))
    plans = [_solved(request, Stages(request, runs), nothing, again)]
    if known:
        plans.append(request.scheduled(known))
    return _unproven(min(plans, key=lambda p: (not fits(p), _again_seconds(p))))


def _in_order_of_auto(request: Request) -> tuple[Request, Sequence[int]]:
    """Return a request of the ops in the order of `auto`'s plan, and its schedule.

    Without a limit, or if `auto` has no plan, the order is that of the graph, and there
    is no schedule.
    """
    if request.limit_bytes is None:
        return request, ()
    try:
        known = request.sequence_of(propose(auto(), request))
    except InfeasiblePlanError:
        return request, ()
    firsts = list(dict.fromkeys(known))
    places = {op: place for place, op in enumerate(firsts)}
    replayed = request.replayed
    if replayed is not None:
        replayed = frozenset(places[op] for op in replayed)
    ops = tuple(request.graph.ops[op] for op in firsts)
    ordered = replace(
        request,
        graph=replace(request.graph, ops=ops),
        order=tuple(request.order[op] for op in firsts),
        replayed=replayed,
        known={},
    )
    return ordered, [places[op] for op in known]


def plan_stages(
    request: Request, *, times: int | None = None, others: Sequence[str] = ()
) -> Plan:
    """Plan the optimal schedule of stages; an op runs at most `times` times."""
    rounded = ["checkmate_lp()"] if len(request.graph.ops) <= _LP_OPS else []
    _refuse_large(request, _OPS, *others, *rounded)
    nothing = request.scheduled(range(len(request.graph.ops)))
    if request.limit_bytes is not None and fits(nothing):
        return nothing
    return _solved(request, Stages(request, times=times), nothing)


def _solved(
    request: Request, stages: Stages, nothing: Plan, known: Again = frozenset()
) -> Plan:
    """Solve for the lowest peak and, if it is within the limit, for the least cost."""
    answer = solve(stages, None, start=stages.values(frozenset()))
    is_least = answer.optimal
    lowest = _again(stages, answer.columns)
    found = {frozenset[tuple[int, int]](): nothing}
    for again in (lowest, known & {*stages.again}):
        if again not in found:
            found[again] = _scheduled(request, stages, again)
    least = min(found.values(), key=lambda plan: plan.peak_bytes)
    if not (answer.columns and fits(least)):  # without columns, its time was over
        return least if is_least else _unproven(least)
    limit = request.limit_bytes or least.peak_bytes
    counted = stages.base + round(answer.value * stages.unit)
    measured = request.step.measure(stages.sequence(lowest))[0]
    goal = limit + max(0, counted - measured)  # the program overestimates the peak
    fitting = [again for again, plan in found.items() if plan.peak_bytes <= limit]
    first = min(fitting, key=lambda again: _again_seconds(found[again]))
    start = stages.values(first)
    proven = is_least or request.limit_bytes is not None
    for _ in range(_ROUNDS):
        answer = solve(stages, goal, start=start)
        if not answer.columns:
            break
        again = _polished(request, stages, _again(stages, answer.columns), limit)
        plan = _scheduled(request, stages, again)
        proven = proven and answer.optimal
        if plan.peak_bytes <= limit:
            plan = min((plan, found[first]), key=_again_seconds)
            return plan if proven else _unproven(plan)
        proven = False  # schedules above the next goal might fit when placed
        goal -= plan.peak_bytes - limit
    again = _polished(request, stages, first, limit)
    plan = _scheduled(request, stages, again)
    return _unproven(plan if plan.peak_bytes <= limit else found[first])


def _scheduled(request: Request, stages: Stages, again: Again) -> Plan:
    """Return the plan of a schedule, without what runs need not compute again."""
    ops = stages.sequence(again)
    if stages.runs is not None:
        ops = _thinned(request, ops)
    return request.scheduled(ops)


def _thinned(request: Request, sequence: list[int]) -> list[int]:
    """Remove repetitions, of the slowest ops first, that memory can do without."""
    ops = request.graph.ops
    firsts = {op: i for i, op in reversed([*enumerate(sequence)])}
    again = [i for i, op in enumerate(sequence) if firsts[op] != i]
    limit = max(request.limit_bytes or 0, request.step.measure(sequence)[0])
    removed: set[int] = set()
    for index in sorted(again, key=lambda i: (-ops[sequence[i]].seconds, i)):
        gone = {*removed, index}
        trial = [op for i, op in enumerate(sequence) if i not in gone]
        if request.step.measure(trial)[0] <= limit:
            removed.add(index)
    return [op for i, op in enumerate(sequence) if i not in removed]


def _unproven(plan: Plan) -> Plan:
    assert plan.summary is not None
    return replace(plan, summary=replace(plan.summary, unproven=True))


def _again(stages: Stages, columns: list[float]) -> Again:
    """Return the recomputations of a solution; empty without a solution."""
    if not columns:
        return frozenset()
    return frozenset(key for key, c in stages.again.items() if columns[c] > 1 / 2)


def _checkmate_lp(request: Request) -> Plan:
    _refuse_large(request, _LP_OPS)
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
