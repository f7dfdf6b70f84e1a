"""Softmax cross-entropy against integer labels, and the count of right answers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from memcfg.graph._definition import Adjoint, Attributes, Definition, Spec, require

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["DEFINITIONS"]


def _check(inputs: Sequence[Spec]) -> tuple[int, ...]:
    logits, labels = inputs
    require(
        len(logits.shape) == 2 and labels.shape == logits.shape[:1],
        f"cross-entropy: logits {logits.shape} and labels {labels.shape}",
    )
    require(labels.dtype == "int32", f"labels are int32, not {labels.dtype}")
    return logits.shape


def _infer(inputs: Sequence[Spec], _: Attributes) -> Sequence[Spec]:
    shape = _check(inputs)
    return [Spec((), role="output"), Spec(shape, suffix="probabilities")]


def _infer_scalar(inputs: Sequence[Spec], _: Attributes) -> Sequence[Spec]:
    _check(inputs)
    return [Spec((), role="output")]


def _gradient(adjoint: Adjoint) -> Sequence[int | None]:
    require(
        adjoint.dys[0] is None and adjoint.dys[1] is None,
        "the gradient of a function of the loss is not supported",
    )
    (dlogits,) = adjoint.emit(
        "softmax_cross_entropy_gradient", (adjoint.outputs[1], adjoint.inputs[1])
    )
    return dlogits, None


def _flops(inputs: Sequence[Spec], _o: Sequence[Spec], _a: Attributes) -> int:
    return 8 * inputs[0].size


DEFINITIONS = (
    Definition("softmax_cross_entropy", 2, _infer, ((0, 1),), _gradient, flops=_flops),
    Definition("softmax_cross_entropy_inference", 2, _infer_scalar, flops=_flops),
    Definition(
        "softmax_cross_entropy_gradient",
        2,
        lambda inputs, _: [Spec(inputs[0].shape)],
        ((0, 0),),
    ),
    Definition("correct_count", 2, _infer_scalar),
)
