"""Batch normalisation over the last axis (Ioffe & Szegedy, ICML 2015).

In training it is two ops: `batch_moments` of x, and `batch_normalization` of x with
these moments, whose gradient includes that through the moments. Only the second, which
reads x once, is recomputed. An update op (`moving_average`) updates the moving
statistics from the moments.
"""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING

import numpy as np

from memcfg.ops._dtypes import round_to_bfloat16, widen
from memcfg.ops._op_type import (
    Adjoint,
    Array,
    Arrays,
    Attributes,
    OpType,
    Spec,
    common_dtype,
    op_type,
    parameter_dtype,
    register,
    require,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

__all__: list[str] = []


def _check(inputs: Sequence[Spec], places: Sequence[int]) -> tuple[int, ...]:
    channels = inputs[0].shape[-1:]
    require(len(inputs[0].shape) >= 2, "batch_normalization needs [N, ..., C]")
    for place in places:
        require(
            inputs[place].shape == channels,
            f"batch_normalization: {inputs[place].shape} for channels {channels}",
        )
    return channels


def _infer_moments(inputs: Sequence[Spec], _: Attributes) -> Sequence[Spec]:
    channels, dtype = _check(inputs, ()), parameter_dtype(inputs[0], ())
    return [
        Spec(channels, dtype, suffix="mean"),
        Spec(channels, dtype, suffix="variance"),
    ]


def _infer(inputs: Sequence[Spec], _: Attributes) -> Sequence[Spec]:
    _check(inputs, (1, 2, 3, 4))
    parameter_dtype(inputs[0], inputs[1:])
    return [Spec(inputs[0].shape, inputs[0].dtype)]


def _infer_gradient(inputs: Sequence[Spec], _: Attributes) -> Sequence[Spec]:
    common_dtype(inputs[:2])
    return _gradients(inputs[1], inputs[2:])


def _gradients(dy: Spec, parameters: Sequence[Spec]) -> Sequence[Spec]:
    channels, dtype = dy.shape[-1:], parameter_dtype(dy, parameters)
    return [
        Spec(dy.shape, dy.dtype),
        Spec(channels, dtype, suffix="gamma", role="gradient"),
        Spec(channels, dtype, suffix="beta", role="gradient"),
    ]


def _gradient(adjoint: Adjoint) -> Sequence[int | None]:
    """Append the gradients; that of x includes the part through mean and variance."""
    x, gamma, _, mean, variance = adjoint.inputs
    made = adjoint.emit(
        "batch_normalization_gradient",
        (x, adjoint.dy, gamma, mean, variance),
        adjoint.attributes,
    )
    return *made, None, None


def _gradient_inference(adjoint: Adjoint) -> Sequence[int | None]:
    """Append the gradients for constant mean and variance."""
    x, gamma, _, mean, variance = adjoint.inputs
    gradients: list[int | None] = [None] * 5
    if adjoint.needs[0]:
        zeros = {"shape": adjoint.shape_of(1), "value": 0.0}
        zeros["dtype"] = adjoint.emitter.dtype(gamma)
        (zero,) = adjoint.emit("fill", (), zeros, "zeros")
        operands = (adjoint.dy, gamma, zero, zero, variance)
        kind, attributes = "batch_normalization_inference", adjoint.attributes
        (gradients[0],) = adjoint.emit(kind, operands, attributes)
    if adjoint.needs[1] or adjoint.needs[2]:
        _, gradients[1], gradients[2] = adjoint.emit(
            "batch_normalization_gradient",
            (x, adjoint.dy, gamma, mean, variance),
            adjoint.attributes,
            "gradient_of_weights",
        )
    require(
        not any(adjoint.needs[3:]),
        f"op {adjoint.name!r} has no gradient for its mean and variance",
    )
    return gradients


def _batch_moments(_: Attributes, inputs: Arrays, outputs: Arrays) -> None:
    (x,) = inputs
    outputs[0][...] = x.mean(axis=_all_but_last(x))
    outputs[1][...] = x.var(axis=_all_but_last(x))


def _batch_normalization(a: Attributes, inputs: Arrays, outputs: Arrays) -> None:
    x, gamma, beta, mean, variance = inputs
    outputs[0][...] = _normalized(a, x, gamma, beta, mean, variance)


def _batch_normalization_gradient(
    a: Attributes, inputs: Arrays, outputs: Arrays
) -> None:
    x, dy, gamma, mean, variance = inputs
    axes = _all_but_last(x)
    inverse = 1 / np.sqrt(variance + a["epsilon"])
    normalized = (x - mean) * inverse
    dgamma, dbeta = (dy * normalized).sum(axis=axes), dy.sum(axis=axes)
    rows = prod(x.shape[:-1])
    dx = gamma * inverse * (dy - dbeta / rows - normalized * (dgamma / rows))
    outputs[0][...], outputs[1][...], outputs[2][...] = dx, dgamma, dbeta


def _infer_activated_gradient(
    inputs: Sequence[Spec], attributes: Attributes
) -> Sequence[Spec]:
    """Infer the gradients; if x has more channels than dy, those from ``first`` on."""
    x, dy = inputs[0], inputs[1]
    last = attributes.get("first", 0) + dy.shape[-1]
    require(
        x.shape[:-1] == dy.shape[:-1] and last <= x.shape[-1],
        f"channels {attributes.get('first', 0)} to {last} of {x.shape} for {dy.shape}",
    )
    _check(inputs[1:], (1, 2, 3, 4))
    common_dtype(inputs[:2])
    return _gradients(dy, inputs[2:])


def _activated_gradient(activation: str) -> OpType:
    """Make the gradient of a normalisation with an activation, which reads only x.

    The activation's input is recomputed from x, so that neither it nor the output is
    kept. With the attribute ``rounds`` it is rounded to bfloat16, as in forward.
    """

    def numpy(a: Attributes, inputs: Arrays, outputs: Arrays) -> None:
        wide, dy, gamma, beta, mean, variance = inputs
        first = a.get("first", 0)
        x = wide[..., first : first + dy.shape[-1]]
        y, dz = np.empty_like(dy), np.empty_like(dy)
        op_type(activation).numpy(
            {}, [_normalized(a, x, gamma, beta, mean, variance)], [y]
        )
        if a.get("rounds", False):
            y = widen(round_to_bfloat16(y)).astype(y.dtype)
        op_type(f"{activation}_gradient").numpy({}, [y, dy], [dz])
        _batch_normalization_gradient(a, [x, dz, gamma, mean, variance], outputs)

    return OpType(
        f"batch_normalization_{activation}_gradient",
        6,
        _infer_activated_gradient,
        numpy,
        ((1, 0),),
        flops=lambda i, _o, _a: 14 * i[1].size,
    )


def _normalized(
    a: Attributes, x: Array, gamma: Array, beta: Array, mean: Array, variance: Array
) -> Array:
    y: Array = (x - mean) * (gamma / np.sqrt(variance + a["epsilon"])) + beta
    return y


def _all_but_last(x: Array) -> tuple[int, ...]:
    return tuple(range(x.ndim - 1))


def _normalization(
    name: str, gradient: Callable[[Adjoint], Sequence[int | None]]
) -> OpType:
    return OpType(
        name,
        5,
        _infer,
        _batch_normalization,
        ((0, 0),),
        gradient,
        flops=lambda i, _o, _a: 3 * i[0].size,
        float32_inputs=(1, 2, 3, 4),
    )


register(
    OpType(
        "batch_moments",
        1,
        _infer_moments,
        _batch_moments,
        flops=lambda i, _o, _a: 4 * i[0].size,
        replayable=False,
    ),
    _normalization("batch_normalization", _gradient),
    _normalization("batch_normalization_inference", _gradient_inference),
    OpType(
        "batch_normalization_gradient",
        5,
        _infer_gradient,
        _batch_normalization_gradient,
        ((1, 0), (0, 0)),
        flops=lambda i, _o, _a: 10 * i[0].size,
    ),
    _activated_gradient("relu"),
    _activated_gradient("relu6"),
)
