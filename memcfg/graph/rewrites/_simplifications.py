"""Simplifications: ops without use, ops that repeat others, and constants."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from memcfg.ops import op_type
from memcfg.ops.sections import READS

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from memcfg.graph._graph import Graph, Op

__all__ = ["drop_dead_ops", "fold_constants", "merge_duplicates"]

_MOST = 4096  # max. bytes of a constant; its data are an attribute of the op
_SOURCES = ("fill", "constant")


def drop_dead_ops(graph: Graph) -> Graph:
    """Drop ops on which no tensor of `keep` or `losses` depends.

    Parameters
    ----------
    graph : Graph
        A step that keeps the results of its updates.

    Returns
    -------
    Graph
        The same step, without these ops and their outputs. Inputs and state remain.
    """
    needed = {*graph.keep, *graph.losses}
    ops = []
    for op in reversed(graph.ops):
        if needed.intersection(op.outputs):
            needed.update(op.inputs)
            ops.append(op)
    if len(ops) == len(graph.ops):
        return graph
    made = {tensor for op in ops for tensor in op.outputs}
    left = [
        tensor
        for tensor, maker in enumerate(graph.producer)
        if maker is None or tensor in made
    ]
    return graph.restricted(left, ops[::-1])


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


def fold_constants(graph: Graph) -> Graph:
    """Replace ops whose inputs are all constants by constants.

    The values are computed in float32 by the ops' NumPy reference. Results of more than
    4096 bytes or of other dtypes, and updates of state, are not folded.

    Parameters
    ----------
    graph : Graph
        A step.

    Returns
    -------
    Graph
        The same step.
    """
    values: dict[int, NDArray[np.float32]] = {}
    ops = []
    for op in graph.ops:
        if values.keys() >= {*op.inputs} and _is_small(graph, op):
            (output,) = op.outputs
            values[output] = value = np.empty(
                graph.tensors[output].shape or (), np.float32
            )
            arrays = [values[tensor].copy() for tensor in op.inputs]
            with np.errstate(all="ignore"):
                op_type(op.type).numpy(op.attributes, arrays, [value])
            if op.type not in _SOURCES:
                op = _constant(op, value)
        ops.append(op)
    if tuple(ops) == graph.ops:
        return graph
    return drop_dead_ops(replace(graph, ops=tuple(ops)))


def _is_small(graph: Graph, op: Op) -> bool:
    """Return whether an op has one small float32 output and may be folded."""
    if op.type in READS:
        return False
    tensors = [graph.tensors[tensor] for tensor in op.outputs]
    return (
        op.phase != "update"
        and op.replayable
        and len(tensors) == 1
        and tensors[0].dtype == "float32"
        and tensors[0].nbytes <= _MOST
        and (bool(op.inputs) or op.type in _SOURCES)
    )


def _constant(op: Op, value: NDArray[np.float32]) -> Op:
    """Return a constant op that replaces `op` and writes a value."""
    data = value.astype(">f4").tobytes().hex()
    attributes = {"shape": value.shape, "data": data}
    return replace(op, type="constant", inputs=(), in_place=(), attributes=attributes)
