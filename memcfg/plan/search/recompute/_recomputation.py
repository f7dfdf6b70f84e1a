"""Recomputation of a set of forward ops, each once.

No op is computed more than twice, and every candidate is simulated after placement.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

from memcfg.plan.search._policy import Method
from memcfg.plan.search.recompute._choices import Search, by_cost

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from memcfg._core import search
    from memcfg.plan.format._plan import Plan
    from memcfg.plan.search._policy import Policy
    from memcfg.plan.search._request import Request


_ROUNDS = 8  # searches with a tighter goal when placement exceeds the limit
_MARGINS = 1.0, 0.97, 0.9  # parts of a limit that a load is within, so it is placed


class Candidate(NamedTuple):
    """A schedule that a search compares, without copies and before it is placed."""

    load: int  # bytes in use: a lower bound of the peak
    cost: float  # time of recomputation
    again: int  # computations beyond the first of each op
    sequence: Sequence[int]

    @staticmethod
    def of(step: search.Step, sequence: Sequence[int]) -> Candidate:
        """Measure a schedule."""
        return Candidate(*step.measure(sequence), sequence)


def plan_recomputation(request: Request) -> Plan:
    """Plan for the lowest peak or, with a limit, for the least recomputation."""
    search = Search.of(request)
    nothing = search.sequence(search.nothing)
    limit = request.limit_bytes
    if limit is not None and request.peak_in_order(nothing) <= limit:
        return request.ordered(nothing)
    # The choice with the lowest load, or no recomputation if that is placed lower.
    least = search.least_load()
    choice, peak = min(
        (
            (choice, request.peak_in_order(search.sequence(choice)))
            for choice in (least, search.nothing)
        ),
        key=lambda item: (item[1], by_cost(item[0])),
    )
    if limit is None or peak > limit:
        return request.ordered(search.sequence(choice))

    def find(goal: int) -> tuple[int, Sequence[int]] | None:
        if goal < choice.load:
            return None
        result = search.least_cost(goal, choice)
        return result.load, search.sequence(result)

    result = first_fitting(request, find)
    return request.ordered(search.sequence(choice) if result is None else result)


def hasty_plan(request: Request, below: float = math.inf) -> Plan | None:
    """Return a plan of the cheapest proposal that fits, hardly improved, or None.

    It takes little longer than to place and write a plan. None as well if it recomputes
    for at least `below` seconds.
    """
    limit = request.limit_bytes
    assert limit is not None
    search = Search.of(request)
    for part in _MARGINS:
        goal = int(limit * part)
        choice = search.cheapest_within(goal)
        if choice is None:
            break
        choice = search.least_cost_from(choice, goal)
        if choice.cost >= below:
            break
        sequence = search.sequence(choice)
        if request.peak_in_order(sequence) <= limit:
            return request.of_method("sqrt_checkpoint").ordered(sequence)
    return None


def first_fitting(
    request: Request, find: Callable[[int], tuple[int, Sequence[int]] | None]
) -> Sequence[int] | None:
    """Return the first schedule whose plan fits, for decreasing goals, or None.

    Placement may need more than the bytes in use; the next goal is lower by the excess.
    Invariant: goals decrease, so the loop would end without `_ROUNDS`. ``find(goal)``
    returns the load in bytes and a schedule within a goal, or None.
    """
    limit = request.limit_bytes or 0
    goal = limit
    for _ in range(_ROUNDS):
        candidate = find(goal)
        if candidate is None:
            break
        load, sequence = candidate
        peak = request.peak_in_order(sequence)
        if peak <= limit:
            return sequence
        if request.is_over():
            break
        goal = min(goal - (peak - limit), load - 1)
    return None


def sqrt_checkpoint() -> Policy:
    """Keep some outputs of the forward phase and recompute the others.

    Returns
    -------
    Policy
        The policy. Without a limit it looks for the lowest peak; with a limit, for the
        least recomputation within it. Memory is shared as by `share`.

    Notes
    -----
    The forward phase is cut into segments. Tensors that cross a cut are kept; the rest
    of each segment except the last is recomputed just before the first backward op that
    needs it. On a chain of n uniform ops, k equal segments need k + n/k tensors, at
    best 2 sqrt(n). While the j-th segment runs backward, only j checkpoints are left,
    so earlier segments may be longer: lengths m, m - 1, ..., 1 give n = m (m + 1) / 2
    and need about sqrt(2 n). The cuts are optimal in a memory model (a minimax over all
    segmentations, skip connections counted once), for a range of budgets. Algorithm 3
    of [1]_ and its rule to drop cheap ops give further candidates. The best are
    improved one op at a time.

    References
    ----------
    .. [1] T. Chen, B. Xu, C. Zhang, C. Guestrin, "Training Deep Nets with Sublinear
       Memory Cost", 2016, arXiv:1604.06174.
    """
    return Method("sqrt_checkpoint", plan_recomputation)
