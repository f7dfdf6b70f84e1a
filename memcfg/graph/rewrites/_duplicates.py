"""Common subexpression elimination."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from memcfg.graph._graph import Graph, Op

__all__ = ["merge_duplicates"]


def merge_duplicates(graph: Graph) -> Graph:
    """Drop ops that compute the same as an earlier op.

    Both have the same type, attributes, inputs and phase. Ops whose outputs are kept,
    updates of state, and ops that are not replayable remain.

    Parameters
    ----------
    graph : Graph
        A step.

    Returns
    -------
    Graph
        The same step.
    """
    kept = {*graph.keep, *graph.losses}
    first: dict[Any, Op] = {}
    same: dict[int, int] = {}  # tensor -> the earlier tensor with the same value
    ops = []
    for op in graph.ops:
        inputs = tuple([same.get(tensor, tensor) for tensor in op.inputs])
        roles = tuple([graph.tensors[tensor].role for tensor in op.outputs])
        attributes = repr(sorted(op.attributes.items()))
        original = first.setdefault((op.type, op.phase, inputs, roles, attributes), op)
        fixed = op.phase == "update" or not op.replayable
        if original is op or fixed or kept.intersection(op.outputs):
            pairs = tuple([(same.get(i, i), o) for i, o in op.in_place])
            ops.append(replace(op, inputs=inputs, in_place=pairs))
        else:
            same.update(zip(op.outputs, original.outputs, strict=True))
    if not same:
        return graph
    left = [tensor for tensor in range(len(graph.tensors)) if tensor not in same]
    return graph.restricted(left, ops)
