"""Updates that read bfloat16 gradients without a cast."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from memcfg.ops import op_type

if TYPE_CHECKING:
    from memcfg.graph._graph import Graph, Op

__all__ = ["narrow_updates"]


def narrow_updates(graph: Graph) -> Graph:
    """Drop casts of bfloat16 gradients to float32 that only updates read.

    Updates compute in float32 whatever they read, so the results have the same bits.

    Parameters
    ----------
    graph : Graph
        A training step.

    Returns
    -------
    Graph
        The same step, without those casts.
    """
    kept = {*graph.keep, *graph.losses}
    before: dict[int, int] = {}  # float32 gradient -> bfloat16 gradient
    gone: set[int] = set()  # indices of dropped casts
    for index, op in enumerate(graph.ops):
        if op.type == "cast" and op.outputs[0] not in kept and _is_read(graph, op):
            before[op.outputs[0]] = op.inputs[0]
            gone.add(index)
    if not gone:
        return graph
    ops = [
        replace(op, inputs=tuple(before.get(tensor, tensor) for tensor in op.inputs))
        for index, op in enumerate(graph.ops)
        if index not in gone
    ]
    left = [tensor for tensor in range(len(graph.tensors)) if tensor not in before]
    return graph.restricted(left, ops)


def _is_read(graph: Graph, cast: Op) -> bool:
    """Return whether a cast reads bfloat16 and only element-wise updates read it."""
    (given,), (made,) = cast.inputs, cast.outputs
    readers = [graph.ops[index] for index in graph.consumers[made]]
    return (
        graph.tensors[given].dtype == "bfloat16"
        and graph.tensors[made].dtype == "float32"
        and graph.producer[given] is not None
        and bool(readers)
        and all(
            op.phase == "update"
            and op_type(op.type).formula is not None
            and made not in {source for source, _ in op.in_place}
            for op in readers
        )
    )
