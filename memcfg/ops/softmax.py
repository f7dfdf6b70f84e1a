"""Softmax and its logarithm along an axis; their gradients read the output.

With ``causal`` the softmax of the i-th row of each matrix is over its first i + 1
elements, and the others become 0.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from memcfg.ops._op_type import (
    Adjoint,
    Array,
    Arrays,
    Attributes,
    OpType,
    Rule,
    Spec,
    common_dtype,
    register,
    require,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__: list[str] = []


def _infer(inputs: Sequence[Spec], attributes: Attributes) -> Sequence[Spec]:
    shape, axis = inputs[0].shape, attributes.get("axis", -1)
    require(
        -len(shape) <= axis < len(shape) and all(x.shape == shape for x in inputs),
        f"softmax: there is no axis {axis} of {[x.shape for x in inputs]}",
    )
    require(
        not attributes.get("causal")
        or (len(shape) > 1 and axis in (-1, len(shape) - 1)),
        "softmax is causal along the last axis",
    )
    return [Spec(shape, common_dtype(inputs))]


def _gradient_of(kind: str) -> Rule:
    def gradient(adjoint: Adjoint) -> Sequence[int | None]:
        operands = (adjoint.outputs[0], adjoint.dy)
        return adjoint.emit(f"{kind}_gradient", operands, adjoint.attributes)

    return gradient


def _total(op: Adjoint, x: int) -> int:
    """Append the sum along the axis, in the shape of the input."""
    shape = op.shape_of(0)
    axes = {"axes": (op.attributes.get("axis", -1) % len(shape),), "keepdims": True}
    (total,) = op.emit("reduce_sum", (x,), axes)
    return op.emit("broadcast_to", (total,), {"shape": shape})[0]


def _softmax_parts(op: Adjoint) -> Sequence[int | None]:
    y, dy = op.inputs
    total = _total(op, *op.emit("multiply", (y, dy)))
    return op.emit("multiply", (y, *op.emit("subtract", (dy, total))))


def _log_softmax_parts(op: Adjoint) -> Sequence[int | None]:
    y, dy = op.inputs
    (p,) = op.emit("exponential", (y,))
    return op.emit("subtract", (dy, *op.emit("multiply", (p, _total(op, dy)))))


def _shifted(attributes: Attributes, x: Array) -> tuple[Array, Array]:
    """Return x minus its maximum along the axis, and the sum of the exponentials."""
    axis = attributes.get("axis", -1)
    shifted = x - x.max(axis, keepdims=True)
    return shifted, np.exp(shifted).sum(axis, keepdims=True)


def _softmax(a: Attributes, inputs: Arrays, outputs: Arrays) -> None:
    (x,) = inputs
    if a.get("causal"):
        x = np.where(np.tri(*x.shape[-2:]) > 0, x, -np.inf)
    shifted, total = _shifted(a, x)
    outputs[0][...] = np.exp(shifted) / total


def _log_softmax(a: Attributes, inputs: Arrays, outputs: Arrays) -> None:
    shifted, total = _shifted(a, inputs[0])
    outputs[0][...] = shifted - np.log(total)


def _softmax_gradient(a: Attributes, inputs: Arrays, outputs: Arrays) -> None:
    y, dy = inputs
    mean = (y * dy).sum(a.get("axis", -1), keepdims=True)
    outputs[0][...] = y * (dy - mean)


def _log_softmax_gradient(a: Attributes, inputs: Arrays, outputs: Arrays) -> None:
    y, dy = inputs
    total = dy.sum(a.get("axis", -1), keepdims=True)
    outputs[0][...] = dy - np.exp(y) * total


def _flops(inputs: Sequence[Spec], _o: Sequence[Spec], _a: Attributes) -> int:
    return 20 * inputs[0].size


for _name, _meaning, _slope, _parts in (
    ("softmax", _softmax, _softmax_gradient, _softmax_parts),
    ("log_softmax", _log_softmax, _log_softmax_gradient, _log_softmax_parts),
):
    register(
        OpType(
            _name,
            1,
            _infer,
            _meaning,
            ((0, 0),),
            _gradient_of(_name),
            _flops,
            float32_inputs=None,
        ),
        OpType(
            f"{_name}_gradient",
            2,
            _infer,
            _slope,
            ((0, 0), (1, 0)),
            flops=_flops,
            parts=_parts,
        ),
    )
