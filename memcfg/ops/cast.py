"""Conversion to another dtype; casts between floats have a gradient.

Floats are rounded toward zero to integers; NaN and numbers out of range become the
smallest integer. Numbers other than 0 become True.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from memcfg.ops._op_type import (
    Adjoint,
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

_DTYPES = (  # as in cast.cpp
    *("float32", "float64", "bfloat16", "int32", "int64", "int8", "uint8", "bool"),
)


def _infer(inputs: Sequence[Spec], attributes: Attributes) -> Sequence[Spec]:
    for dtype in (inputs[0].dtype, attributes["dtype"]):
        require(dtype in _DTYPES, f"cast: {dtype} is not one of {', '.join(_DTYPES)}")
    return [Spec(inputs[0].shape, attributes["dtype"])]


def _gradient(adjoint: Adjoint) -> Sequence[int | None]:
    dtypes = [adjoint.emitter.dtype(t) for t in (adjoint.inputs[0], adjoint.outputs[0])]
    if not all("float" in dtype for dtype in dtypes):
        return [None]
    if (
        adjoint.emitter.dtype(adjoint.dy) == dtypes[0]
    ):  # float32 gradient of a bfloat16 product
        return [adjoint.dy]
    return adjoint.emit("cast", (adjoint.dy,), {"dtype": dtypes[0]})


def _cast(_: Attributes, inputs: Arrays, outputs: Arrays) -> None:
    (x,), (y,) = inputs, outputs
    if x.dtype.kind == "f" and y.dtype.kind in "iu":
        range_ = np.iinfo(y.dtype)
        inside = (x > range_.min - 1.0) & (x < range_.max + 1.0)
        y[...] = np.where(inside, x, range_.min).astype(y.dtype)
    else:
        y[...] = x.astype(y.dtype)


register(OpType("cast", 1, _infer, _cast, gradient=_gradient))
