"""Eviction of tensors between two accesses, by swaps or recomputation.

Idea: choices depend only on when tensors are accessed. Values whose copies can be
hidden are swapped; of the others, those with the most bytes per second are evicted
first, by a copy that ops wait for or by recomputation. Invariant: the load is within a
goal at every position. Source: the choices of Peng et al., "Capuchin", ASPLOS 2020, for
several goals below a limit; the fastest schedule whose plan fits is taken.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from memcfg.plan.search._full_tiers import within_tier
from memcfg.plan.search._policy import Method, fits
from memcfg.plan.search.swaps._accesses import Entry
from memcfg.plan.search.swaps._evictions import Evictions
from memcfg.plan.search.swaps._replays import Replays
from memcfg.plan.search.swaps._swap_events import plan_events

if TYPE_CHECKING:
    from collections.abc import Sequence

    from memcfg.plan.format._plan import Plan
    from memcfg.plan.search._policy import Policy
    from memcfg.plan.search._request import Request
    from memcfg.plan.search.swaps._walk import Walked

# A lower goal leaves room for copies in, so its schedule may be faster.
_GOALS = 8  # goals within a limit
_STEP = 0.05  # step between goals, as a fraction of the limit without state
_PLACED = 3  # max. times that a schedule is placed, with decreasing goals


@dataclass(frozen=True)
class Evicting:
    """Planning function of guided eviction; a value, for comparison.

    `early` has the seconds by which copies in start earlier, by tensor name.
    """

    early: tuple[tuple[str, float], ...] = ()

    def __call__(self, request: Request) -> Plan:
        """Plan with as few evictions as the limit requires."""
        nothing = unevicted(request)
        limit = request.limit_bytes
        if limit is None or fits(nothing):
            return nothing
        start = start_of(request, self.early)
        plan = _fastest(request, start, limit)
        if plan is None and request.below < math.inf:
            plan = _lowest_if_soon(request, start, limit)
            if plan is None:
                return nothing
        if plan is None:
            least = [start.everything]
            if not request.is_over():
                least.insert(0, start.lowest())
            plan = min(
                (
                    plan_events(request, each.swaps.walk(each.least).events)
                    for each in least
                ),
                key=lambda each: each.peak_bytes,
            )
        return within_tier(request, plan)


def _lowest_if_soon(request: Request, start: Evictions, limit: int) -> Plan | None:
    """Return the plan with the lowest load, or None if it is of no use."""
    if start.everything.least > limit or request.is_over():
        return None
    least = start.lowest()
    walked = least.swaps.walk(least.least)
    if request.is_slow(walked.seconds):
        return None
    return plan_events(request, walked.events)


def unevicted(request: Request) -> Plan:
    """Return the plan without evictions."""
    return request.ordered(range(len(request.graph.ops)))


def start_of(request: Request, early: tuple[tuple[str, float], ...] = ()) -> Evictions:
    """Return the schedule without evictions, in the order of the lowest load."""
    graph = request.graph
    order: Sequence[int] = range(len(graph.ops))
    if request.orders is not False:
        order = request.reordered(order)
    named = dict(early)
    sooner = {
        number: named[tensor.name]
        for number, tensor in enumerate(graph.tensors)
        if tensor.name in named
    }
    replays = Replays(request, order)
    entries = [Entry(place, op) for place, op in enumerate(order)]
    return Evictions(replays, sooner, frozenset(), frozenset(), entries)


class _Found(NamedTuple):
    """A schedule whose load is within a limit."""

    evictions: Evictions
    walked: Walked


def _fastest(request: Request, start: Evictions, limit: int) -> Plan | None:
    """Return the plan of the fastest schedule whose plan fits, or None."""
    state = start.trace.state_bytes
    if start.everything.least > limit:
        return None
    candidates: list[_Found] = []
    evictions: Evictions | None = start
    for number in range(_GOALS):
        goal = state + int((limit - state) * (1 - _STEP * number))
        evictions = evictions.within(goal) if evictions else None
        if evictions is None:
            break
        candidates.append(_Found(*evictions.mended(limit)))
    for evictions, walked in sorted(candidates, key=lambda each: each.walked.seconds):
        if request.is_slow(walked.seconds):
            break
        goal, way = limit, walked
        for _ in range(_PLACED):
            plan = plan_events(request, way.events)
            if fits(plan):
                return plan
            if request.is_over():
                return None
            goal -= plan.peak_bytes - limit
            if goal < evictions.least:
                break
            way = evictions.walked(goal)
    return None


def evict() -> Policy:
    """Return the policy that swaps or recomputes idle tensors, for `auto`."""
    return Method("evict", Evicting(), swaps=True)
