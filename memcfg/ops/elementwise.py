"""ReLU and addition, element by element, and the bias of a channel."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from memcfg.ops._op_type import (
    Adjoint,
    Arrays,
    Attributes,
    OpType,
    Spec,
    common_dtype,
    like,
    register,
    require,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__: list[str] = []


def _infer_same(inputs: Sequence[Spec], _: Attributes) -> Sequence[Spec]:
    a, b = inputs[0].shape, inputs[1].shape
    require(a == b, f"shapes {a} and {b} differ")
    return [Spec(a, common_dtype(inputs))]


def _infer_bias(inputs: Sequence[Spec], _: Attributes) -> Sequence[Spec]:
    x, bias = inputs[0].shape, inputs[1].shape
    require(len(bias) == 1 and x[-1:] == bias, f"bias: cannot add {bias} to {x}")
    return [Spec(x, common_dtype(inputs))]


def _infer_bias_gradient(inputs: Sequence[Spec], _: Attributes) -> Sequence[Spec]:
    return [Spec(inputs[0].shape[-1:], inputs[0].dtype, role="gradient")]


def _bias_gradient(adjoint: Adjoint) -> Sequence[int | None]:
    db = None
    if adjoint.needs[1]:
        (db,) = adjoint.emit("bias_gradient", (adjoint.dy,), suffix="gradient_bias")
    return (adjoint.dy if adjoint.needs[0] else None), db


def _relu_gradient(adjoint: Adjoint) -> Sequence[int | None]:
    return adjoint.emit("relu_gradient", (adjoint.outputs[0], adjoint.dy))


def _add_gradient(adjoint: Adjoint) -> Sequence[int | None]:
    return [adjoint.dys[0] if need else None for need in adjoint.needs]


def _relu(_: Attributes, inputs: Arrays, outputs: Arrays) -> None:
    (x,) = inputs
    outputs[0][...] = np.where(x < 0, 0, x)  # NaN stays NaN


def _relu_slope(_: Attributes, inputs: Arrays, outputs: Arrays) -> None:
    y, dy = inputs
    outputs[0][...] = np.where(y > 0, dy, 0)


def _add(_: Attributes, inputs: Arrays, outputs: Arrays) -> None:
    np.add(inputs[0], inputs[1], out=outputs[0])


def _sum_rows(_: Attributes, inputs: Arrays, outputs: Arrays) -> None:
    (dy,) = inputs
    outputs[0][...] = dy.sum(axis=tuple(range(dy.ndim - 1)))


register(
    OpType("bias", 2, _infer_bias, _add, ((0, 0),), _bias_gradient),
    OpType(
        "bias_gradient",
        1,
        _infer_bias_gradient,
        _sum_rows,
        flops=lambda i, _o, _a: i[0].size,
    ),
    OpType("relu", 1, like(), _relu, ((0, 0),), _relu_gradient),
    OpType("relu_gradient", 2, _infer_same, _relu_slope, ((0, 0), (1, 0))),
    OpType("add", 2, _infer_same, _add, ((0, 0), (1, 0)), _add_gradient),
)
