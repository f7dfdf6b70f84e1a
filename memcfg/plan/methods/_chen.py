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

_BUDGETS = 6  # of the search around the first one, as published


def budget_segments(sizes: Sequence[int], budget: float) -> tuple[list[int], int, int]:
    """Divide a chain by Algorithm 3.

    Returns
    -------
    list of int
        Where the segments but the first begin.
    int
        Bytes of what is kept between segments.
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
    """List the budgets that the paper's search tries on a chain."""
    _, kept, largest = budget_segments(sizes, 0)
    first = math.sqrt(kept * largest / 2)
    step = (math.sqrt(2) * first - largest) / (_BUDGETS - 1)
    return [0.0, first, *(largest + step * k for k in range(_BUDGETS))]


def recursive_moves(count: int, k: int) -> list[Move]:
    """Keep k results, run backward what is behind the last; so on in each part."""
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
    """Keep what crosses between about √n even segments, compute the rest twice.

    Returns
    -------
    Policy
        The policy: Algorithm 1 of [1]_. Without a limit it takes the plan of the
        least peak; with one, of the least recomputation. Memory is shared as by
        `share`.

    Notes
    -----
    The n stages that are divided lie between articulation points, where a single
    tensor crosses; a second plan divides the order of all ops, and what crosses
    is kept however much it is. The last segment is computed once.

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
    """Compute everything cheap a second time, just before it is needed.

    Returns
    -------
    Policy
        The policy: Algorithm 2 of [1]_ with its rule of thumb as mirror counts, 0
        for convolutions and other products, 1 for batch normalisation, activations,
        pooling and whatever else memory bounds. Memory is shared as by `share`.

    Notes
    -----
    There is one plan for a graph, whatever the limit; `replay_elementwise` computes
    no more of these ops again than a limit asks for.

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
    """Divide the forward phase into segments of about as many bytes each.

    Returns
    -------
    Policy
        The policy: Algorithm 3 of [1]_ with its search for the budget of a segment.
        Without a limit it takes the plan of the least peak; with one, of the least
        recomputation. Memory is shared as by `share`.

    Notes
    -----
    A segment ends where its outputs exceed the budget b. The first budget is 0, which
    tells the kept bytes x and the largest segment y; then √(x y / 2), as in the
    authors' code, and six evenly from y to √2 times that. Cuts are at articulation
    points, or anywhere, as for `chen_sqrt`.

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
    """Keep k results, and each part between them by the same rule.

    Returns
    -------
    Policy
        The policy: the recursion g(n) = k + g(n / (k + 1)) of [1]_, for k = 1, 2, 4
        and so on up to the number of stages. Without a limit it takes the plan of
        the least peak, with k = 1 about log2(n) results and as many forward passes;
        with one, of the least recomputation. Memory is shared as by `share`.

    Notes
    -----
    Cuts are at articulation points, or anywhere, as for `chen_sqrt`. An op may be
    computed log2(n) times.

    References
    ----------
    .. [1] T. Chen, B. Xu, C. Zhang, C. Guestrin, "Training Deep Nets with Sublinear
       Memory Cost", 2016, arXiv:1604.06174.
    """
    return Method(
        "chen_recursive", _recursive, "auto(), which takes the best of several methods"
    )
