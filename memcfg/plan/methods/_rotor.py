"""Optimal checkpointing of heterogeneous chains: rotor."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

from memcfg._core import search
from memcfg.plan.methods._candidates import plan_cheapest
from memcfg.plan.search._policy import Method
from memcfg.plan.search.recompute._chain import Chain, Do, cuts, even_segments, merged

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from memcfg.plan.format._plan import Plan
    from memcfg.plan.search._policy import Policy
    from memcfg.plan.search._request import Request
    from memcfg.plan.search.recompute._chain import Move

_SLOTS = 500  # the memory of a chain is divided into so many slots
_TRIES = 100  # max. numbers of slots that are tried, of those that differ in cost
_STAGES = 128  # max. stages, a table of 42 MB; of longer chains, stages are merged


class Stage(NamedTuple):
    """Forward cost of a stage, and its sizes in bytes or slots."""

    cost: float
    crossing: int  # tensors that cross to the next stage
    kept: int  # all that its backward or a later stage reads
    gradient: int  # gradients of later stages that this and earlier backwards read
    forward: int  # working memory while it runs forward, without what stays
    backward: int  # working memory while it runs backward, without what is kept


def in_slots(stages: Sequence[Stage], slots: int) -> list[Stage]:
    """Round sizes up to slots; a chain that keeps everything has `slots` of them."""
    most = sum(stage.kept for stage in stages)
    most += max(max(s.forward + s.gradient, s.backward) for s in stages)
    size = max(1, most) / slots
    return [
        Stage(stage.cost, *(math.ceil(nbytes / size) for nbytes in stage[1:]))
        for stage in stages
    ]


def chain_moves(
    table: search.ChainTable, stages: Sequence[Stage], slots: int
) -> list[Move]:
    """Return the schedule of least cost within a number of slots."""
    moves: list[Move] = []
    todo: list[tuple[int, int, int]] = [(0, len(stages) - 1, slots)]
    while todo:
        first, last, left = todo.pop()
        if left < 0:  # a stage that was kept
            moves.append((Do.BACKWARD, first))
            continue
        choice = table.choice(first, last, left)
        assert choice >= 0
        if choice:
            middle = first + choice
            moves += [(Do.ADVANCE, stage) for stage in range(first, middle)]
            todo.append((first, middle - 1, left))
            todo.append((middle, last, left - stages[middle - 1].crossing))
            continue
        moves.append((Do.COMPUTE, first))
        todo.append((first, first, -1))
        if first < last:
            todo.append((first + 1, last, left - stages[first].kept))
    return moves


def _rotor(request: Request) -> Plan:
    return plan_cheapest(request, _schedules(request))


def _schedules(request: Request) -> Iterator[list[int]]:
    for parts in cuts(request):
        begins = even_segments(len(parts), min(_STAGES, len(parts)))
        chain = Chain(request, merged(parts, begins))
        count = len(chain.stages)
        stages = in_slots(_stages(request, chain), _SLOTS)
        # Rounding up adds at most one slot per size.
        slots = _SLOTS + 4 * count
        table = search.ChainTable(stages, slots)
        steps = _steps([table.cost(0, count - 1, m) for m in range(slots + 1)])
        stride = -(-len(steps) // _TRIES)
        for number in [*steps[::-1][::stride][::-1], *steps[:1]]:
            yield chain.sequence(chain_moves(table, stages, number))


def _steps(costs: Sequence[float]) -> list[int]:
    """Return the numbers of slots with a lower cost than one slot less."""
    before = [math.inf, *costs]
    return [m for m, cost in enumerate(costs) if cost < before[m]]


def _stages(request: Request, chain: Chain) -> list[Stage]:
    graph = request.graph
    timed = any(op.seconds for op in graph.ops)

    def nbytes(tensors: Iterable[int]) -> int:
        return sum(graph.aligned_bytes[t] for t in tensors)

    gradients = chain.gradients()
    stages = []
    for number, ops in enumerate(chain.stages):
        again = [graph.ops[op] for op in ops if op in chain.droppable]
        kept = set(chain.kept(number))
        stages.append(
            Stage(
                cost=sum(op.seconds if timed else 1.0 for op in again),
                crossing=nbytes(chain.crossing[number]),
                kept=nbytes(kept),
                gradient=nbytes(gradients[number]),
                forward=chain.busiest(ops, kept),
                backward=chain.busiest(chain.backward[number], set())
                + nbytes(gradients[number]),
            )
        )
    return stages


def rotor() -> Policy:
    """Use the optimal schedule of a heterogeneous chain.

    Returns
    -------
    Policy
        The policy: the dynamic program of [1]_ over the first stage, the last stage
        and the free memory in 500 slots, for up to a hundred numbers of free slots.
        Without a limit it takes the plan with the lowest peak; with a limit, the one
        with the least recomputation. Memory is shared as by `share`.

    Notes
    -----
    A stage keeps nothing, the tensors that cross its end, or all that its backward
    reads; kept tensors stay until the backward pass reads them. Among such schedules
    of a chain the result is optimal for sizes in slots. Cuts are at articulation
    points, or anywhere, as in `chen_sqrt`. If there are more than 128 stages,
    neighbours are merged. If tensors skip stages, each checkpoint includes all tensors
    that cross it; such schedules are valid but not necessarily optimal.

    References
    ----------
    .. [1] O. Beaumont, L. Eyraud-Dubois, J. Herrmann, A. Joly, A. Shilova, "Optimal
       checkpointing for heterogeneous chains: how to train deep neural networks with
       limited memory", 2019, arXiv:1911.13214.
    """
    return Method("rotor", _rotor, "auto(), which takes the best of several methods")
