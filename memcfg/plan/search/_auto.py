"""The fastest method that fits.

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

from memcfg.errors import InfeasiblePlanError, PlanError
from memcfg.plan.format._actions import Compute
from memcfg.plan.search._exact import Exact, fastest
from memcfg.plan.search._full_tiers import limits_of, within_tiers
from memcfg.plan.search._policy import fits, names_algorithms, propose
from memcfg.plan.search._request import Request
from memcfg.plan.search._share import share
from memcfg.plan.search._time_bound import beats_recomputation, may_leave, with_gap
from memcfg.plan.search._watch import Watch, check_time_limit
from memcfg.plan.search.algorithms._algorithms import algorithms as listed
from memcfg.plan.search.algorithms._scratch import (
    fastest_algorithms,
    fitting_algorithms,
)
from memcfg.plan.search.recompute._look_ahead import look_ahead
from memcfg.plan.search.recompute._recomputation import sqrt_checkpoint
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

_SMALL = 2_000  # ops of a graph for which every method is tried
_SURE = 8, 20_000_000  # ops of a graph, for which the exact search always ends; effort
_FEW = 24, 100_000  # that it is tried for beside other methods: about 0.05 s
_LAST = 48, 400_000  # that it is tried for where they have no plan: about 0.3 s
_SWAPPING = (  # tried where tensors may leave
    out_of_core,
    partial(out_of_core, "zvc"),
    evict,
    trade,
)
_ALGORITHMS = "default", "any"
_ROUNDING = 1e-9  # of a sum of seconds
_SEARCHING = 0.8  # part of a time limit; the rest is for the bound


@dataclass(frozen=True)
class Auto:
    """The policy that `auto` makes."""

    lossless: ClassVar = True
    name: str = "auto"
    algorithms: str = field(default="default", kw_only=True, repr=False)
    time_limit: float | None = field(default=None, kw_only=True)
    cancel: Callable[[], bool] | None = field(default=None, kw_only=True, repr=False)
    progress: Callable[[str, float | None], None] | None = field(
        default=None, kw_only=True, repr=False
    )
    places: bool = field(default=True, kw_only=True, repr=False)  # as of a Request

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
        watch = self.watch(_SEARCHING)
        request = Request.of(graph, self.name, limit_bytes, watch)
        request = replace(request, places=self.places, below=below)
        bounding = self.watch()
        plans = _plan(request)
        if self.algorithms == "any":
            plans = _choose(request, plans)
        plan = self._take(plans, request)
        if bounding is not None:
            bounding.begin("time_lower_bound", plan.elapsed_seconds)
        plan = with_gap(graph, plan, None if bounding is None else bounding.is_over)
        seconds = time.perf_counter() - request.began
        unproven = _is_ended(request) and plan.gap != 0
        assert plan.summary is not None
        return replace(
            plan,
            predicted=replace(plan.predicted, planning_seconds=seconds),
            summary=replace(plan.summary, chosen_by=self.name, unproven=unproven),
        )

    def watch(self, part: float = 1.0) -> Watch | None:
        """Start the clock of a part of the time limit; None: nobody asks or is told."""
        if self.time_limit is None and self.cancel is None and self.progress is None:
            return None
        limit = math.inf if self.time_limit is None else self.time_limit
        return Watch(time.perf_counter() + part * limit, self.cancel, self.progress)

    def _take(self, plans: _Plans, request: Request) -> Plan:
        """Take the fastest plan that fits; refuse with the smallest limit."""
        if plans.best is not None:
            return plans.best
        lowest = plans.lowest
        limit = format_bytes(request.limit_bytes or 0, exact=True)
        message = f"No method that auto takes can plan {lowest.graph!r} within {limit}."
        if _is_ended(request):
            message = (
                f"Planning {lowest.graph!r} was ended before a plan within {limit}."
            )
        raise InfeasiblePlanError(
            message,
            smallest_limit_bytes=lowest.peak_bytes,
            lower_bound_bytes=lowest.lower_bound_bytes,
            is_smallest=not (_is_ended(request) or limits_of(request.graph)),
            requested_bytes=lowest.peak_bytes,
            limit_bytes=request.limit_bytes,
            hint="Raise the limit or lower the batch size.",
        )


class _Plans:
    """The plans that methods made for a request."""

    def __init__(
        self, request: Request, made: Iterable[Plan] = (), *, may_round: bool = False
    ) -> None:
        self._request = request
        self._all = list(made)
        self._may_round = may_round  # whether algorithms count for their time alone

    def with_algorithms(self) -> _Plans:
        """Return the same plans, of which named algorithms are not the last choice."""
        return _Plans(self._request, self._all, may_round=True)

    def begin(self, method: str) -> bool:
        """Say which method comes next, or that there is no time for it."""
        watch = self._request.watch
        if watch is None:
            return True
        best = self.best
        watch.begin(method, None if best is None else best.elapsed_seconds)
        return not watch.is_over()

    def add(self, plan: Plan | None) -> None:
        """Take one more, if there is one."""
        if plan is not None:
            self._all.append(plan)

    @property
    def best(self) -> Plan | None:
        """The fastest that fits; if any is proven to be that, it is as fast."""
        fitting = [plan for plan in self._all if fits(plan)]
        best = min(fitting, key=self._order, default=None)
        if best is None or may_leave(self._request.graph) or names_algorithms(best):
            return best
        if any(plan.gap == 0 for plan in fitting):
            predicted = replace(best.predicted, optimality_gap=0.0)
            best = replace(best, predicted=predicted)
        return best

    def _order(self, plan: Plan) -> tuple[bool, float, int, int]:
        """Order plans: those that round otherwise are the last, unless they may."""
        named = not self._may_round and names_algorithms(plan)
        return named, plan.elapsed_seconds, _computed(plan), plan.peak_bytes

    @property
    def below(self) -> float:
        """The seconds of the fastest that fits, unless it may round otherwise."""
        best = self.best
        if best is None or (names_algorithms(best) and not self._may_round):
            return self._request.below
        return best.elapsed_seconds

    @property
    def has_least(self) -> bool:
        """Whether one that fits takes no longer than each op once."""
        best, first = self.best, self._all[0]
        if best is None or names_algorithms(best):
            return False
        once = first.predicted.seconds
        if not once:  # the graph states no times
            return best.predicted.moved_bytes == 0 and _computed(best) == _computed(
                first
            )
        return best.elapsed_seconds <= once * (1 + _ROUNDING)

    @property
    def computing(self) -> Plan | None:
        """The fastest that fits of those that only compute."""
        return fastest(self._all)

    @property
    def lowest(self) -> Plan:
        """The one of the smallest peak; of equal ones the first."""
        return min(self._all, key=lambda plan: plan.peak_bytes)


def _plan(request: Request) -> _Plans:
    """Plan by one search after the other, until the rest cannot be better.

    Idea: cheap searches first, each told the time of the best plan so far, which it
    need not place anything slower than. Invariant: the best plan that fits only gets
    faster; the first plan runs each op once, so nothing that computes alone is faster.
    The order is ours.
    """
    plans = _Plans(request)
    plans.begin("share")
    plans.add(propose(share(), request))
    if plans.best is not None:
        return plans
    if may_leave(request.graph):
        _swap(request, plans)
        limit = request.limit_bytes or 0
        if plans.has_least or beats_recomputation(request, limit, plans.below):
            return plans
    policies = [look_ahead(), sqrt_checkpoint(), replay_elementwise()]
    policies.insert(0 if repeats(request) else len(policies), repeated_blocks())
    for policy in policies:
        large = len(request.graph.ops) > _SMALL
        if not plans.begin(policy.name) or (large and plans.best is not None):
            return plans
        plans.add(propose(policy, request))
    if len(request.graph.ops) <= _LAST[0] and request.step.is_small:
        _search(request, plans)
    return plans


def _swap(request: Request, plans: _Plans) -> None:
    """Plan by the methods that swap, until nothing can be faster."""
    for make in _SWAPPING:
        policy = make()
        large = len(request.graph.ops) > _SMALL
        if plans.has_least or (large and plans.best is not None):
            return
        if not plans.begin(policy.name):
            return
        with suppress(InfeasiblePlanError, PlanError):  # the tier is full
            plans.add(propose(policy, replace(request, below=plans.below)))


def _choose(request: Request, plans: _Plans) -> _Plans:
    """Plan with other algorithms, too, unless each op once has none that is faster.

    With the fastest of all, by every other lever; with the least scratch, beside which
    each op takes the fastest that fits as it runs; and by methods that swap and choose.
    """
    rows = [(op, listed(op, divided=True)) for op in request.graph.ops]
    once = sum(
        min((each.seconds for each in row), default=op.seconds) for op, row in rows
    )
    chosen = plans.with_algorithms()
    watch = request.watch
    base = Auto(cancel=None if watch is None else watch.is_over)
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
    """Search all schedules of a small graph, as far as the effort goes."""
    ops, limit = len(request.graph.ops), request.limit_bytes or 0
    effort = next((each for most, each in (_SURE, _FEW) if ops <= most), None)
    if effort is not None and plans.begin("exact"):
        plans.add(Exact(effort=effort).within(request, limit, plans.computing)[0])
    looks = plans.best is None and request.below == math.inf
    if looks and plans.begin("exact"):
        search = Exact(effort=max(effort or 0, _LAST[1]))
        found, _ = search.lowest(request, plans.lowest)
        plans.add(found)
        if found.peak_bytes < limit:
            plans.add(search.within(request, limit, plans.computing)[0])


def _is_ended(request: Request) -> bool:
    """Return whether the time limit, or whoever waits, ended a search."""
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
    """Take the fastest plan that fits, of methods that give the same bits.

    Parameters
    ----------
    algorithms : {"default", "any"}, default "default"
        Whether ops keep their default algorithms where that fits, so that bits do not
        depend on the limit, or may take a faster one, which may round otherwise. Which
        is faster is known of a model that is compiled with ``times="measured"``. The
        policy of "any" is named ``auto_algorithms``.
    time_limit : float or None, default None
        Seconds after which the best plan so far is taken, that of `share` in any case.
        Which that is depends on the machine. A method that is at work ends its search
        and places what it has, in the order that it has where that fits, which takes
        about a second for ten thousand ops. None: the work
        is counted, so the same graph and limit give the same plan on every machine.
    cancel : callable or None, default None
        Asked now and then, such as ``threading.Event().is_set``; where it gives true,
        planning ends as by the time limit. What it raises ends planning, too.
    progress : callable or None, default None
        Called now and then as ``progress(method, seconds)``: the method that is at
        work, and the predicted seconds of the fastest plan that fits so far, or None.

    Returns
    -------
    Policy
        The policy. It prefers plans of default algorithms, then the least predicted
        time, then the fewest computed ops (which decides where a graph states no
        times), then the smaller peak. A plan whose search was ended says so
        (`Summary.unproven`). Where there was none yet that fits, the
        `InfeasiblePlanError` says that the limit that it names is not proven the
        smallest (`is_smallest`).

    Raises
    ------
    TypeError
        If the time limit is not a number, or the others cannot be called.
    ValueError
        If the time limit is not positive, or `algorithms` neither.

    Notes
    -----
    `keep_all` and `share` compute every op once, so nothing is faster, and the peak
    of `share` is the smaller one: it is taken when it fits. When it does not, and the
    device has a place where tensors go (``spill_to``), three searches swap:
    `out_of_core`, with and without codes on the way; one that evicts between accesses,
    by a copy or by computing again; and one that trades swaps against algorithms of
    less scratch. What ops wait for copies counts like what is computed again, and a
    plan that names algorithms, which may round otherwise, is taken where no other fits.
    Plans that are slower than the best so far are not placed. Then, unless that is
    below `time_lower_bound`, `look_ahead`, `sqrt_checkpoint`, `replay_elementwise` and
    `repeated_blocks` plan for the least recomputation that fits, and the fastest plan
    is taken. In graphs of up to
    24 ops `exact` plans, too: with at most 8 ops nothing is faster unless the gap says
    so. Up to 48 ops it looks for lower peaks where no other method fits. For a
    graph of more than 2,000 ops, whose planning takes long, the plan of the first of
    them that has one is taken, which is `repeated_blocks` where blocks repeat.

    With any algorithms all of this is done for the default ones, then for the fastest
    of each op, and for those of least scratch, beside which each op then has the
    fastest that fits as it runs. The fastest of these plans is taken.

    Methods of the literature are not tried. In the golden plans of the tests, which
    have fast, slow and small tiers, none is faster; beside small tiers, one can be by a
    fraction of a percent.
    """
    if algorithms not in _ALGORITHMS:
        known = " or ".join(map(repr, _ALGORITHMS))
        raise ValueError(f"algorithms is {known}, not {algorithms!r}")
    check_time_limit(time_limit)
    for name, asked in (("cancel", cancel), ("progress", progress)):
        if asked is not None and not callable(asked):
            raise TypeError(f"{name} is called, which {asked!r} cannot be")
    return Auto(
        "auto" if algorithms == "default" else "auto_algorithms",
        algorithms=algorithms,
        time_limit=time_limit,
        cancel=cancel,
        progress=progress,
    )
