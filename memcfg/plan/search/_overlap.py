"""Collectives that run beside compute, in plans that were made without that.

A collective is started where a plan computes it, and waited for before the first action
that needs its results or its bytes. Other orders of the same ops start collectives
earlier, and let ops run later that need results.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING

from memcfg.plan.format._actions import Alias, Alloc, Compute, Free, Start
from memcfg.plan.format._collectives import any_beside, is_collective
from memcfg.plan.search._full_tiers import in_own_numbers
from memcfg.plan.search._policy import fits
from memcfg.plan.search._request import Request
from memcfg.plan.search.network._landings import Landings
from memcfg.plan.search.network._list_schedule import ListSchedule
from memcfg.plan.search.network._starter import Starter

if TYPE_CHECKING:
    from collections.abc import Sequence

    from memcfg.graph import Graph
    from memcfg.plan.format._actions import Action
    from memcfg.plan.format._plan import Plan
    from memcfg.plan.search.network._list_schedule import Order

_ROUNDING = 1e-9  # relative rounding error of a sum of seconds
_STEP = 4  # factor between the numbers of collectives that may be ahead
_MUCH = 0.05  # relative seconds that are worth another plan
_LACKING = 1 / 32  # of the limit: the most that another plan leaves for collectives
_CUTS = 32  # places at which the order of a plan may become that of its graph
_LARGE = 2_000  # ops of a graph of which fewer orders are tried: each takes 0.1 s
_NEAR = 0.002  # relative seconds below which orders do not differ


def overlap_collectives(graph: Graph, plan: Plan) -> Plan:
    """Let the collectives of a plan run beside compute, where that is faster.

    Parameters
    ----------
    graph : Graph
        The graph of the plan.
    plan : Plan
        A plan that computes its collectives between other ops.

    Returns
    -------
    Plan
        The fastest plan within the plan's limit, by the simulated clock and the graph's
        link, of: the given plan; the same placements, with collectives that are started
        and waited for as late as possible; and list schedules of the same ops, in which
        collectives are started 1, 4, 16, ... collectives ahead of the order of the plan
        or the graph, and ops run while results that others need are not there. The
        given plan itself if the graph has no collectives, or the plan starts some
        already.

    Raises
    ------
    GraphError
        If the graph cannot be planned; see `Policy`.
    PlanError
        If the plan does not fit the graph.
    """
    request = Request.of(graph, plan.method, plan.limit_bytes)
    priced = request.plan(in_own_numbers(request, plan).actions)
    made = overlapped(request, plan, priced)
    return plan if made is priced else made


def overlapped(
    request: Request, plan: Plan, priced: Plan | None = None, *, keeps: bool = False
) -> Plan:
    """Return the fastest plan of `overlap_collectives` for a request.

    `priced` is the plan with the seconds of the request's graph, if `plan` has others.
    If it `keeps` them, collectives stay in the order of the plan.
    """
    return overlapped_and_missing(request, plan, priced, keeps=keeps)[0]


def overlapped_and_missing(
    request: Request, plan: Plan, priced: Plan | None = None, *, keeps: bool = False
) -> tuple[Plan, int]:
    """Return that plan, and the bytes that a much faster order lacks, or 0.

    If that is a large part of the limit, a small part is returned instead.
    """
    if not any_beside(request.graph) or any(
        isinstance(action, Start) for action in plan.actions
    ):
        return plan, 0
    own = in_own_numbers(request, plan)
    best = _better(priced or plan, _with_starts(request, plan, own.actions))
    computes = [action for action in own.actions if isinstance(action, Compute)]
    plain = all(
        isinstance(each, Alloc | Alias | Free | Compute) for each in own.actions
    )
    if not plain or any(action.algorithm is not None for action in computes):
        return best, 0
    limit = math.inf if request.limit_bytes is None else request.limit_bytes
    search = _Search(request, limit, keeps)
    missing: list[tuple[float, float]] = []
    for order in search.orders([action.op for action in computes]):
        if request.is_over() or order.seconds * (1 + _NEAR) >= best.elapsed_seconds:
            break  # those that follow are slower
        load = search.landings.load(order.events)
        if load <= limit:
            actions = search.landings.written(order.events)
            best = _better(best, _with_starts(request, plan, actions))
        elif order.seconds * (1 + _MUCH) < best.elapsed_seconds:
            missing.append((order.seconds, load - limit))
    much = [
        lacks
        for seconds, lacks in missing
        if seconds * (1 + _MUCH) < best.elapsed_seconds
    ]
    return best, int(min([*much, limit * _LACKING])) if much else 0


def _better(best: Plan, other: Plan) -> Plan:
    """Return the other plan if it fits and is faster."""
    faster = other.elapsed_seconds < best.elapsed_seconds * (1 - _ROUNDING)
    return other if fits(other) and faster else best


def _with_starts(request: Request, plan: Plan, actions: Sequence[Action]) -> Plan:
    """Return the plan of these actions with started collectives, summed up as `plan`.

    Actions have op indices of the request.
    """
    starter = Starter(request.graph, plan.alignment, places=plan.places)
    made = request.of_method(plan.method).plan(starter.run(actions))
    if made.summary is not None and plan.summary is not None:
        old = plan.summary
        summary = replace(
            made.summary,
            chosen_by=old.chosen_by,
            less_scratch=old.less_scratch,
            algorithms=old.algorithms,
            unproven=old.unproven,
        )
        made = replace(made, summary=summary)
    return replace(made, lossy=plan.lossy)


class _Search:
    """A search for orders of the ops of plans with default algorithms."""

    def __init__(self, request: Request, limit: float, keeps: bool) -> None:
        self._graph = request.graph
        self._limit = limit
        self._keeps = keeps  # whether collectives stay in their order
        self.landings = Landings(request)

    def orders(self, given: list[int]) -> list[Order]:
        """Return list schedules, the fastest first, of equal ones the least ahead."""
        schedules = self._schedules(given)
        count = len(schedules[0].collectives)
        aheads = [0, 1]
        # Weights are read from files to take little memory: one ahead of its reader.
        is_large = len(self._graph.ops) > _LARGE
        factor = _STEP**2 if is_large else _STEP
        while any(map(is_collective, self._graph.ops)) and aheads[-1] < count:
            aheads.append(min(count, factor * aheads[-1]))
        orders = [
            each.order(ahead, fills=fills, keeps=self._keeps)
            for fills in ((False,) if is_large else (False, True))
            for ahead in aheads
            for each in schedules
        ]
        near = min(order.seconds for order in orders) * (1 + _NEAR)
        return sorted(orders, key=lambda order: max(order.seconds, near))

    def _schedules(self, given: list[int]) -> list[ListSchedule]:
        """Return sequences of the ops of a plan.

        For a lower peak, plans may compute gradients of weights late, so that their
        sums are late, too. Others have them in the order of the graph, from the start
        or from behind the moments that would exceed the limit.
        """
        result = [ListSchedule(self._graph, given)]
        early = self._from(result[0], 0)
        if early is None:
            return result
        result.append(early)
        if self._fits(early):
            return result
        low, high, found = 0, len(given), None
        while high - low > len(given) // _CUTS + 1:
            middle = (low + high) // 2
            made = self._from(result[0], middle)
            if made is None or self._fits(made):
                high, found = middle, made
            else:
                low = middle
        return [*result, *([found] if found else [])]

    def _from(self, schedule: ListSchedule, behind: int) -> ListSchedule | None:
        """Return the sequence with ops in the order of the graph; None: no other."""
        other = schedule.in_graph_order(behind)
        same = other == schedule.sequence
        return None if same else ListSchedule(self._graph, other)

    def _fits(self, schedule: ListSchedule) -> bool:
        order = schedule.order(1, fills=False, keeps=self._keeps)
        return self.landings.load(order.events) <= self._limit
