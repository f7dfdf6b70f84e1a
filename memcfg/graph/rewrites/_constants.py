"""Constant folding."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from memcfg.graph.rewrites._dead_ops import drop_dead_ops
from memcfg.ops import op_type

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from memcfg.graph._graph import Graph, Op

__all__ = ["fold_constants"]

_MOST = 4096  # max. bytes of a constant; its data are an attribute of the op
_SOURCES = ("fill", "constant")


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
    """Return whether an op has one small float32 output and may be folded."""
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
