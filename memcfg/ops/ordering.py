"""Order and places along the last axis: `order`, `take_along` and `put_along`.

``order`` {descending} gives the indices that sort, of equal elements the first one
first; NaN is the largest. ``take_along`` takes elements by their indices and
``put_along`` {length} adds elements at their indices: each is the other's gradient.
Negative indices count from the end; an index out of range reads NaN and adds nothing.
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


def _infer_order(inputs: Sequence[Spec], _: Attributes) -> Sequence[Spec]:
    (x,) = inputs
    require("float" in x.dtype, f"order: sorts floats, not {x.dtype}")
    require(len(x.shape) > 0, "order: there is no axis to sort along")
    return [Spec(x.shape, "int32")]


def _order(a: Attributes, inputs: Arrays, outputs: Arrays) -> None:
    (x,) = inputs
    if not a.get("descending"):
        outputs[0][...] = np.argsort(x, axis=-1, kind="stable")
        return
    # The stable order of reversed rows has the last of equal elements first.
    back = np.argsort(x[..., ::-1], axis=-1, kind="stable")
    outputs[0][...] = x.shape[-1] - 1 - back[..., ::-1]


def _check(kind: str, indices: Spec, other: Spec) -> None:
    require(indices.dtype == "int32", f"{kind}: indices are int32, not {indices.dtype}")
    require("float" in other.dtype, f"{kind}: of floats, not {other.dtype}")
    require(
        len(other.shape) > 0 and indices.shape[:-1] == other.shape[:-1],
        f"{kind}: shapes {other.shape} and {indices.shape} differ before the last axis",
    )


def _infer_take(inputs: Sequence[Spec], _: Attributes) -> Sequence[Spec]:
    x, indices = inputs
    _check("take_along", indices, x)
    return [Spec(indices.shape, x.dtype)]


def _infer_put(inputs: Sequence[Spec], attributes: Attributes) -> Sequence[Spec]:
    indices, values = inputs
    _check("put_along", indices, values)
    require(
        indices.shape == values.shape,
        f"put_along: shapes {indices.shape} and {values.shape} differ",
    )
    return [Spec((*values.shape[:-1], attributes["length"]), values.dtype)]


def _places(indices: Array, length: int) -> tuple[Array, Array]:
    """Return nonnegative indices, 0 where out of range, and which are in range."""
    known = (indices >= -length) & (indices < length)
    return np.where(known, indices % length, 0).astype(np.int64), known


def _take(_: Attributes, inputs: Arrays, outputs: Arrays) -> None:
    x, indices = inputs
    places, known = _places(indices, x.shape[-1])
    outputs[0][...] = np.where(known, np.take_along_axis(x, places, -1), np.nan)


def _put(_: Attributes, inputs: Arrays, outputs: Arrays) -> None:
    indices, values = inputs
    length = outputs[0].shape[-1]
    places, known = _places(indices, length)
    rows = np.arange(outputs[0].size // length).reshape(*indices.shape[:-1], 1)
    total = np.zeros(outputs[0].size)
    flat = np.broadcast_to(rows * length, places.shape) + places
    np.add.at(total, flat[known], values[known])
    outputs[0][...] = total.reshape(outputs[0].shape)


def _take_gradient(adjoint: Adjoint) -> Sequence[int | None]:
    length = {"length": adjoint.shape_of(0)[-1]}
    return *adjoint.emit("put_along", (adjoint.inputs[1], adjoint.dy), length), None


def _put_gradient(adjoint: Adjoint) -> Sequence[int | None]:
    return None, *adjoint.emit("take_along", (adjoint.dy, adjoint.inputs[0]))


def _no_gradient(_: Adjoint) -> Sequence[int | None]:
    return [None]


register(
    OpType(
        "order", 1, _infer_order, _order, gradient=_no_gradient, float32_inputs=None
    ),
    OpType(
        "take_along",
        2,
        _infer_take,
        _take,
        gradient=_take_gradient,
        float32_inputs=None,
    ),
    OpType(
        "put_along", 2, _infer_put, _put, gradient=_put_gradient, float32_inputs=None
    ),
)
