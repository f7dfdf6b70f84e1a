"""Linear interpolation along an axis by an integer factor.

Elements are centres of cells: element i of the output lies at ``(i + 0.5) / factor -
0.5`` of the input, and positions outside are clamped to the outermost elements.
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
    Spec,
    register,
    require,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__: list[str] = []


def _read(attributes: Attributes, shape: Sequence[int]) -> tuple[int, int]:
    axis, factor = attributes["axis"], attributes["factor"]
    require(0 <= axis < len(shape), f"interpolate: no axis {axis} of {shape}")
    require(factor >= 1, f"interpolate: a factor of {factor}")
    return axis, factor


def _infer(inputs: Sequence[Spec], attributes: Attributes) -> Sequence[Spec]:
    shape = list(inputs[0].shape)
    axis, factor = _read(attributes, shape)
    shape[axis] *= factor
    return [Spec(tuple(shape), inputs[0].dtype)]


def _infer_gradient(inputs: Sequence[Spec], attributes: Attributes) -> Sequence[Spec]:
    shape = list(inputs[0].shape)
    axis, factor = _read(attributes, shape)
    require(
        shape[axis] % factor == 0, f"interpolate: {shape} is not the shape of an output"
    )
    shape[axis] //= factor
    return [Spec(tuple(shape), inputs[0].dtype)]


def _gradient(adjoint: Adjoint) -> Sequence[int | None]:
    return adjoint.emit("interpolate_gradient", (adjoint.dy,), adjoint.attributes)


def _second(adjoint: Adjoint) -> Sequence[int | None]:
    return adjoint.emit("interpolate", (adjoint.dy,), adjoint.attributes)


def _matrix(length: int, factor: int) -> Array:
    """Return the weight of each input element in each output element."""
    places = (np.arange(length * factor) + 0.5) / factor - 0.5
    inside = places.clip(0, length - 1)[:, None]
    weights: Array = np.maximum(1 - np.abs(inside - np.arange(length)), 0)
    return weights


def _apply(matrix: Array, x: Array, axis: int) -> Array:
    moved: Array = np.moveaxis(np.tensordot(matrix, x, (1, axis)), 0, axis)
    return moved


def _interpolate(a: Attributes, inputs: Arrays, outputs: Arrays) -> None:
    (x,) = inputs
    axis, factor = _read(a, x.shape)
    outputs[0][...] = _apply(_matrix(x.shape[axis], factor), x, axis)


def _interpolate_gradient(a: Attributes, inputs: Arrays, outputs: Arrays) -> None:
    (dy,) = inputs
    axis, factor = _read(a, dy.shape)
    matrix = _matrix(outputs[0].shape[axis], factor)
    outputs[0][...] = _apply(matrix.T, dy, axis)


register(
    OpType("interpolate", 1, _infer, _interpolate, gradient=_gradient),
    OpType(
        "interpolate_gradient",
        1,
        _infer_gradient,
        _interpolate_gradient,
        gradient=_second,
    ),
)
