"""The policy `auto`: the fastest plan of several methods that fits.

See docs/decisions/0023-auto-swaps-only-where-told.md.
"""

from __future__ import annotations

import math
import sys
import time
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, ClassVar

from memcfg._advice import larger_limit_or
from memcfg.errors import InfeasiblePlanError, PlanError
from memcfg.plan.format._actions import Compute
from memcfg.plan.format._collectives import any_beside, runs_beside
from memcfg.plan.search._exact import Exact, fastest
from memcfg.plan.search._full_tiers import limits_of, within_tiers
from memcfg.plan.search._overlap import overlapped_and_missing
from memcfg.plan.search._policy import fits, names_algorithms, propose
from memcfg.plan.search._request import Request
from memcfg.plan.search._share import share
from memcfg.plan.search._time_bound import (
    beats_recomputation,
    is_as_fast_as_any,
    may_leave,
    with_gap,
)
from memcfg.plan.search._watch import Watch, check_time_limit
from memcfg.plan.search.algorithms._algorithms import algorithms as listed
from memcfg.plan.search.algorithms._scratch import (
    fastest_algorithms,
    fitting_algorithms,
)
from memcfg.plan.search.network._network_bound import network_seconds
from memcfg.plan.search.recompute._look_ahead import look_ahead, rough_peak
from memcfg.plan.search.recompute._recomputation import hasty_plan, sqrt_checkpoint
from memcfg.plan.search.recompute._repeated_blocks import repeated_blocks, repeats
from memcfg.plan.search.recompute._replay_elementwise import replay_elementwise
from memcfg.plan.search.swaps._evict import evict
from memcfg.plan.search.swaps._out_of_core import out_of_core
from memcfg.plan.search.swaps._trade import trade
from memcfg.units import format_bytes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from memcfg.graph import Graph
    from memcfg.plan.format._plan import Plan
    from memcfg.plan.search._policy import Policy

_SMALL = 2_000  # max. ops of a graph for which every method is tried
# Max. ops of a graph for which `look_ahead` is tried although there is a plan, and how
# near the lower bound of time that plan must be so that it is not.
_LONG, _NEAR = 32_000, 0.03
# Max. ops of a graph for the exact search, and its effort:
_SURE = 8, 20_000_000  # the search always completes
_FEW = 24, 100_000  # tried in addition to other methods: about 0.05 s
_LAST = 48, 400_000  # tried if other methods have no plan: about 0.3 s
# Max. ops of a graph of which lower limits are planned although a plan fits, and the
# cells of the grid of such limits:
_STEADY, _CELLS = 80, 24
# Max. ops of a graph that is planned below the lowest peak if no plan fits, and how
# many times:
_NAMED, _LOWER_PEAKS = 400, 8
_ROOMS = 2  # max. plans that leave bytes for collectives
_SWAPPING = (  # tried if `auto` may swap
    out_of_core,
    partial(out_of_core, "zvc"),
    evict,
    trade,
)
_ALGORITHMS = "default", "any"
_ROUNDING = 1e-9  # relative rounding error of a sum of seconds
_BOUNDING = 0.2  # fraction of a time limit that is left for the bound
_FINISHING = 1.5  # time to write a plan after the searches, relative to that of `share`


@dataclass(frozen=True)
class Auto:
    """The policy that `auto` returns."""

    lossless: ClassVar = True
    name: str = "auto"
    algorithms: str = field(default="default", kw_only=True, repr=False)
    time_limit: float | None = field(default=None, kw_only=True)
    cancel: Callable[[], bool] | None = field(default=None, kw_only=True, repr=False)
    progress: Callable[[str, float | None], None] | None = field(
        default=None, kw_only=True, repr=False
    )
    places: bool = field(default=True, kw_only=True, repr=False)  # see `Request`
    # Whether the first plan that fits is returned, without looking for a faster one.
    first: bool = field(default=False, kw_only=True, repr=False)
    # Whether collectives may run beside compute.
    overlaps: bool = field(default=True, kw_only=True, repr=False)
    # Whether plans have a gap.
    bounds: bool = field(default=True, kw_only=True, repr=False)

    def __call__(self, graph: Graph, limit_bytes: int | None = None) -> Plan:
        """Plan a graph; see `Policy`."""
        if self.watch() is not None:
            return self._within(graph, limit_bytes)
        return within_tiers(self.name, graph, limit_bytes, self._within, self._tried)

    def _tried(self, graph: Graph, limit_bytes: int) -> Plan:
        return self._within(graph, limit_bytes, below=sys.float_info.max)

    def _within(
        self, graph: Graph, limit_bytes: int | None, below: float = math.inf
    ) -> Plan:
        watch = self.watch()
        request = Request.of(graph, self.name, limit_bytes, watch)
        request = replace(request, places=self.places, below=below, any_fits=self.first)
        bounding = self.watch()
        plans = _plan(request, first=self.first, reserve=self._reserve())
        if plans.best is None and _is_ended(request):
            plans.add(hasty_plan(request))
        if _looks_lower(request):
            _settle(request, plans)
        if self.algorithms == "any":
            plans = _choose(request, plans)
        plan = self._take(plans, request)
        if self.first:
            return plan
        if self.overlaps:
            plan = _overlap(request, plan)
        if bounding is not None:
            bounding.begin("time_lower_bound", plan.elapsed_seconds)
        if self.bounds:
            is_over = None if bounding is None else bounding.is_over
            known = request.known.get(("whole time bound", limit_bytes))
            plan = with_gap(graph, plan, is_over, known)
        seconds = time.perf_counter() - request.began
        unproven = _is_ended(request) and plan.gap != 0
        assert plan.summary is not None
        return replace(
            plan,
            predicted=replace(plan.predicted, planning_seconds=seconds),
            summary=replace(plan.summary, chosen_by=self.name, unproven=unproven),
        )

    def watch(self) -> Watch | None:
        """Start a watch for the time limit; None without it and any callable."""
        if self.time_limit is None and self.cancel is None and self.progress is None:
            return None
        limit = math.inf if self.time_limit is None else self.time_limit
        return Watch(time.perf_counter() + limit, self.cancel, self.progress)

    def _reserve(self) -> float:
        """Return the seconds of a time limit that are not for searches."""
        return 0.0 if self.time_limit is None else _BOUNDING * self.time_limit

    def _take(self, plans: _Plans, request: Request) -> Plan:
        """Return the fastest plan that fits, or raise with the smallest limit."""
        if plans.best is not None:
            return plans.best
        lowest = plans.lowest
        limit = format_bytes(request.limit_bytes or 0, exact=True)
        message = f"No method of auto can plan {lowest.graph!r} within {limit}."
        hint = larger_limit_or(request.graph.batch_size)
        known = lowest.peak_bytes <= lowest.lower_bound_bytes
        if _is_ended(request):
            message = f"Planning {lowest.graph!r} ended before a plan within {limit}."
        elif len(request.graph.ops) > _SMALL and not known:
            hint += (
                f" Below {format_bytes(lowest.peak_bytes, exact=True)} not every "
                f"schedule of {len(request.graph.ops):,} ops was searched."
            )
        else:
            known = known or not limits_of(request.graph)
        raise InfeasiblePlanError(
            message,
            smallest_limit_bytes=lowest.peak_bytes,
            lower_bound_bytes=lowest.lower_bound_bytes,
            is_smallest=known,
            requested_bytes=lowest.peak_bytes,
            limit_bytes=request.limit_bytes,
            hint=hint,
        )


class _Plans:
    """The plans of several methods for one request."""

    def __init__(
        self, request: Request, made: Iterable[Plan] = (), *, may_round: bool = False
    ) -> None:
        self._request = request
        self._all = list(made)
        self._may_round = may_round  # whether plans with named algorithms are equal

    def with_algorithms(self) -> _Plans:
        """Return the same plans, without preference for default algorithms."""
        return _Plans(self._request, self._all, may_round=True)

    def begin(self, method: str) -> bool:
        """Report the next method; return False if there is no time for it."""
        watch = self._request.watch
        if watch is None:
            return True
        best = self.best
        watch.begin(method, None if best is None else best.elapsed_seconds)
        return not watch.is_over()

    def add(self, plan: Plan | None) -> None:
        """Add a plan; None is ignored."""
        if plan is not None:
            self._all.append(plan)

    def add_of(self, others: _Plans) -> None:
        """Add plans that were made for a lower limit, as plans for this one."""
        limit = self._request.limit_bytes
        for plan in others._all[1:]:  # the first one is the same
            predicted = replace(plan.predicted, optimality_gap=None)
            self._all.append(replace(plan, limit_bytes=limit, predicted=predicted))

    @property
    def first(self) -> Plan:
        """The plan that runs each op once."""
        return self._all[0]

    @property
    def any_fits(self) -> bool:
        """Whether a plan fits."""
        return any(map(fits, self._all))

    @property
    def is_alone(self) -> bool:
        """Whether the plan that runs each op once was enough."""
        return len(self._all) == 1

    @property
    def best(self) -> Plan | None:
        """The fastest plan that fits, or None.

        It is proven optimal if any plan that fits is.
        """
        fitting = [plan for plan in self._all if fits(plan)]
        best = min(fitting, key=self._order, default=None)
        graph = self._request.graph
        if best is None or may_leave(graph) or names_algorithms(best):
            return best
        if any_beside(graph):  # for which no time is proven
            return best
        if any(plan.gap == 0 for plan in fitting):
            predicted = replace(best.predicted, optimality_gap=0.0)
            best = replace(best, predicted=predicted)
        return best

    def _order(self, plan: Plan) -> tuple[bool, float, int, int]:
        """Return the sort key; without `_may_round`, default algorithms come first."""
        named = not self._may_round and names_algorithms(plan)
        return named, plan.elapsed_seconds, _computed(plan), plan.peak_bytes

    @property
    def below(self) -> float:
        """The time in seconds that another plan must beat."""
        best = self.best
        if best is None or (names_algorithms(best) and not self._may_round):
            return self._request.below
        return best.elapsed_seconds

    @property
    def cost(self) -> float:
        """The best plan's time, or its number of ops in a graph without times.

        These are the units of `time_lower_bound`. Infinity if no plan fits.
        """
        best = self.best
        if best is None:
            return math.inf
        timed = any(op.seconds for op in self._request.graph.ops)
        return best.elapsed_seconds if timed else float(_computed(best))

    @property
    def has_least(self) -> bool:
        """Whether the best plan takes no longer than computing each op once."""
        best, first = self.best, self._all[0]
        if best is None or names_algorithms(best):
            return False
        once = first.predicted.seconds
        if not once:  # the graph has no times
            return best.predicted.moved_bytes == 0 and _computed(best) == _computed(
                first
            )
        return best.elapsed_seconds <= once * (1 + _ROUNDING)

    @property
    def computing(self) -> Plan | None:
        """The fastest plan that fits and only computes, or None."""
        return fastest(self._all)

    @property
    def lowest(self) -> Plan:
        """The first plan with the lowest peak."""
        return min(self._all, key=lambda plan: plan.peak_bytes)


def _plan(request: Request, *, first: bool = False, reserve: float = 0.0) -> _Plans:
    """Run one method after another until no other can be better.

    Idea: fast searches first; each gets the time of the best plan so far and need not
    place slower schedules. Invariant: the best plan that fits never gets slower. The
    first plan runs each op once, so no plan without swaps is faster. The order of
    methods is memcfg's own. `reserve` is the time in seconds that a watch leaves, or
    more if a plan of this graph takes longer to write.
    """
    plans = _Plans(request)
    first = first or len(request.graph.ops) > _SMALL
    plans.begin("share")
    began = time.perf_counter()
    plans.add(propose(share(), request))
    if request.watch is not None and reserve:
        request.watch.leave(max(reserve, _FINISHING * (time.perf_counter() - began)))
    if plans.best is not None:
        return plans
    if may_leave(request.graph):
        _swap(request, plans, first=first)
        limit = request.limit_bytes or 0
        if plans.has_least or beats_recomputation(request, limit, plans.below):
            return plans
    policies = [look_ahead(), sqrt_checkpoint(), replay_elementwise()]
    ahead = not _is_over(request) and repeats(request)
    policies.insert(0 if ahead else len(policies), repeated_blocks())
    if request.any_fits:  # the one that takes longest comes last
        policies.sort(key=lambda policy: policy.name == "look_ahead")
    for policy in policies:
        if not plans.begin(policy.name):
            return plans
        if first and plans.any_fits:
            _look_further(request, plans)
            return plans
        plans.add(propose(policy, request))
    is_enough = request.any_fits and plans.best is not None
    if not is_enough and len(request.graph.ops) <= _LAST[0] and request.step.is_small:
        _search(request, plans)
    return plans


def _look_further(request: Request, plans: _Plans) -> None:
    """Add faster plans of a large graph to the one that fits, if they are found soon.

    These are the cheapest segments, and, unless the plan is near the lower bound, that
    of `look_ahead`.
    """
    best, limit = plans.best, request.limit_bytes
    if request.any_fits or may_leave(request.graph) or best is None or limit is None:
        return
    if not best.predicted.recompute_seconds:  # the graph has no times
        return
    ops = request.graph.ops
    once = sum(op.seconds for op in ops if not runs_beside(op))
    if network_seconds(request.graph) >= once + best.predicted.recompute_seconds:
        return  # collectives take longer, whatever is computed again
    plans.add(hasty_plan(request, best.predicted.recompute_seconds))
    known = best.method == "look_ahead" or len(ops) > _LONG
    if known or is_as_fast_as_any(request, limit, plans.cost / (1 + _NEAR)):
        return
    if plans.begin("look_ahead"):
        plans.add(propose(look_ahead(), replace(request, below=plans.below)))


def _swap(request: Request, plans: _Plans, *, first: bool) -> None:
    """Run the methods that swap, until none can be faster."""
    for make in _SWAPPING:
        policy = make()
        if plans.has_least or (first and plans.best is not None):
            return
        if not plans.begin(policy.name):
            return
        with suppress(InfeasiblePlanError, PlanError):  # a tier may be full
            plans.add(propose(policy, replace(request, below=plans.below)))


def _choose(request: Request, plans: _Plans) -> _Plans:
    """Plan with other algorithms as well, unless no plan can be faster.

    Candidates are the fastest algorithms, planned by all methods; the least scratch,
    where each op then gets the fastest algorithm that fits; and methods that swap and
    choose algorithms.
    """
    rows = [(op, listed(op, divided=True)) for op in request.graph.ops]
    once = sum(
        min((each.seconds for each in row), default=op.seconds) for op, row in rows
    )
    chosen = plans.with_algorithms()
    watch = request.watch
    base = Auto(cancel=None if watch is None else watch.is_over, overlaps=False)
    policies: list[Policy] = []
    if any(len(row) > 1 for _, row in rows):
        policies += [fastest_algorithms(base), fitting_algorithms(base)]
        policies += [trade()] * may_leave(request.graph)
    for policy in policies:
        if chosen.below <= once * (1 + _ROUNDING) or not chosen.begin(policy.name):
            break
        with suppress(InfeasiblePlanError, PlanError):
            chosen.add(propose(policy, request))
    return chosen


def _search(request: Request, plans: _Plans) -> None:
    """Search all schedules of a small graph, within a fixed effort."""
    ops, limit = len(request.graph.ops), request.limit_bytes or 0
    effort = next((each for most, each in (_SURE, _FEW) if ops <= most), None)
    if effort is not None and plans.begin("exact"):
        plans.add(Exact(effort=effort).within(request, limit, plans.computing)[0])
    looks = plans.best is None and request.below == math.inf
    if looks and plans.begin("exact"):
        search = Exact(effort=max(effort or 0, _LAST[1]))
        lowest, _ = search.lowest(request, plans.lowest)
        plans.add(lowest)
        if lowest.peak_bytes < limit:
            plans.add(search.within(request, limit, plans.computing)[0])


def _looks_lower(request: Request) -> bool:
    """Return whether plans of lower limits may count, too; see `_settle`."""
    graph = request.graph
    few = len(graph.ops) <= _NAMED and not request.any_fits
    return few and request.below == math.inf and not may_leave(graph)


def _settle(request: Request, plans: _Plans) -> None:
    """Add plans of lower limits, so that more memory seldom makes a plan slower.

    Idea: a search within a higher limit may end with a slower plan, so lower ones
    are planned as well, unless no plan of them is faster. They are on a grid that
    depends on the graph only, so limits of a cell share them. If no plan fits, the
    search goes on below the lowest peak until nothing is found there, at most
    `_LOWER_PEAKS` times. So the limit that an error names seldom depends on the limit
    that was asked for. In graphs of more than `_STEADY` ops, only that search is made.
    """
    limit = request.limit_bytes
    if limit is None or plans.is_alone:
        return
    unit = request.load_unit
    limit -= limit % unit
    for _ in range(_LOWER_PEAKS):
        if plans.best is not None:
            break
        level = plans.lowest.peak_bytes - unit
        if level <= limit or _is_over(request):
            return
        before = plans.lowest.peak_bytes
        plans.add_of(_plan(replace(request, limit_bytes=level)))
        if plans.lowest.peak_bytes >= before:
            return
    if plans.best is None or len(request.graph.ops) > _STEADY:
        return
    least, most = request.lower_bound, plans.first.peak_bytes
    width = max(unit, (most - least) // _CELLS // unit * unit)
    first = least + (limit - 1 - least) // width * width
    for level in range(first, least - 1, -width):
        if _is_over(request) or is_as_fast_as_any(request, level, plans.cost):
            return
        lower = _plan(replace(request, limit_bytes=level))
        plans.add_of(lower)
        if lower.best is None:
            return


def _overlap(request: Request, plan: Plan) -> Plan:
    """Let collectives run beside compute, if need be in plans that leave them bytes."""
    best, missing = overlapped_and_missing(request, plan)
    limit, room = request.limit_bytes, 0
    if limit is None or len(request.graph.ops) > _SMALL:
        return best
    for _ in range(_ROOMS):
        room += room + missing  # twice as much, as lower plans have other orders
        if not missing or _is_over(request):
            break
        lower = _plan(replace(request, limit_bytes=limit - room)).best
        if lower is None:
            break
        predicted = replace(lower.predicted, optimality_gap=None)
        lower = replace(lower, limit_bytes=limit, predicted=predicted)
        made, missing = overlapped_and_missing(request, lower)
        best = min((best, made), key=lambda each: each.elapsed_seconds)
    return best


def _is_over(request: Request) -> bool:
    return request.watch is not None and request.watch.is_over()


def first_of(policy: Policy) -> Policy:
    """Return a policy that has a plan where this one has, and finds it sooner."""
    return replace(policy, first=True) if isinstance(policy, Auto) else policy


def rough_floor(policy: Policy, graph: Graph) -> int | None:
    """Return about the smallest limit of `auto`, found sooner; None of others."""
    if not isinstance(policy, Auto) or may_leave(graph) or len(graph.ops) > _SMALL:
        return None
    return rough_peak(Request.of(graph, policy.name, None, None))


def without_gap(policy: Policy) -> Policy:
    """Return a policy that makes the same plans sooner, without a lower bound."""
    return replace(policy, bounds=False) if isinstance(policy, Auto) else policy


def _is_ended(request: Request) -> bool:
    """Return whether the time limit or the caller has ended a search."""
    return request.watch is not None and request.watch.is_ended


def _computed(plan: Plan) -> int:
    return len([None for action in plan.actions if isinstance(action, Compute)])


def auto(
    *,
    algorithms: str = "default",
    time_limit: float | None = None,
    cancel: Callable[[], bool] | None = None,
    progress: Callable[[str, float | None], None] | None = None,
) -> Policy:
    """Use the fastest plan that fits, of methods that give the same bits.

    Parameters
    ----------
    algorithms : {"default", "any"}, default "default"
        With "default", ops keep their default algorithms if such a plan fits, so
        results do not depend on the limit. With "any", ops may use faster algorithms,
        which may round differently; the policy is then named ``auto_algorithms``. The
        times of algorithms are known if the model is compiled with
        ``times="measured"``.
    time_limit : float or None, default None
        Seconds after which the best plan so far is returned, at least that of `share`;
        the result then depends on the machine. If none fits by then, the first segments
        that do are recomputed. The limit holds to about a tenth, if it is longer than
        three times what `share` takes: about a second for 50,000 ops.
        None limits the work instead of the time, so the same graph and limit give the
        same plan on every machine.
    cancel : callable or None, default None
        Polled during planning, such as ``threading.Event().is_set``. When it returns
        true, planning ends as by the time limit. Exceptions that it raises propagate.
    progress : callable or None, default None
        Called periodically as ``progress(method, seconds)`` with the running method and
        the predicted seconds of the fastest plan that fits so far, or None.

    Returns
    -------
    Policy
        The policy. It prefers plans with default algorithms, then the least predicted
        time, then the fewest computed ops (decisive if the graph has no times), then
        the lowest peak. If the search was ended early, the plan's `Summary.unproven` is
        True. If no plan fits by then, the attribute `is_smallest` of the
        `InfeasiblePlanError` is False.

    Raises
    ------
    TypeError
        If the time limit is not a number, or `cancel` or `progress` is not callable.
    ValueError
        If the time limit is not positive, or `algorithms` is neither.

    Notes
    -----
    `share` computes every op once, so no plan is faster: if it fits, it is taken.
    Otherwise, if the device has a tier to swap to (``spill_to``), three searches swap:
    `out_of_core`, with and without encoded copies; one that evicts tensors between
    accesses, by a copy or by recomputation; and one that trades swaps against
    algorithms with less scratch. Waits for copies count like recomputation. A plan that
    names algorithms is taken only if no other fits. Schedules slower than the best plan
    so far are not placed. Then, unless that plan is faster than `time_lower_bound`,
    `look_ahead`, `sqrt_checkpoint`, `replay_elementwise` and `repeated_blocks` look for
    the least recomputation that fits, and the fastest plan is taken. In graphs of up to
    24 ops, `exact` is tried as well; with at most 8 ops, no plan is faster unless the
    gap says so. Up to 48 ops, it looks for lower peaks if no other method fits. Up to
    80 ops, lower limits are planned as well, so that a larger limit hardly ever has a
    slower plan; in larger graphs that happens now and then. For
    graphs of more than 2,000 ops, whose planning takes long, the first plan that fits
    is taken, which is that of `repeated_blocks` if blocks repeat, that of simple
    segments if it is faster, or, up to 32,000 ops and if that may gain 3 %, that of
    `look_ahead`.

    With ``algorithms="any"``, all of this is done for the default algorithms, then for
    the fastest of each op, and for those with the least scratch, where each op then
    gets the fastest algorithm that fits. The fastest of these plans is taken.

    In the end, `overlap_collectives` lets the plan's collectives, if it has any, run
    beside compute. If that takes a little more than the limit, and is much faster, a
    plan that leaves so much is made, too.

    Methods of the literature are not tried. On the golden plans of the tests, with
    fast, slow and small tiers, none is faster; with small tiers, one can be faster by a
    fraction of a percent.
    """
    if algorithms not in _ALGORITHMS:
        known = " or ".join(map(repr, _ALGORITHMS))
        raise ValueError(f"algorithms must be {known}, not {algorithms!r}")
    check_time_limit(time_limit)
    for name, asked in (("cancel", cancel), ("progress", progress)):
        if asked is not None and not callable(asked):
            raise TypeError(f"{name} must be callable, not {asked!r}")
    return Auto(
        "auto" if algorithms == "default" else "auto_algorithms",
        algorithms=algorithms,
        time_limit=time_limit,
        cancel=cancel,
        progress=progress,
    )
