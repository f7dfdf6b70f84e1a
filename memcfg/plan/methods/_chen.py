"""The methods of Chen et al. 2016, on chains and on any graph."""

from __future__ import annotations

import itertools
import math
from typing import TYPE_CHECKING

from memcfg.plan.methods._candidates import plan_cheapest
from memcfg.plan.search._policy import Method
from memcfg.plan.search.recompute._chain import (
    Chain,
    Do,
    cuts,
    even_segments,
    merged,
    segment_moves,
)
from memcfg.plan.search.recompute._replay_elementwise import cheap_ops
from memcfg.units import align_up

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from memcfg.plan.format._plan import Plan
    from memcfg.plan.search._policy import Policy
    from memcfg.plan.search._request import Request
    from memcfg.plan.search.recompute._chain import Move

_BUDGETS = 6  # budgets tried around the first one, as published


def budget_segments(sizes: Sequence[int], budget: float) -> tuple[list[int], int, int]:
    """Divide a chain into segments by Algorithm 3.

    Returns
    -------
    list of int
        The first stage of each segment except the first segment.
    int
        Bytes that are kept between segments.
    int
        Bytes of the largest segment.
    """
    ends: list[int] = []
    kept = largest = inside = 0
    for place, size in enumerate(sizes):
        inside += size
        if inside > budget:
            kept += size
            largest = max(largest, inside)
            inside = 0
            if place + 1 < len(sizes):
                ends.append(place + 1)
    return ends, kept, max(largest, inside)


def search_budgets(sizes: Sequence[int]) -> list[float]:
    """Return the budgets that the paper's search tries on a chain."""
    _, kept, largest = budget_segments(sizes, 0)
    first = math.sqrt(kept * largest / 2)
    step = (math.sqrt(2) * first - largest) / (_BUDGETS - 1)
    return [0.0, first, *(largest + step * k for k in range(_BUDGETS))]


def recursive_moves(count: int, k: int) -> list[Move]:
    """Return the moves that keep k results and recurse into each part, last first."""
    moves: list[Move] = []
    parts = [(0, count)]
    while parts:
        low, high = parts.pop()
        if high - low == 1:
            moves += [(Do.COMPUTE, low), (Do.BACKWARD, low)]
            continue
        pieces = min(k + 1, high - low)
        begins = [low, *(low + b for b in even_segments(high - low, pieces)), high]
        moves += [(Do.ADVANCE, stage) for stage in range(low, begins[-2])]
        parts += itertools.pairwise(begins)
    return moves


def _segments(
    request: Request, stages: Sequence[Sequence[int]], ends: Sequence[int]
) -> list[int]:
    chain = Chain(request, merged(stages, ends))
    return chain.sequence(segment_moves(len(chain.stages)))


def _sqrt(request: Request) -> Plan:
    return plan_cheapest(
        request,
        (
            _segments(request, stages, even_segments(len(stages), root))
            for stages in cuts(request)
            for root in (max(1, round(math.sqrt(len(stages)))),)
        ),
    )


def chen_sqrt() -> Policy:
    """Keep checkpoints between about √n equal segments, and recompute each segment.

    Returns
    -------
    Policy
        The policy: Algorithm 1 of [1]_. Without a limit it takes the plan with the
        lowest peak; with a limit, the one with the least recomputation. Memory is
        shared as by `share`.

    Notes
    -----
    The n stages are the ops between articulation points, where a single tensor crosses.
    A second candidate cuts the sequence of all ops evenly and keeps all tensors that
    cross a cut. The last segment is computed only once.

    References
    ----------
    .. [1] T. Chen, B. Xu, C. Zhang, C. Guestrin, "Training Deep Nets with Sublinear
       Memory Cost", 2016, arXiv:1604.06174.
    """
    return Method("chen_sqrt", _sqrt, "auto(), which takes the best of several methods")


def _mirror(request: Request) -> Plan:
    cheap = cheap_ops(request.graph)
    dropped = bytes(index in cheap for index in range(len(request.graph.ops)))
    return request.placed(dropped)


def chen_mirror() -> Policy:
    """Recompute all cheap ops just before their outputs are needed.

    Returns
    -------
    Policy
        The policy: Algorithm 2 of [1]_ with the mirror counts of its rule of thumb, 0
        for convolutions and matrix products, 1 for batch normalization, activations,
        pooling and other memory-bound ops. Memory is shared as by `share`.

    Notes
    -----
    A graph has one plan, whatever the limit. `replay_elementwise` recomputes only as
    many of these ops as the limit requires.

    References
    ----------
    .. [1] T. Chen, B. Xu, C. Zhang, C. Guestrin, "Training Deep Nets with Sublinear
       Memory Cost", 2016, arXiv:1604.06174.
    """
    return Method("chen_mirror", _mirror, "chen_budget(), which can recompute any op")


def _budget(request: Request) -> Plan:
    return plan_cheapest(request, _budgeted(request))


def _budgeted(request: Request) -> Iterator[list[int]]:
    tensors = request.graph.tensors
    for stages in cuts(request):
        sizes = [
            sum(
                align_up(tensors[t].nbytes)
                for op in stage
                for t in request.graph.ops[op].outputs
            )
            for stage in stages
        ]
        for budget in search_budgets(sizes):
            yield _segments(request, stages, budget_segments(sizes, budget)[0])


def chen_budget() -> Policy:
    """Divide the forward phase into segments of about equal bytes.

    Returns
    -------
    Policy
        The policy: Algorithm 3 of [1]_ with its search for the budget of a segment.
        Without a limit it takes the plan with the lowest peak; with a limit, the one
        with the least recomputation. Memory is shared as by `share`.

    Notes
    -----
    A segment ends where its outputs exceed the budget b. The first budget is 0, which
    gives the kept bytes x and the largest segment y. Then follow b = √(x y / 2), as in
    the authors' code, and six values evenly spaced from y to √2 b. Cuts are at
    articulation points, or anywhere, as in `chen_sqrt`.

    References
    ----------
    .. [1] T. Chen, B. Xu, C. Zhang, C. Guestrin, "Training Deep Nets with Sublinear
       Memory Cost", 2016, arXiv:1604.06174.
    """
    return Method(
        "chen_budget", _budget, "auto(), which takes the best of several methods"
    )


def _recursive(request: Request) -> Plan:
    return plan_cheapest(request, _recursions(request))


def _recursions(request: Request) -> Iterator[list[int]]:
    for stages in cuts(request):
        chain = Chain(request, stages)
        count = len(chain.stages)
        k = 1
        while k < 2 * count:
            yield chain.sequence(recursive_moves(count, k))
            k *= 2


def chen_recursive() -> Policy:
    """Keep k checkpoints, and apply the same rule to each part between them.

    Returns
    -------
    Policy
        The policy: the recursion g(n) = k + g(n / (k + 1)) of [1]_, for k = 1, 2, 4
        and so on up to the number of stages. Without a limit it takes the plan with
        the lowest peak (k = 1 keeps about log2(n) results and needs as many forward
        passes); with a limit, the one with the least recomputation. Memory is shared as
        by `share`.

    Notes
    -----
    Cuts are at articulation points, or anywhere, as in `chen_sqrt`. An op may be
    computed log2(n) times.

    References
    ----------
    .. [1] T. Chen, B. Xu, C. Zhang, C. Guestrin, "Training Deep Nets with Sublinear
       Memory Cost", 2016, arXiv:1604.06174.
    """
    return Method(
        "chen_recursive", _recursive, "auto(), which takes the best of several methods"
    )
