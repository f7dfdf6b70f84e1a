"""Layer normalisation over the last axis (Ba, Kiros and Hinton, arXiv:1607.06450)."""

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
    parameter_dtype,
    register,
    require,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__: list[str] = []


def _infer(inputs: Sequence[Spec], _: Attributes) -> Sequence[Spec]:
    x, gamma, beta = (spec.shape for spec in inputs)
    require(
        len(x) >= 2 and gamma == beta == x[-1:],
        f"layer_normalization: gamma {gamma} and beta {beta} for {x}",
    )
    dtype = parameter_dtype(inputs[0], inputs[1:])
    return [
        Spec(x, inputs[0].dtype),
        Spec(x[:-1], dtype, suffix="mean"),
        Spec(x[:-1], dtype, suffix="variance"),
    ]


def _infer_gradient(inputs: Sequence[Spec], _: Attributes) -> Sequence[Spec]:
    shape, dtype = inputs[0].shape, parameter_dtype(inputs[0], inputs[2:])
    return [
        Spec(shape, common_dtype(inputs[:2])),
        Spec(shape[-1:], dtype, suffix="gamma", role="gradient"),
        Spec(shape[-1:], dtype, suffix="beta", role="gradient"),
    ]


def _gradient(adjoint: Adjoint) -> Sequence[int | None]:
    x, gamma, _ = adjoint.inputs
    _, mean, variance = adjoint.outputs
    return adjoint.emit(
        "layer_normalization_gradient",
        (x, adjoint.dy, gamma, mean, variance),
        adjoint.attributes,
    )


def _gradient_parts(op: Adjoint) -> Sequence[int | None]:
    """Append the parts of a gradient; moments are of x, so that gradients reach it."""
    x, dy, gamma = op.inputs[:3]
    shape = op.shape_of(0)
    rows = tuple(range(len(shape) - 1))

    def apply(kind: str, *operands: int) -> int:
        return op.emit(kind, operands)[0]

    def spread(tensor: int) -> int:
        return op.emit("broadcast_to", (tensor,), {"shape": shape})[0]

    def mean(tensor: int) -> int:
        kept = {"axes": (len(shape) - 1,), "keepdims": True}
        return spread(*op.emit("reduce_mean", (tensor,), kept))

    def total(tensor: int) -> int:
        return op.emit("reduce_sum", (tensor,), {"axes": rows, "keepdims": False})[0]

    centered = apply("subtract", x, mean(x))
    variance = mean(apply("multiply", centered, centered))
    shifted = {"factor": 1.0, "term": op.attributes["epsilon"]}
    (variance,) = op.emit("affine", (variance,), shifted)
    inverse = apply("reciprocal_root", variance)
    normalized = apply("multiply", centered, inverse)
    slope = apply("multiply", dy, spread(gamma))
    tilt = mean(apply("multiply", slope, normalized))
    rest = apply("subtract", slope, mean(slope))
    rest = apply("subtract", rest, apply("multiply", normalized, tilt))
    dx = apply("multiply", inverse, rest)
    return dx, total(apply("multiply", dy, normalized)), total(dy)


def _layer_normalization(a: Attributes, inputs: Arrays, outputs: Arrays) -> None:
    x, gamma, beta = inputs
    mean, variance = x.mean(axis=-1), x.var(axis=-1)
    inverse = 1 / np.sqrt(variance + a["epsilon"])
    outputs[0][...] = (x - mean[..., None]) * inverse[..., None] * gamma + beta
    outputs[1][...], outputs[2][...] = mean, variance


def _layer_normalization_gradient(
    a: Attributes, inputs: Arrays, outputs: Arrays
) -> None:
    x, dy, gamma, mean, variance = inputs
    inverse = (1 / np.sqrt(variance + a["epsilon"]))[..., None]
    normalized = (x - mean[..., None]) * inverse
    rows = tuple(range(x.ndim - 1))
    dgamma, dbeta = (dy * normalized).sum(axis=rows), dy.sum(axis=rows)
    slope = dy * gamma
    shift = slope.mean(axis=-1, keepdims=True)
    tilt = (slope * normalized).mean(axis=-1, keepdims=True)
    outputs[0][...] = inverse * (slope - shift - normalized * tilt)
    outputs[1][...], outputs[2][...] = dgamma, dbeta


register(
    OpType(
        "layer_normalization",
        3,
        _infer,
        _layer_normalization,
        ((0, 0),),
        _gradient,
        flops=lambda i, _o, _a: 8 * i[0].size,
        float32_inputs=(1, 2),
    ),
    OpType(
        "layer_normalization_gradient",
        5,
        _infer_gradient,
        _layer_normalization_gradient,
        ((1, 0),),
        flops=lambda i, _o, _a: 14 * i[0].size,
        parts=_gradient_parts,
    ),
)
