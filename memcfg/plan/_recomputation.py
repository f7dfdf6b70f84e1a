"""Plans that compute ops of the forward phase twice, where that is worth it.

No op is computed more than twice, and every candidate is simulated after placement.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from memcfg.plan._choices import Search
from memcfg.plan._policy import fits

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

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

    def find(goal: int) -> tuple[int, Sequence[int]] | None:
        if goal < choice.load:
            return None
        found = search.least_cost(goal, choice)
        return found.load, request.step.sequence(found.dropped)

    return plan_first_fitting(request, find, least)


def plan_first_fitting(
    request: Request,
    find: Callable[[int], tuple[int, Sequence[int]] | None],
    fallback: Plan,
) -> Plan:
    """Take the first schedule found that fits once placed, with ever tighter goals.

    `find` gives the load of a schedule within a goal, in bytes, and it; None: no more.
    """
    limit = request.limit_bytes or 0
    goal = limit
    for _ in range(_ROUNDS):
        found = find(goal)
        if found is None:
            break
        load, sequence = found
        plan = request.ordered(sequence)
        if fits(plan):
            return plan
        goal = min(goal - (plan.peak_bytes - limit), load - 1)
    return fallback
