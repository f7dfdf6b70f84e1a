"""Detection of the repeated cells of an unrolled recurrent network in its graph."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, NamedTuple

from memcfg.errors import GraphError
from memcfg.plan.search.recompute._chain import forward_ops

if TYPE_CHECKING:
    from collections.abc import Sequence

    from memcfg.graph import Graph

_LEAST = 3  # min. cells of an unrolled network
_WHOLE = ("simple_rnn", "gru", "lstm")  # ops that compute all steps of a sequence


class Unrolled(NamedTuple):
    """The forward phase in stages: ops before the cells, the cells, the rest."""

    before: list[int]
    cells: list[list[int]]
    after: list[int]


def find_cells(graph: Graph) -> Unrolled:
    """Return the cells of an unrolled network: a row of ops that read one parameter.

    Raises
    ------
    GraphError
        If there are no repeated cells.
    """
    forward = forward_ops(graph)
    anchors = max(_rows(graph, forward), key=len, default=[])
    if len(anchors) < _LEAST:
        whole = any(op.type in _WHOLE for op in graph.ops)
        advice = "; pass unroll=True: without it a recurrent layer is a single op"
        raise GraphError(
            f"graph {graph.name!r} has no repeated cells: its forward phase has no "
            f"parameter that {_LEAST} ops of one type read, each behind the last"
            f"{advice if whole else ''}"
        )
    number = {op: place for place, op in enumerate(anchors, 1)}
    level: dict[int, int] = {}
    for index in forward:
        before = (level.get(m, 0) for m in _makers(graph, index))
        level[index] = number.get(index, max(before, default=0))
    for index in reversed(forward):  # ops that only one cell reads belong to it
        readers = {
            level[r]
            for t in graph.ops[index].outputs
            for r in graph.consumers[t]
            if r in level
        }
        if level[index] == 0 and len(readers) == 1:
            level[index] = readers.pop()
    stages: list[list[int]] = [[] for _ in range(len(anchors) + 1)]
    for index in forward:
        stages[level[index]].append(index)
    last, after = _divided(graph, stages[-2], stages[-1])
    return Unrolled(stages[0], [*stages[1:-1], last], after)


def _rows(graph: Graph, forward: Sequence[int]) -> list[list[int]]:
    """Return the readers of each parameter whose readers depend on one another in turn.

    Tensors computed from parameters alone (slices, casts) count as parameters.
    """
    inside = set(forward)
    weights = dict.fromkeys(graph.persistent)
    for index in forward:
        op = graph.ops[index]
        if op.inputs and all(tensor in weights for tensor in op.inputs):
            weights.update(dict.fromkeys(op.outputs))
    rows = []
    for tensor in weights:
        readers = [op for op in graph.consumers[tensor] if op in inside]
        kinds = {graph.ops[op].type for op in readers}
        if len(readers) >= _LEAST and len(kinds) == 1 and _is_row(graph, readers):
            rows.append(readers)
    return rows


def _is_row(graph: Graph, readers: Sequence[int]) -> bool:
    behind: dict[int, int] = {}  # op -> last reader that it depends on, counted from 1
    for place, reader in enumerate(readers, 1):
        for index in range(readers[0], reader + 1):
            if index not in behind:
                behind[index] = max(
                    (behind.get(m, 0) for m in _makers(graph, index)), default=0
                )
        if behind[reader] != place - 1:
            return False
        behind[reader] = place
    return True


def _makers(graph: Graph, index: int) -> list[int]:
    makers = (graph.producer[t] for t in graph.ops[index].inputs)
    return [maker for maker in makers if maker is not None]


def _divided(
    graph: Graph, cell: Sequence[int], rest: Sequence[int]
) -> tuple[list[int], list[int]]:
    """Divide the ops after the last anchor into the last cell and the others.

    An op belongs to the cell if the cell before has one like it, and it reads no output
    of the others. The last cell may lack ops, since it may be fused differently.
    """
    wanted = Counter(_kind(graph, index) for index in cell)
    last: list[int] = []
    after: list[int] = []
    for index in rest:
        kind = _kind(graph, index)
        follows = not set(after).isdisjoint(_makers(graph, index))
        (last if wanted[kind] > 0 and not follows else after).append(index)
        wanted[kind] -= 1
    return last, after


def _kind(graph: Graph, index: int) -> tuple[str, tuple[int, ...]]:
    op = graph.ops[index]
    state = tuple(t for t in op.inputs if t in set(graph.persistent))
    return op.type, state
