"""Matrix products over the last two axes, batched over the leading axes."""

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
    common_dtype,
    register,
    require,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__: list[str] = []


def _transposed(attributes: Attributes) -> tuple[bool, bool]:
    """Return `transpose_a` and `transpose_b`; GraphError for other attributes."""
    unknown = attributes.keys() - {"transpose_a", "transpose_b"}
    require(not unknown, f"matmul has no attribute {', '.join(sorted(unknown))}")
    return bool(attributes.get("transpose_a")), bool(attributes.get("transpose_b"))


def _infer(inputs: Sequence[Spec], attributes: Attributes) -> Sequence[Spec]:
    a, b = inputs[0].shape, inputs[1].shape
    ta, tb = _transposed(attributes)
    require(len(a) >= 2 and len(b) >= 2, f"matmul: cannot multiply {a} by {b}")
    m, k = a[-2:][::-1] if ta else a[-2:]
    inner, n = b[-2:][::-1] if tb else b[-2:]
    require(
        k == inner and (a[:-2] == b[:-2] or (len(b) == 2 and not ta)),
        f"matmul: cannot multiply {a} by {b}, transposed: {ta}, {tb}; leading axes "
        "are equal, or the second is one matrix",
    )
    return [Spec((*a[:-2], m, n), common_dtype(inputs))]


def _gradient(adjoint: Adjoint) -> Sequence[int | None]:
    a, b = adjoint.inputs
    ta, tb = _transposed(adjoint.attributes)
    dy = adjoint.dy

    def product(left: int, right: int, tl: bool, tr: bool, suffix: str) -> int:
        attributes = {"transpose_a": tl, "transpose_b": tr}
        return adjoint.emit("matmul", (left, right), attributes, suffix)[0]

    da = db = None
    if adjoint.needs[1]:
        suffix = "gradient_b"
        if len(adjoint.shape_of(0)) > len(adjoint.shape_of(1)):  # one matrix for all
            pair = (dy, a) if tb else (a, dy)
            (db,) = adjoint.emit("dense_gradient_kernel", pair, suffix=suffix)
        elif tb:
            db = product(dy, a, True, ta, suffix)
        else:
            db = product(a, dy, not ta, False, suffix)
    if adjoint.needs[0]:
        if ta:
            da = product(b, dy, tb, True, "gradient_a")
        else:
            da = product(dy, b, False, not tb, "gradient_a")
    return da, db


def _matmul(attributes: Attributes, inputs: Arrays, outputs: Arrays) -> None:
    ta, tb = _transposed(attributes)

    def turned(x: Array, transposed: bool) -> Array:
        return np.swapaxes(x, -1, -2) if transposed else x

    outputs[0][...] = turned(inputs[0], ta) @ turned(inputs[1], tb)


def _flops(inputs: Sequence[Spec], outputs: Sequence[Spec], a: Attributes) -> int:
    return 2 * outputs[0].size * inputs[0].shape[-2 if _transposed(a)[0] else -1]


register(
    OpType(
        "matmul",
        2,
        _infer,
        _matmul,
        gradient=_gradient,
        flops=_flops,
        contraction=True,
    )
)
