"""Constant folding: what depends on nothing is a constant."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from memcfg.graph._dead_ops import drop_dead_ops
from memcfg.ops import op_type

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from memcfg.graph._graph import Graph, Op

__all__ = ["fold_constants"]

_MOST = 4096  # bytes of a constant, which is part of the graph
_SOURCES = ("fill", "constant")


def fold_constants(graph: Graph) -> Graph:
    """Put constants in place of the ops whose operands are constants.

    They are computed here as the ops mean it, in float32. Results of more than 4096
    bytes, of other types, and updates of state stay ops.

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
        if all(tensor in values for tensor in op.inputs) and _is_small(graph, op):
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
    """Return whether an op makes one constant that may be part of the graph."""
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
    """Return the op that writes a value."""
    data = value.astype(">f4").tobytes().hex()
    attributes = {"shape": value.shape, "data": data}
    return replace(op, type="constant", inputs=(), in_place=(), attributes=attributes)
