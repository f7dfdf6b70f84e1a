"""Bias, ReLU, addition, reshaping and dropout: ops bound by memory.

Dropout keeps no mask: the counter-based generator makes the same one again from
(key, step, element), in backward and in every replay. Dropout: Srivastava et al.,
JMLR 15 (2014). Generator: Salmon et al., "Parallel random numbers: as easy as
1, 2, 3", SC 2011 (Philox4x32-10).
"""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING

from memcfg.graph._definition import (
    Adjoint,
    Attributes,
    Definition,
    Spec,
    like,
    require,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["DEFINITIONS"]


def _infer_bias(inputs: Sequence[Spec], _: Attributes) -> Sequence[Spec]:
    x, bias = inputs[0].shape, inputs[1].shape
    require(len(bias) == 1 and x[-1:] == bias, f"bias: cannot add {bias} to {x}")
    return [Spec(x)]


def _bias_gradient(adjoint: Adjoint) -> Sequence[int | None]:
    db = None
    if adjoint.needs[1]:
        (db,) = adjoint.emit("bias_gradient", (adjoint.dy,), suffix="gradient_bias")
    return (adjoint.dy if adjoint.needs[0] else None), db


def _infer_bias_gradient(inputs: Sequence[Spec], _: Attributes) -> Sequence[Spec]:
    return [Spec(inputs[0].shape[-1:], role="gradient")]


def _relu_gradient(adjoint: Adjoint) -> Sequence[int | None]:
    return adjoint.emit("relu_gradient", (adjoint.outputs[0], adjoint.dy))


def _infer_same(inputs: Sequence[Spec], _: Attributes) -> Sequence[Spec]:
    a, b = inputs[0].shape, inputs[1].shape
    require(a == b, f"shapes {a} and {b} differ")
    return [Spec(a)]


def _add_gradient(adjoint: Adjoint) -> Sequence[int | None]:
    return [adjoint.dy if need else None for need in adjoint.needs]


def _infer_flatten(inputs: Sequence[Spec], _: Attributes) -> Sequence[Spec]:
    shape = inputs[0].shape
    return [Spec((shape[0], prod(shape[1:])), inputs[0].dtype)]


def _flatten_gradient(adjoint: Adjoint) -> Sequence[int | None]:
    return adjoint.emit("reshape", (adjoint.dy,), {"shape": adjoint.shape_of(0)})


def _infer_reshape(inputs: Sequence[Spec], attributes: Attributes) -> Sequence[Spec]:
    shape = tuple(attributes["shape"])
    require(
        prod(shape) == inputs[0].size,
        f"cannot reshape {inputs[0].shape} into {shape}",
    )
    return [Spec(shape, inputs[0].dtype)]


def _infer_dropout(inputs: Sequence[Spec], attributes: Attributes) -> Sequence[Spec]:
    rate, step = attributes["rate"], inputs[1]
    require(0 <= rate < 1, f"dropout: rate {rate} is not in [0, 1)")
    require(
        step.shape == () and step.dtype == "int64",
        "dropout: the step is one int64 number",
    )
    return [Spec(inputs[0].shape)]


def _dropout_gradient(adjoint: Adjoint) -> Sequence[int | None]:
    (dx,) = adjoint.emit("dropout", (adjoint.dy, adjoint.inputs[1]), adjoint.attributes)
    return dx, None


DEFINITIONS = (
    Definition("bias", 2, _infer_bias, ((0, 0),), _bias_gradient),
    Definition(
        "bias_gradient",
        1,
        _infer_bias_gradient,
        flops=lambda i, _o, _a: i[0].size,
    ),
    Definition("relu", 1, like(), ((0, 0),), _relu_gradient),
    Definition("relu_gradient", 2, _infer_same, ((0, 0), (1, 0))),
    Definition("add", 2, _infer_same, ((0, 0), (1, 0)), _add_gradient),
    Definition("flatten", 1, _infer_flatten, ((0, 0),), _flatten_gradient),
    Definition("reshape", 1, _infer_reshape, ((0, 0),)),
    Definition("dropout", 2, _infer_dropout, ((0, 0),), _dropout_gradient),
)
