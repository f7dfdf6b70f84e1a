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

_MOST = 16  # forward passes that a plan may amount to


def repetitions(count: int, slots: int) -> int:
    """Return the least r with binomial(slots + r, slots) >= count."""
    r = 0
    while math.comb(slots + r, slots) < count:
        r += 1
    return r


def revolve_forwards(count: int, slots: int) -> int:
    """Return the least forward steps of a chain, by the closed form.

    A slot holds a checkpoint, the start of the chain among them; each stage goes
    forward once more just before it goes backward.

    Parameters
    ----------
    count : int
        How many stages the chain has.
    slots : int
        How many checkpoints, at least 1.

    Returns
    -------
    int
        Steps.
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
    """Return the schedule of the least forward steps with so many checkpoints.

    Parameters
    ----------
    count : int
        How many stages the chain has.
    slots : int
        How many checkpoints, at least 1.

    Returns
    -------
    list of Move
        Moves, for `memcfg.plan.search.Chain.sequence`.
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
    """Keep checkpoints where the binomial schedule of a uniform chain has them.

    Returns
    -------
    Policy
        The policy: treeverse [1]_, as revolve [2]_ does it. Without a limit it takes
        the plan of the least peak; with one, of the least recomputation. Memory is
        shared as by `share`.

    Notes
    -----
    With s checkpoints, of which the input of the chain is one, and r the least number
    for which binomial(s + r, s) >= n, a chain of n stages takes
    (r + 1) n - binomial(s + r, r - 1) forward steps, and no schedule takes fewer
    where all stages are alike. Up to 32 numbers of checkpoints are tried, with at
    most 16 forward passes in all. Cuts are at articulation points, or anywhere, as
    for `chen_sqrt`.

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
