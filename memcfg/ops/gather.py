"""`gather`, rows of a table by their indices, and `one_hot`.

An index out of range gives a row of NaN, or of zeros in `one_hot`. Negative indices are
out of range.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from memcfg.ops._op_type import (
    Adjoint,
    Array,
    Arrays,
    Attributes,
    OpType,
    Spec,
    register,
    require,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__: list[str] = []


def _check_indices(kind: str, spec: Spec) -> None:
    require(spec.dtype == "int32", f"{kind}: indices are int32, not {spec.dtype}")


def _infer(inputs: Sequence[Spec], _: Attributes) -> Sequence[Spec]:
    table, indices = inputs
    _check_indices("gather", indices)
    require(len(table.shape) > 0, "gather: the table has no rows")
    require("float" in table.dtype, f"gather: a table of floats, not {table.dtype}")
    return [Spec((*indices.shape, *table.shape[1:]), table.dtype)]


def _infer_scatter(inputs: Sequence[Spec], attributes: Attributes) -> Sequence[Spec]:
    indices, dy = inputs
    rank = len(indices.shape)
    _check_indices("scatter_add", indices)
    require(dy.shape[:rank] == indices.shape, "scatter_add: a row for each index")
    return [Spec((attributes["rows"], *dy.shape[rank:]), dy.dtype)]


def _gradient(adjoint: Adjoint) -> Sequence[int | None]:
    (rows, *_), indices = adjoint.shape_of(0), adjoint.inputs[1]
    return *adjoint.emit("scatter_add", (indices, adjoint.dy), {"rows": rows}), None


def _scatter_gradient(adjoint: Adjoint) -> Sequence[int | None]:
    return None, *adjoint.emit("gather", (adjoint.dy, adjoint.inputs[0]))


def _known(indices: Array, rows: int) -> Array:
    known: Array = (indices >= 0) & (indices < rows)
    return known


# A kernel cannot raise during a step. NaN propagates to the loss, whose guard stops the
# step before any state changes.
def _gather(_: Attributes, inputs: Arrays, outputs: Arrays) -> None:
    table, indices = inputs
    known = _known(indices, len(table))
    outputs[0][...] = table[np.where(known, indices, 0)]
    outputs[0][~known] = np.nan


def _scatter_add(_: Attributes, inputs: Arrays, outputs: Arrays) -> None:
    indices, dy = inputs
    known = _known(indices, len(outputs[0]))
    total = np.zeros(outputs[0].shape)
    np.add.at(total, indices[known], dy[known])
    outputs[0][...] = total


def _infer_one_hot(inputs: Sequence[Spec], attributes: Attributes) -> Sequence[Spec]:
    (indices,), dtype = inputs, attributes.get("dtype", "float32")
    _check_indices("one_hot", indices)
    require(dtype == "float32", f"one_hot makes float32, not {dtype}")
    return [Spec((*indices.shape, attributes["depth"]), dtype)]


def _one_hot(a: Attributes, inputs: Arrays, outputs: Arrays) -> None:
    outputs[0][...] = inputs[0][..., None] == np.arange(a["depth"])


def _no_gradient(_: Adjoint) -> Sequence[int | None]:
    return [None]


register(
    OpType("gather", 2, _infer, _gather, gradient=_gradient, float32_inputs=(0,)),
    OpType("scatter_add", 2, _infer_scatter, _scatter_add, gradient=_scatter_gradient),
    OpType("one_hot", 1, _infer_one_hot, _one_hot, gradient=_no_gradient),
)
