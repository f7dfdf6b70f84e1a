"""Exhaustive search over all schedules of a small graph, with a proof of optimality."""

from __future__ import annotations

import math
import time
from collections import Counter
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, ClassVar

from memcfg._advice import larger_limit_or
from memcfg.errors import GraphError, InfeasiblePlanError
from memcfg.plan.format._actions import Alias, Alloc, Compute, Free
from memcfg.plan.search._bound import lower_bound
from memcfg.plan.search._policy import fits, names_algorithms, propose
from memcfg.plan.search._request import Request, state_updates
from memcfg.plan.search._share import share
from memcfg.plan.search._time_bound import costs, with_gap
from memcfg.plan.search._watch import Watch, check_time_limit, seconds_left
from memcfg.plan.search.recompute._look_ahead import look_ahead
from memcfg.plan.search.recompute._recomputation import sqrt_checkpoint
from memcfg.plan.search.recompute._replay_elementwise import replay_elementwise
from memcfg.units import format_bytes

if TYPE_CHECKING:
    from collections.abc import Iterable

    from memcfg.graph import Graph
    from memcfg.plan.format._plan import Plan
    from memcfg.plan.search._policy import Policy

_EFFORT = 20_000_000  # max. states for one limit: about 10 s
_ROUNDS = 8  # searches with a tighter goal when placement exceeds the limit
_FOUND, _NONE = 0, 1  # verdicts of the native search
_PARTS = 4  # each search for the lowest peak gets 1 / _PARTS of the effort
_SEARCHING = 0.8  # fraction of a time limit; the rest is for the bound
_STARTS = look_ahead(), sqrt_checkpoint(), replay_elementwise()
_ROUNDING = 1e-9  # relative rounding error of a sum of seconds


@dataclass(frozen=True)
class Exact:
    """The policy that `exact` returns."""

    lossless: ClassVar = True
    name: str = "exact"
    effort: int = _EFFORT
    time_limit: float | None = field(default=None, kw_only=True)

    def __call__(self, graph: Graph, limit_bytes: int | None = None) -> Plan:
        """Plan a graph; see `Policy`."""
        began = time.perf_counter()
        bounding = self._watch(1.0)
        request = Request.of(graph, self.name, limit_bytes, self._watch(_SEARCHING))
        if not request.step.is_small:
            raise GraphError(
                f"exact() searches graphs of up to 64 ops and 128 tensors; "
                f"{graph.name!r} has {len(graph.ops)} and {len(graph.tensors)}"
            )
        plan = replace(self._plan(request), method=self.name)
        plan = with_gap(graph, plan, None if bounding is None else bounding.is_over)
        assert plan.summary is not None
        searched = limit_bytes is None or plan.gap != 0
        unproven = plan.summary.unproven and searched
        seconds = time.perf_counter() - began
        return replace(
            plan,
            predicted=replace(plan.predicted, planning_seconds=seconds),
            summary=replace(plan.summary, unproven=unproven),
        )

    def _watch(self, part: float) -> Watch | None:
        if self.time_limit is None:
            return None if seconds_left() == math.inf else Watch()
        return Watch(time.perf_counter() + part * self.time_limit)

    def _plan(self, request: Request) -> Plan:
        first = propose(share(), request)
        if request.limit_bytes is None:
            return self.lowest(request, first)[0]
        known = [first]
        if not fits(first):
            known += [propose(policy, request) for policy in _STARTS]
        plan, why = self.within(request, request.limit_bytes, fastest(known))
        if plan is not None:
            return plan
        lowest = min(known, key=lambda each: each.peak_bytes)
        least, is_lowest = self.lowest(request, lowest)
        if fits(least):
            return least
        raise self._refusal(request, least, why, is_lowest=is_lowest)

    def within(
        self, request: Request, limit: int, known: Plan | None = None
    ) -> tuple[Plan | None, str]:
        """Return the fastest plan within a limit, or None and the reason.

        `known` is a plan that fits and only computes; it is returned if none is better.
        The plan's gap is the proven one; the plan is unproven unless the gap is 0.

        Idea: A* over states (computed ops, resident values), repeated with goals that
        are lower by the excess of the placement. Invariant: the bound of the first
        round, which allows all in-place pairs, holds for every plan. Source: Hart et
        al., 1968.
        """
        request = request.of_method(self.name)
        step, left, goal = request.step, self.effort, limit
        below: tuple[float, int] | None = None
        if known is not None:
            _, cost, repeated = step.measure(request.sequence_of(known))
            below = cost, repeated
        least, why = 0.0, ""
        # Allowing any choice of pairs gives a bound, but not all can be placed.
        for free in (True, *[False] * _ROUNDS):
            verdict, sequence, _, bound, work = step.least_cost(
                goal, effort=left, below=below, any=free
            )
            left -= work
            least = bound if free else least
            if verdict != _FOUND:
                if not why:
                    why = f"none was found in {work} states"
                    why = "no schedule has such a low peak" if verdict == _NONE else why
                break
            plan = request.scheduled(sequence)
            if plan.peak_bytes <= limit:
                return _proven(request, plan, least), ""
            why = (
                "schedules with this peak exist, but none could be placed within "
                "the limit"
            )
            if not free or _grants_all(request.graph):
                load, _, _ = step.measure(sequence)
                goal = min(goal - (plan.peak_bytes - limit), load - 1)
        return None if known is None else _proven(request, known, least), why

    def lowest(self, request: Request, known: Plan) -> tuple[Plan, bool]:
        """Return the fastest plan with the lowest peak, and whether it is the lowest.

        The search starts from a known plan, which is returned if no peak is lower.
        """
        request = request.of_method(self.name)
        step, effort = request.step, self.effort // _PARTS
        start = request.sequence_of(known)
        sequence, load, floor, _ = step.least_load(start, effort=effort)
        if not _grants_all(request.graph):
            _, _, floor, _ = step.least_load(start, effort=effort, any=True)
        plan: Plan | None = known
        if load < known.peak_bytes:
            plan, _ = self.within(request, load)
            if plan is None:
                plans = (request.scheduled(sequence), known)
                plan = min(plans, key=lambda each: each.peak_bytes)
        assert plan is not None
        lower = None if _grants_all(request.graph) else plan
        while lower is not None:  # smaller in-place outputs may give a lower peak
            plan = lower
            lower, _ = self.within(request, plan.peak_bytes - 1)
        is_lowest = plan.peak_bytes <= floor
        # The time is proven optimal for the plan's peak, not for the limit.
        return _told(plan, None, unproven=not is_lowest), is_lowest

    def _refusal(
        self, request: Request, least: Plan, why: str, *, is_lowest: bool
    ) -> InfeasiblePlanError:
        limit = request.limit_bytes or 0
        return InfeasiblePlanError(
            f"{self.name} cannot plan {request.graph.name!r} within "
            f"{format_bytes(limit, exact=True)}: {why}.",
            smallest_limit_bytes=least.peak_bytes,
            lower_bound_bytes=lower_bound(request.graph),
            is_smallest=is_lowest,
            requested_bytes=least.peak_bytes,
            limit_bytes=limit,
            hint=larger_limit_or(request.graph.batch_size),
        )


def fastest(plans: Iterable[Plan]) -> Plan | None:
    """Return the fastest plan that fits and only computes by default algorithms."""
    own = (plan for plan in plans if fits(plan) and _computes(plan))
    return min(own, key=lambda plan: plan.predicted.seconds, default=None)


def _computes(plan: Plan) -> bool:
    return not names_algorithms(plan) and all(
        isinstance(action, Alloc | Alias | Free | Compute) for action in plan.actions
    )


def _grants_all(graph: Graph) -> bool:
    """Return whether the search's rule for in-place pairs covers all that plans allow.

    The rule takes pairs of equal size in order. Plans also allow smaller outputs, and
    other choices if both inputs and outputs are in several pairs.
    """
    sizes = graph.aligned_bytes
    updates = state_updates(graph)
    for op in graph.ops:
        pairs = [(i, o) for i, o in op.in_place if updates.get(o) != i]
        if any(sizes[i] > sizes[o] > 0 for i, o in pairs):
            return False
        inputs, outputs = Counter(i for i, _ in pairs), Counter(o for _, o in pairs)
        if max(inputs.values(), default=0) > 1 and max(outputs.values()) > 1:
            return False
    return True


def _proven(request: Request, plan: Plan, least: float) -> Plan:
    """Return the plan with its gap from a lower bound of the recomputation cost."""
    once = sum(costs(request.graph))
    _, cost, _ = request.step.measure(request.sequence_of(plan))
    gap = (once + cost) / (once + least) - 1 if once + least > 0 else 0.0
    gap = gap if gap > _ROUNDING else 0.0
    return _told(plan, gap, unproven=gap > 0)


def _told(plan: Plan, gap: float | None, *, unproven: bool) -> Plan:
    assert plan.summary is not None
    return replace(
        plan,
        predicted=replace(plan.predicted, optimality_gap=gap),
        summary=replace(plan.summary, unproven=unproven),
    )


def exact(*, time_limit: float | None = None) -> Policy:
    """Search all schedules of a small graph, with any order and recomputation.

    Parameters
    ----------
    time_limit : float or None, default None
        Seconds after which the best plan so far is returned, which depends on the
        machine. None limits the work instead of the time, so the same graph and limit
        give the same plan, unless `seconds_left` runs out and ends the search.

    Returns
    -------
    Policy
        The policy, for graphs of up to 64 ops and 128 tensors; calls raise
        `memcfg.errors.GraphError` for larger ones. Without a limit it minimizes the
        peak; with a limit, the time within it, and then the number of computations.

    Raises
    ------
    TypeError
        If the time limit is not a number.
    ValueError
        If the time limit is not positive.

    Notes
    -----
    The search starts from the best plan of `share`, `look_ahead`, `sqrt_checkpoint` and
    `replay_elementwise`, so it is never slower than these. A state of the search is the
    set of computed ops and the set of resident values [1]_. Any value that can be
    recomputed may be dropped, including values of `keep`. If the search completes, the
    plan is optimal, and its `optimality_gap` is 0. If the search stops early, `gap` is
    the bound proven so far and the plan is marked `unproven`.

    The search limits the peak of bytes in use, with the best choice of in-place
    outputs. If the placement of a schedule exceeds the limit, schedules with lower
    peaks are tried, and the gap bounds how much faster one might be. The error of a
    limit that is too low says whether there is no such schedule, none was found, or
    none could be placed, and whether the limit that it names is the smallest of all
    plans (`is_smallest`). Plans that copy, encode or use other than the default
    algorithms are not considered.

    References
    ----------
    .. [1] P. E. Hart, N. J. Nilsson, B. Raphael, "A Formal Basis for the Heuristic
       Determination of Minimum Cost Paths", IEEE Transactions on Systems Science and
       Cybernetics 4(2), 1968.
    """
    check_time_limit(time_limit)
    return Exact(time_limit=time_limit)
