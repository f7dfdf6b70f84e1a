"""Softmax cross-entropy against integer labels, and the count of right answers."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from memcfg.ops._op_type import (
    UNIT,
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


def _check(inputs: Sequence[Spec]) -> Spec:
    logits, labels = inputs
    require(
        len(logits.shape) == 2 and labels.shape == logits.shape[:1],
        f"cross-entropy: logits {logits.shape} and labels {labels.shape}",
    )
    require(labels.dtype == "int32", f"labels are int32, not {labels.dtype}")
    return logits


def _infer(inputs: Sequence[Spec], _: Attributes) -> Sequence[Spec]:
    logits = _check(inputs)
    return [
        Spec((), logits.dtype, role="output"),
        Spec(logits.shape, logits.dtype, suffix="probabilities"),
    ]


def _infer_number(inputs: Sequence[Spec], _: Attributes) -> Sequence[Spec]:
    return [Spec((), _check(inputs).dtype, role="output")]


def _infer_gradient(inputs: Sequence[Spec], _: Attributes) -> Sequence[Spec]:
    return [Spec(inputs[0].shape, inputs[0].dtype)]


def _gradient(adjoint: Adjoint) -> Sequence[int | None]:
    dy = None if adjoint.dys == (UNIT, None) else adjoint.dy
    (dlogits,) = adjoint.emit(
        "softmax_cross_entropy_gradient", (adjoint.outputs[1], adjoint.inputs[1])
    )
    if dy is not None:
        (dlogits,) = adjoint.emit("scale", (dlogits, dy), suffix="gradient_scaled")
    return dlogits, None


def _hits(logits: Array, labels: Array) -> Array:
    """Where each row's label is; a row without a hit has a label out of range."""
    hits: Array = np.arange(logits.shape[1]) == labels[:, None]
    return hits


def _softmax_cross_entropy(_: Attributes, inputs: Arrays, outputs: Arrays) -> None:
    logits, labels = inputs
    shifted = logits - logits.max(axis=1, keepdims=True)
    exponentials = np.exp(shifted)
    totals = exponentials.sum(axis=1, keepdims=True, dtype=np.float64)
    chosen = np.where(_hits(logits, labels), shifted, 0).sum(axis=1)
    known = (labels >= 0) & (labels < logits.shape[1])
    losses = np.log(totals[:, 0]) - np.where(known, chosen, np.nan)
    outputs[0][...] = losses.mean()
    if len(outputs) > 1:
        outputs[1][...] = exponentials / totals


def _softmax_cross_entropy_gradient(
    _: Attributes, inputs: Arrays, outputs: Arrays
) -> None:
    probabilities, labels = inputs
    difference = probabilities - _hits(probabilities, labels)
    outputs[0][...] = difference / len(labels)


def _correct_count(_: Attributes, inputs: Arrays, outputs: Arrays) -> None:
    logits, labels = inputs
    outputs[0][...] = np.count_nonzero(logits.argmax(axis=1) == labels)


def _flops(inputs: Sequence[Spec], _o: Sequence[Spec], _a: Attributes) -> int:
    return 8 * inputs[0].size


register(
    OpType(
        "softmax_cross_entropy",
        2,
        _infer,
        _softmax_cross_entropy,
        ((0, 1),),
        _gradient,
        flops=_flops,
    ),
    OpType(
        "softmax_cross_entropy_inference",
        2,
        _infer_number,
        _softmax_cross_entropy,
        flops=_flops,
    ),
    OpType(
        "softmax_cross_entropy_gradient",
        2,
        _infer_gradient,
        _softmax_cross_entropy_gradient,
        ((0, 0),),
    ),
    OpType("correct_count", 2, _infer_number, _correct_count),
)
