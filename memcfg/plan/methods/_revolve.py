"""Binomial checkpointing of chains: treeverse and revolve."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from memcfg.plan.methods._candidates import plan_cheapest, slot_counts
from memcfg.plan.search._policy import Method
from memcfg.plan.search.recompute._chain import Chain, Do, cuts

if TYPE_CHECKING:
    from collections.abc import Iterator

    from memcfg.plan.format._plan import Plan
    from memcfg.plan.search._policy import Policy
    from memcfg.plan.search._request import Request
    from memcfg.plan.search.recompute._chain import Move

_MOST = 16  # max. forward passes of a plan, recomputation included


def repetitions(count: int, slots: int) -> int:
    """Return the smallest r with binomial(slots + r, slots) >= count."""
    r = 0
    while math.comb(slots + r, slots) < count:
        r += 1
    return r


def revolve_forwards(count: int, slots: int) -> int:
    """Return the fewest forward steps of a uniform chain, by the closed form.

    The chain's input occupies one of the checkpoints. Each stage runs forward once more
    just before it runs backward.

    Parameters
    ----------
    count : int
        The number of stages of the chain.
    slots : int
        The number of checkpoints, at least 1.

    Returns
    -------
    int
        The number of forward steps.
    """
    r = repetitions(count, slots)
    saved = math.comb(slots + r, r - 1) if r else 0
    return count + r * count - saved


def _split(count: int, slots: int) -> int:
    """Return how many stages to advance before the next checkpoint."""
    r = repetitions(count, slots)
    least = math.comb(slots + r - 2, slots) if r > 1 else 1
    return max(least, count - math.comb(slots - 1 + r, slots - 1), 1)


def revolve_moves(count: int, slots: int) -> list[Move]:
    """Return the schedule with the fewest forward steps of a uniform chain.

    Parameters
    ----------
    count : int
        The number of stages of the chain.
    slots : int
        The number of checkpoints, at least 1.

    Returns
    -------
    list of Move
        The moves, for `memcfg.plan.search.Chain.sequence`.
    """
    moves: list[Move] = []
    parts = [(0, count, slots)]
    while parts:
        low, high, left = parts.pop()
        if high - low <= 1 or left == 1:
            for last in reversed(range(low, high)):
                moves += [(Do.ADVANCE, stage) for stage in range(low, last)]
                moves += [(Do.COMPUTE, last), (Do.BACKWARD, last)]
            continue
        middle = low + _split(high - low, left)
        moves += [(Do.ADVANCE, stage) for stage in range(low, middle)]
        parts += [(low, middle, left), (middle, high, left - 1)]
    return moves


def _revolve(request: Request) -> Plan:
    return plan_cheapest(request, _schedules(request))


def _schedules(request: Request) -> Iterator[list[int]]:
    for stages in cuts(request):
        chain = Chain(request, stages)
        count = len(chain.stages)
        for slots in slot_counts(count):
            if revolve_forwards(count, slots) <= _MOST * count:
                yield chain.sequence(revolve_moves(count, slots))


def revolve() -> Policy:
    """Keep the checkpoints of the optimal (binomial) schedule of a uniform chain.

    Returns
    -------
    Policy
        The policy: treeverse [1]_ in the form of revolve [2]_. Without a limit it takes
        the plan with the lowest peak; with a limit, the one with the least
        recomputation. Memory is shared as by `share`.

    Notes
    -----
    Let s be the number of checkpoints, including the chain's input, and r the smallest
    number with binomial(s + r, s) >= n. A chain of n stages takes
    (r + 1) n - binomial(s + r, r - 1) forward steps, which is optimal if all stages
    are alike. Up to 32 numbers of checkpoints are tried, with at most 16 forward passes
    in total. Cuts are at articulation points, or anywhere, as in `chen_sqrt`.

    References
    ----------
    .. [1] A. Griewank, "Achieving logarithmic growth of temporal and spatial
       complexity in reverse automatic differentiation", Optimization Methods and
       Software 1, 1992.
    .. [2] A. Griewank, A. Walther, "Algorithm 799: Revolve", ACM Transactions on
       Mathematical Software 26, 2000.
    """
    return Method(
        "revolve", _revolve, "auto(), which takes the best of several methods"
    )
