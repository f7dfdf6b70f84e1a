"""Updates that read gradients of bfloat16 as they are."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from memcfg.ops import op_type

if TYPE_CHECKING:
    from memcfg.graph._graph import Graph, Op

__all__ = ["narrow_updates"]


def narrow_updates(graph: Graph) -> Graph:
    """Have updates read gradients that were cast for them alone before the cast.

    They compute in float32 whatever they read, so that the bits are the same.

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
    before: dict[int, int] = {}  # a gradient of float32: of what it is a cast
    gone: set[int] = set()  # ops
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
    """Return whether an op is bfloat16 and only element-wise updates read it."""
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
