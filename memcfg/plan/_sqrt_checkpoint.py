"""Part of the forward phase is computed twice: less memory for more time.

No op is computed more than twice, and every candidate is simulated after placement.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from memcfg.plan._choices import Choice, Search
from memcfg.plan._policy import Method, fits

if TYPE_CHECKING:
    from memcfg.plan._lifetimes import Request
    from memcfg.plan._plan import Plan
    from memcfg.plan._policy import Policy

_ROUNDS = 8  # searches with a tighter goal when placement exceeds the limit


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
    return Method("sqrt_checkpoint", _checkpoint)


def _checkpoint(request: Request) -> Plan:
    search = Search(request)
    if request.limit_bytes is not None:
        plan = request.placed(search.nothing.dropped)
        if fits(plan):
            return plan
    # The choice of least load, or none dropped if that is placed lower.
    choices = (search.least_load(), search.nothing)
    placed = [(choice, request.placed(choice.dropped)) for choice in choices]
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
        plan = request.placed(choice.dropped)
        if fits(plan):
            return plan
        goal = min(goal - (plan.peak_bytes - limit), choice.load - 1)
    return fallback
