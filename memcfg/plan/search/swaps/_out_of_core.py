"""Swapping and recomputation together, by the least time of one simulated clock."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from itertools import compress
from typing import TYPE_CHECKING, NamedTuple

from memcfg.plan.format._codec_bytes import SPARSE, code_bytes
from memcfg.plan.format._tier_choice import ENCODES, is_one, tiers_of
from memcfg.plan.search._full_tiers import tier_excess
from memcfg.plan.search._policy import Method, fits, names_algorithms, propose
from memcfg.plan.search._share import share
from memcfg.plan.search._time_bound import beats_recomputation
from memcfg.plan.search.recompute._look_ahead import look_ahead
from memcfg.plan.search.recompute._replay_elementwise import replay_elementwise
from memcfg.plan.search.swaps._accesses import Entry, Trace
from memcfg.plan.search.swaps._covering import Covering
from memcfg.plan.search.swaps._event_times import (
    clock,
    has_room,
    swap_in_seconds,
    swap_out_seconds,
)
from memcfg.plan.search.swaps._sparsity import RECTIFIED, Densities
from memcfg.plan.search.swaps._swap_events import Event, StartSwapOut, plan_events
from memcfg.units import ALIGNMENT

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from memcfg.graph import Graph
    from memcfg.plan.format._plan import Plan
    from memcfg.plan.search._policy import Policy
    from memcfg.plan.search._request import Request
    from memcfg.plan.search.swaps._accesses import Gap

_PARTS = 0.5, 0.0  # fractions of the excess over the limit that are left to copies
_ROUNDS = 8  # tighter goals when placement exceeds the limit
_ROUNDING = 1e-9  # relative rounding error of a sum of seconds
_FEW = 3  # schedules that are placed per goal
_TRIALS = 100  # max. recomputations that the search tries to remove


_ORDERS: tuple[Callable[[Covering, Gap], float], ...] = (
    lambda covering, gap: -covering.idle(gap),  # Capuchin's: longest free time
    lambda _, gap: gap.after,  # Meng's: earliest
    lambda covering, gap: -covering.trace.size(gap),
    lambda covering, gap: -covering.idle(gap) / covering.trace.size(gap),
)
_ALL = range(len(_ORDERS))


class _Swapped(NamedTuple):
    """A schedule with copies."""

    seconds: float
    moved: int  # bytes in each direction
    events: list[Event]
    sequence: Sequence[int]
    order: int  # index in `_ORDERS`


@dataclass(frozen=True)
class _Planner:
    """Planning function, with or without a codec; a value, for comparison."""

    codec: str | None
    densities: Densities

    def __call__(self, request: Request) -> Plan:
        codes = self._codes(request.graph)
        key = "out of core", request.limit_bytes, tuple(codes)
        return request.once(key, lambda: _plan(request, codes))

    def _codes(self, graph: Graph) -> dict[int, StartSwapOut]:
        """Return encoded copies out of the tensors that are copied faster with it."""
        tiers = tiers_of(graph)
        reached = tiers[:1] if is_one(tiers) else tiers
        names = [each.name for each in reached if each.bytes_per_second]
        if self.codec is None or ENCODES not in names:
            return {}
        result = {}
        for tensor, density in self.densities.in_graph(graph).items():
            nbytes = graph.tensors[tensor].nbytes
            nbytes = code_bytes(self.codec, nbytes, density)
            code = StartSwapOut(tensor, self.codec, nbytes, ENCODES)
            slower = max(swap_out_seconds(graph, code), swap_in_seconds(graph, code))
            if slower < swap_out_seconds(graph, StartSwapOut(tensor, tier=ENCODES)):
                result[tensor] = code._replace(tier=None)
        return result


def _plan(request: Request, codes: Mapping[int, StartSwapOut]) -> Plan:
    """Plan for the least time within a limit; without a limit as `share`."""
    nothing = propose(share(), request)
    limit = request.limit_bytes
    if limit is None or fits(nothing):
        return replace(nothing, method=request.method)
    schedules = _Schedules(request, nothing, codes)
    goal = limit
    tried: list[Plan] = []
    for _ in range(_ROUNDS):
        candidates = schedules.best(goal)
        before = filter(fits, [*tried, *schedules.plans])
        known = min(map(_elapsed, before), default=math.inf)
        plans: list[Plan] = []
        for each in candidates:
            slow = request.is_slow(each.seconds)
            if slow or each.seconds >= known or any(map(fits, plans)):
                break
            if plans and request.is_over():
                break
            plans.append(plan_events(request, each.events))
        tried += plans
        if not plans or fits(plans[0]) or request.is_over():
            break
        # Lower the goal by half the excess: the next schedule may be placed better.
        goal -= -(-(plans[0].peak_bytes - limit) // 2)
    fitting = [*filter(fits, [*tried, *schedules.plans])]
    if not fitting and request.below < math.inf:
        return nothing
    if not fitting:
        tried += schedules.lowest()
        fitting = [*filter(fits, schedules.plans)]
    if fitting:
        return min(fitting, key=lambda plan: (names_algorithms(plan), _elapsed(plan)))
    return min(tried, key=lambda plan: plan.peak_bytes)


class _Schedules:
    """Search for schedules with copies.

    Idea: a few schedules, from each op once to much recomputation, get the copies that
    a goal requires, in several orders of choice; then recomputations are removed from
    the best, the most expensive first. Invariant: the loads of the results of `best`
    are within the goal, and their copies within the limits of tiers. Source: the orders
    are Capuchin's and Meng's (see `out_of_core`); the joint search is memcfg's own.
    """

    def __init__(
        self, request: Request, nothing: Plan, codes: Mapping[int, StartSwapOut]
    ) -> None:
        self.request = request
        self.codes = codes
        self.nothing = nothing
        self.plans: list[Plan] = []  # that fit without copies
        self._found: list[Sequence[int]] = []
        self._more = self._made()
        self._fastest = math.inf  # seconds of the fastest schedule for a goal

    def best(self, goal: int) -> list[_Swapped]:
        """Return the fastest schedules within a goal; ties go to fewer moved bytes."""
        result: list[_Swapped] = []
        longer: list[_Swapped] = []  # schedules with recomputation
        self._fastest = math.inf
        for sequence in self._sequences():
            swapped = [*self._swapped(sequence, goal)]
            result = sorted([*result, *swapped], key=_cost)[:_FEW]
            if len(sequence) > len(self.request.graph.ops):
                longer += swapped
            self._fastest = result[0].seconds if result else math.inf
            if self.request.is_over() or (result and self._is_enough(result[0])):
                return result
        if not longer:
            return result
        best = self._with_less_again(min(longer, key=_cost), goal)
        return [best, *result] if _cost(best) < _cost(result[0]) else result

    def lowest(self) -> list[Plan]:
        """Return the plans with the lowest peaks, with and without copies."""
        plans = [self.nothing]
        self._fastest = math.inf
        for sequence in self._sequences():
            everything = self._covering(sequence, 0).everything
            walked = everything.walk(max(everything.lowest))
            with_all = plan_events(self.request, walked.events)
            if tier_excess(self.request, with_all):
                with_all = self.request.scheduled(sequence)
            plans.append(with_all)
            if self.request.is_over():
                break
        return plans

    def _is_enough(self, best: _Swapped) -> bool:
        """Return whether no schedule can be faster, or time is over."""
        least = self.nothing.predicted.seconds * (1 + _ROUNDING)
        return best.seconds <= least or self.request.is_over()

    def _swapped(
        self, sequence: Sequence[int], goal: int, orders: Iterable[int] = _ALL
    ) -> Iterator[_Swapped]:
        """Yield schedules of these ops with copies whose loads are within the goal."""
        covering = self._covering(sequence, goal)
        trace = covering.trace
        for number in orders:
            order = _ORDERS[number]
            ranked = sorted(covering.gaps, key=lambda gap: (order(covering, gap), gap))
            chosen = covering.cover(ranked)
            if chosen is None:
                return
            swaps = covering.swaps(chosen)
            events = swaps.fastest(goal, self.request.is_over).events
            seconds = clock(self.request.graph, events).elapsed_seconds
            copied = {trace.tensor(gap): self._away_bytes(trace, gap) for gap in chosen}
            if not has_room(self.request.graph, events, sum(copied.values())):
                continue
            moved = sum(map(trace.size, chosen))
            yield _Swapped(seconds, moved, events, sequence, number)
            if self.request.is_over():
                return

    def _covering(self, sequence: Sequence[int], goal: int) -> Covering:
        entries = [Entry(place, op) for place, op in enumerate(sequence)]
        return Covering(Trace(self.request.graph, entries), goal, self.codes)

    def _away_bytes(self, trace: Trace, gap: Gap) -> int:
        """Return the bytes of a copy on its tier, in the worst case if encoded."""
        return trace.size(gap) + (ALIGNMENT if trace.tensor(gap) in self.codes else 0)

    def _with_less_again(self, best: _Swapped, goal: int) -> _Swapped:
        """Remove recomputations one at a time where copies are faster.

        Readers then use the value of the computation before.
        """
        graph = self.request.graph
        seen: set[int] = set()
        again = []
        for place, op in enumerate(best.sequence):
            if op in seen:
                again.append((-graph.ops[op].seconds, place))
            seen.add(op)
        whole = best.sequence
        stays = [True] * len(whole)
        for _, place in sorted(again)[:_TRIALS]:
            if self._is_enough(best):
                break
            stays[place] = False
            left = [*compress(whole, stays)]
            shorter = min(
                self._swapped(left, goal, [best.order]), key=_cost, default=best
            )
            stays[place] = _cost(shorter) >= _cost(best)
            best = min(best, shorter, key=_cost)
        self._found.append(best.sequence)
        return best

    def _sequences(self) -> Iterator[Sequence[int]]:
        yield from self._found
        for each in self._more:
            if each is None:
                return
            self._found.append(each)
            yield each

    def _made(self) -> Iterator[Sequence[int] | None]:
        """Yield schedules, or None while the next one cannot be the fastest."""
        request = self.request
        yield request.sequence_of(self.nothing)
        yield range(len(request.graph.ops))
        assert request.limit_bytes is not None
        over = self.nothing.peak_bytes - request.limit_bytes
        for policy in (replay_elementwise(), look_ahead()):
            for part in _PARTS:
                limit = request.limit_bytes + int(part * over)
                while policy.name == "look_ahead" and self._is_beaten(limit):
                    yield None
                plan = propose(policy, replace(request, limit_bytes=limit))
                plan = replace(
                    plan, method=request.method, limit_bytes=request.limit_bytes
                )
                if fits(plan):
                    self.plans.append(plan)
                yield request.sequence_of(plan)
                if plan.peak_bytes > limit:  # the method's lowest peak
                    break

    def _is_beaten(self, limit: int) -> bool:
        return beats_recomputation(self.request, limit, self._fastest)


def _elapsed(plan: Plan) -> float:
    return plan.elapsed_seconds


def _cost(swapped: _Swapped) -> tuple[float, int]:
    return swapped[:2]


def out_of_core(
    codec: str | None = None, density: float | Mapping[str, float] = RECTIFIED
) -> Policy:
    """Swap idle tensors and recompute cheap ops, whichever takes less time.

    Parameters
    ----------
    codec : {None, "zvc", "csr"}, default None
        The codec by which lanes encode tensors that are expected to contain zeros, if
        that is faster than copying them unencoded; see `cdma`. None encodes nothing.
    density : float or mapping of str to float, default 0.6
        See `cdma`.

    Returns
    -------
    Policy
        A value that can be compared; calling it with a graph and a limit returns a
        plan. Within a limit it minimizes the time of ops and copies on one clock. If
        `share` fits, or without a limit, nothing is swapped.

    Raises
    ------
    ValueError
        If `codec` is not one of these, or a density is not between 0 and 1.

    Notes
    -----
    Copies are added to a schedule without recomputation, and to those of
    `replay_elementwise` and `look_ahead` for this limit and for a larger one. Values
    are swapped between two uses, chosen by free time as in [1]_, by age as in [2]_, by
    size, or by free time per byte; the fastest of the four results is taken. A value is
    copied out once, and copied in as late as possible to be in time, if the limit has
    room. Then recomputations are removed one at a time where copies take less time.
    `look_ahead` is skipped if `time_lower_bound` proves that a plan with copies is
    faster than all of its plans. An op that does not fit even if all idle values are
    swapped uses an algorithm of less scratch, which may round differently.

    References
    ----------
    .. [1] X. Peng et al., "Capuchin: Tensor-based GPU Memory Management for Deep
       Learning", ASPLOS 2020.
    .. [2] C. Meng et al., "Training Deeper Models by GPU Memory Optimization on
       TensorFlow", ML Systems Workshop at NIPS 2017.
    """
    if codec is not None and codec not in SPARSE:
        raise ValueError(f"codec must be None or one of {SPARSE}, not {codec!r}")
    planner = _Planner(codec, Densities.of(density, RECTIFIED))
    return Method("out_of_core", planner, swaps=True)
