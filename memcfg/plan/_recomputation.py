"""Plans that compute ops of the forward phase twice, where that is worth it.

No op is computed more than twice, and every candidate is simulated after placement.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from memcfg.plan._choices import Choice, Search
from memcfg.plan._policy import fits

if TYPE_CHECKING:
    from memcfg.plan._lifetimes import Request
    from memcfg.plan._plan import Plan

_ROUNDS = 8  # searches with a tighter goal when placement exceeds the limit


def plan_recomputation(request: Request) -> Plan:
    """Plan for the least peak; within a limit, for the least recomputation."""
    search = Search(request)
    if request.limit_bytes is not None:
        plan = request.placed_in_order(search.nothing.dropped)
        if fits(plan):
            return plan
    # The choice of least load, or none dropped if that is placed lower.
    choices = (search.least_load(), search.nothing)
    placed = [(choice, request.placed_in_order(choice.dropped)) for choice in choices]
    choice, least = min(placed, key=lambda item: (item[1].peak_bytes, item[0].by_cost))
    if request.limit_bytes is None or not fits(least):
        return least
    return _least_time(request, search, choice, least)


def _least_time(
    request: Request, search: Search, least: Choice, fallback: Plan
) -> Plan:
    """Take the cheapest choice that fits once placed; at worst the least peak."""
    limit = request.limit_bytes or 0
    goal = limit
    for _ in range(_ROUNDS):
        if goal < least.load:
            break
        choice = search.least_cost(goal, least)
        plan = request.placed_in_order(choice.dropped)
        if fits(plan):
            return plan
        goal = min(goal - (plan.peak_bytes - limit), choice.load - 1)
    return fallback
