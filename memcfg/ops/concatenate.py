"""Concatenation along an axis, and split; each is the other's gradient."""

from __future__ import annotations

from itertools import accumulate
from typing import TYPE_CHECKING

import numpy as np

from memcfg.ops._op_type import (
    Adjoint,
    Arrays,
    Attributes,
    OpType,
    Spec,
    common_dtype,
    register,
    require,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__: list[str] = []


def _axis(attributes: Attributes, rank: int) -> int:
    axis: int = attributes["axis"]
    require(-rank <= axis < rank, f"there is no axis {axis} of {rank} dimensions")
    return axis % rank


def _infer(inputs: Sequence[Spec], attributes: Attributes) -> Sequence[Spec]:
    shape = list(inputs[0].shape)
    axis = _axis(attributes, len(shape))
    for spec in inputs:
        same = [*spec.shape[:axis], shape[axis], *spec.shape[axis + 1 :]]
        require(
            len(spec.shape) == len(shape) and same == shape,
            f"concatenate: {inputs[0].shape} and {spec.shape} along axis {axis}",
        )
    shape[axis] = sum(spec.shape[axis] for spec in inputs)
    return [Spec(tuple(shape), common_dtype(inputs))]


def _infer_split(inputs: Sequence[Spec], attributes: Attributes) -> Sequence[Spec]:
    (dy,) = inputs
    axis, lengths = _axis(attributes, len(dy.shape)), attributes["lengths"]
    require(sum(lengths) == dy.shape[axis], f"lengths {lengths} of {dy.shape}")
    return [
        Spec(
            (*dy.shape[:axis], length, *dy.shape[axis + 1 :]),
            dy.dtype,
            f"part{i}" if i else "",
        )
        for i, length in enumerate(lengths)
    ]


def _gradient(adjoint: Adjoint) -> Sequence[int | None]:
    shapes = [adjoint.shape_of(i) for i in range(len(adjoint.inputs))]
    axis = _axis(adjoint.attributes, len(shapes[0]))
    lengths = tuple(shape[axis] for shape in shapes)
    attributes = {"axis": axis, "lengths": lengths}
    parts = adjoint.emit("split", (adjoint.dy,), attributes)
    return [
        part if need else None for part, need in zip(parts, adjoint.needs, strict=True)
    ]


def _split_gradient(adjoint: Adjoint) -> Sequence[int | None]:
    parts = []
    for output, dy in zip(adjoint.outputs, adjoint.dys, strict=True):
        if dy is not None:
            parts.append(adjoint.tensor(dy))
            continue
        zeros = {
            "shape": adjoint.emitter.shape(output),
            "value": 0.0,
            "dtype": adjoint.emitter.dtype(output),
        }
        parts += adjoint.emit("fill", (), zeros, "gradient_zero")
    return adjoint.emit("concatenate", parts, {"axis": adjoint.attributes["axis"]})


def _concatenate(a: Attributes, inputs: Arrays, outputs: Arrays) -> None:
    outputs[0][...] = np.concatenate(inputs, axis=a["axis"])


def _split(a: Attributes, inputs: Arrays, outputs: Arrays) -> None:
    places = list(accumulate(a["lengths"]))[:-1]
    parts = np.split(inputs[0], places, axis=a["axis"])
    for output, part in zip(outputs, parts, strict=True):
        output[...] = part


register(
    OpType("concatenate", None, _infer, _concatenate, gradient=_gradient),
    OpType("split", 1, _infer_split, _split, gradient=_split_gradient),
)
