"""Part of the forward phase is computed twice: less memory for more time.

Owns the policy `sqrt_checkpoint`. Refuses to compute an op more than twice, to
recompute what is not replayable, and to guess: every candidate is simulated after
placement.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from memcfg.plan._choices import Choice, Search
from memcfg.plan._lifetimes import Request
from memcfg.plan._policy import fits, refuse
from memcfg.plan._share import lowest_layout

if TYPE_CHECKING:
    from memcfg.graph import Graph
    from memcfg.plan._plan import Plan

__all__ = ["SqrtCheckpoint", "sqrt_checkpoint"]

_ROUNDS = 8  # searches with a tighter goal when placement exceeds the limit


@dataclass(frozen=True)
class SqrtCheckpoint:
    """The policy that `sqrt_checkpoint` makes."""

    name: str = "sqrt_checkpoint"

    def __call__(self, graph: Graph, limit_bytes: int | None = None) -> Plan:
        """Plan a graph; see `Policy`."""
        request = Request.of(graph, self.name, limit_bytes)
        search = Search(request.graph)
        if limit_bytes is not None:
            plan = _place(request, search, search.nothing)
            if fits(plan):
                return plan
        choice, least = _least_peak(request, search)
        if limit_bytes is None:
            return least
        if not fits(least):
            raise refuse(least)
        return _least_time(request, search, choice, least)


def sqrt_checkpoint() -> SqrtCheckpoint:
    """Keep some outputs of the forward phase and recompute the others.

    Returns
    -------
    SqrtCheckpoint
        The policy. Without a limit it plans for the least peak; with one, for the
        least recomputation within it. _Range is shared as by `share`.

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
    return SqrtCheckpoint()


def _place(request: Request, search: Search, choice: Choice) -> Plan:
    layout = lowest_layout(request.graph, search.step, choice.dropped)
    return request.plan_of(layout)


def _least_peak(request: Request, search: Search) -> tuple[Choice, Plan]:
    """Take the choice of least load, or none dropped if that places lower."""
    found = (search.least_load(), search.nothing)
    placed = [(choice, _place(request, search, choice)) for choice in found]
    return min(placed, key=lambda item: (item[1].peak_bytes, item[0].by_cost))


def _least_time(
    request: Request, search: Search, least: Choice, fallback: Plan
) -> Plan:
    """Take the cheapest choice that fits once placed; at worst the least peak."""
    limit = request.limit_bytes or 0
    goal = limit
    for _ in range(_ROUNDS):
        if goal < least.load:
            break
        plan = _place(request, search, search.least_cost(goal, least))
        if fits(plan):
            return plan
        goal -= plan.peak_bytes - limit
    return fallback
