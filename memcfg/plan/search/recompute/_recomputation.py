"""Plans that compute ops of the forward phase twice, where that is worth it.

No op is computed more than twice, and every candidate is simulated after placement.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from memcfg.plan.search._policy import Method
from memcfg.plan.search.recompute._choices import Search

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from memcfg.plan.format._plan import Plan
    from memcfg.plan.search._policy import Policy
    from memcfg.plan.search._request import Request


_ROUNDS = 8  # searches with a tighter goal when placement exceeds the limit


def plan_recomputation(request: Request) -> Plan:
    """Plan for the least peak; within a limit, for the least recomputation."""
    search = Search.of(request)
    nothing = search.sequence(search.nothing)
    limit = request.limit_bytes
    if limit is not None and request.peak_in_order(nothing) <= limit:
        return request.ordered(nothing)
    # The choice of least load, or none dropped if that is placed lower.
    least = search.least_load()
    choice, peak = min(
        (
            (choice, request.peak_in_order(search.sequence(choice)))
            for choice in (least, search.nothing)
        ),
        key=lambda item: (item[1], item[0].by_cost),
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


def first_fitting(
    request: Request, find: Callable[[int], tuple[int, Sequence[int]] | None]
) -> Sequence[int] | None:
    """Take the first schedule that fits once put in order, of ever tighter goals.

    Placement may need more than the bytes in use: by what it needs more, the next goal
    is lower. Invariant: goals fall, so the loop ends without `_ROUNDS`, too.
    `find` gives the load of a schedule within a goal, in bytes, and it; None: no more.
    """
    limit = request.limit_bytes or 0
    goal = limit
    for _ in range(_ROUNDS):
        found = find(goal)
        if found is None:
            break
        load, sequence = found
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
        The policy. Without a limit it plans for the least peak; with one, for the
        least recomputation within it. Memory is shared as by `share`.

    Notes
    -----
    The forward phase is cut into segments; what crosses a cut is kept, the rest of
    every segment but the last is computed again just before the first backward op
    that needs it. On a chain of n uniform ops k even segments need k + n/k tensors,
    at best 2 sqrt(n). While the j-th segment is run backward, only j checkpoints are
    left, so earlier segments may be longer: lengths m, m - 1, ..., 1 make
    n = m (m + 1) / 2 and need about sqrt(2 n). Cuts are searched exactly in a model
    of the memory (a minimax over all segmentations, skip connections counted once),
    under a range of budgets; Algorithm 3 of [1]_ and its rule to drop what is cheap
    make further candidates; the best are improved one op at a time.

    References
    ----------
    .. [1] T. Chen, B. Xu, C. Zhang, C. Guestrin, "Training Deep Nets with Sublinear
       Memory Cost", 2016, arXiv:1604.06174.
    """
    return Method("sqrt_checkpoint", plan_recomputation)
