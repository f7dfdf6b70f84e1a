"""A bias: one number added to each channel, the last axis."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from memcfg.ops._op_type import (
    Adjoint,
    Arrays,
    Attributes,
    OpType,
    Spec,
    gradient_dtype,
    parameter_dtype,
    register,
    require,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__: list[str] = []


def _infer(inputs: Sequence[Spec], _: Attributes) -> Sequence[Spec]:
    x, bias = inputs[0].shape, inputs[1].shape
    require(len(bias) == 1 and x[-1:] == bias, f"bias: cannot add {bias} to {x}")
    parameter_dtype(inputs[0], inputs[1:])
    return [Spec(x, inputs[0].dtype)]


def _infer_gradient(inputs: Sequence[Spec], _: Attributes) -> Sequence[Spec]:
    return [Spec(inputs[0].shape[-1:], gradient_dtype(inputs), role="gradient")]


def _gradient(adjoint: Adjoint) -> Sequence[int | None]:
    db = None
    if adjoint.needs[1]:
        (db,) = adjoint.emit("bias_gradient", (adjoint.dy,), suffix="gradient_bias")
    return (adjoint.dy if adjoint.needs[0] else None), db


def _gradient_rule(adjoint: Adjoint) -> Sequence[int | None]:
    shape = {"shape": adjoint.shape_of(0)}
    return adjoint.emit("broadcast_to", (adjoint.dy_like(0),), shape)


def _bias(_: Attributes, inputs: Arrays, outputs: Arrays) -> None:
    np.add(inputs[0], inputs[1], out=outputs[0])


def _bias_gradient(_: Attributes, inputs: Arrays, outputs: Arrays) -> None:
    (dy,) = inputs
    outputs[0][...] = dy.sum(axis=tuple(range(dy.ndim - 1)))


register(
    OpType("bias", 2, _infer, _bias, ((0, 0),), _gradient, float32_inputs=(1,)),
    OpType(
        "bias_gradient",
        1,
        _infer_gradient,
        _bias_gradient,
        gradient=_gradient_rule,
        flops=lambda i, _o, _a: i[0].size,
    ),
)
