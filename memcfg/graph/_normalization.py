"""Batch normalisation over the last axis (Ioffe & Szegedy, ICML 2015).

The moving statistics are not touched here: an update op (`moving_average`) reads
the batch's mean and variance once, so that replaying the forward op is pure.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from memcfg.graph._definition import Adjoint, Attributes, Definition, Spec, require

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["DEFINITIONS"]


def _check(inputs: Sequence[Spec], places: Sequence[int]) -> tuple[int, ...]:
    channels = inputs[0].shape[-1:]
    require(len(inputs[0].shape) >= 2, "batch_normalization needs [N, ..., C]")
    for place in places:
        require(
            inputs[place].shape == channels,
            f"batch_normalization: {inputs[place].shape} for channels {channels}",
        )
    return channels


def _infer(inputs: Sequence[Spec], _: Attributes) -> Sequence[Spec]:
    channels = _check(inputs, (1, 2))
    return [
        Spec(inputs[0].shape),
        Spec(channels, suffix="mean"),
        Spec(channels, suffix="variance"),
    ]


def _infer_inference(inputs: Sequence[Spec], _: Attributes) -> Sequence[Spec]:
    _check(inputs, (1, 2, 3, 4))
    return [Spec(inputs[0].shape)]


def _infer_gradient(inputs: Sequence[Spec], _: Attributes) -> Sequence[Spec]:
    channels = inputs[0].shape[-1:]
    return [
        Spec(inputs[0].shape),
        Spec(channels, suffix="gamma", role="gradient"),
        Spec(channels, suffix="beta", role="gradient"),
    ]


def _gradient(adjoint: Adjoint) -> Sequence[int | None]:
    x, gamma, _ = adjoint.inputs
    _, mean, variance = adjoint.outputs
    return adjoint.emit(
        "batch_normalization_gradient",
        (x, adjoint.dy, gamma, mean, variance),
        adjoint.attributes,
    )


DEFINITIONS = (
    Definition(
        "batch_normalization",
        3,
        _infer,
        ((0, 0),),
        _gradient,
        flops=lambda i, _o, _a: 6 * i[0].size,
    ),
    Definition("batch_normalization_inference", 5, _infer_inference, ((0, 0),)),
    Definition(
        "batch_normalization_gradient",
        5,
        _infer_gradient,
        ((1, 0),),
        flops=lambda i, _o, _a: 10 * i[0].size,
    ),
)
