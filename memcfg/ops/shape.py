"""`reshape`, and the constants `fill` and `constant`.

``fill`` {shape, value, dtype} has one number for all elements; ``constant`` {shape,
data} one for each: `data` has the bits of each element as 8 hexadecimal digits.
"""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING

import numpy as np

from memcfg.ops._op_type import (
    Adjoint,
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


def _infer_flatten(inputs: Sequence[Spec], _: Attributes) -> Sequence[Spec]:
    shape = inputs[0].shape
    return [Spec((shape[0], prod(shape[1:])), inputs[0].dtype)]


def _infer_reshape(inputs: Sequence[Spec], attributes: Attributes) -> Sequence[Spec]:
    shape = tuple(attributes["shape"])
    require(
        prod(shape) == inputs[0].size,
        f"cannot reshape {inputs[0].shape} into {shape}",
    )
    return [Spec(shape, inputs[0].dtype)]


def _gradient(adjoint: Adjoint) -> Sequence[int | None]:
    return adjoint.emit("reshape", (adjoint.dy,), {"shape": adjoint.shape_of(0)})


def _copy(_: Attributes, inputs: Arrays, outputs: Arrays) -> None:
    outputs[0][...] = inputs[0].reshape(outputs[0].shape)


def _infer_fill(_: Sequence[Spec], attributes: Attributes) -> Sequence[Spec]:
    return [Spec(tuple(attributes["shape"]), attributes["dtype"])]


def _fill(a: Attributes, _: Arrays, outputs: Arrays) -> None:
    outputs[0][...] = a["value"]


def _infer_constant(_: Sequence[Spec], attributes: Attributes) -> Sequence[Spec]:
    spec = Spec(tuple(attributes["shape"]), "float32")
    digits = len(attributes["data"])
    require(digits == 8 * spec.size, f"constant: {digits} digits for {spec.shape}")
    return [spec]


def _constant(a: Attributes, _: Arrays, outputs: Arrays) -> None:
    numbers = np.frombuffer(bytes.fromhex(a["data"]), ">f4")
    outputs[0][...] = numbers.reshape(outputs[0].shape)


register(
    OpType("fill", 0, _infer_fill, _fill),
    OpType("constant", 0, _infer_constant, _constant),
    OpType("flatten", 1, _infer_flatten, _copy, ((0, 0),), _gradient),
    OpType("reshape", 1, _infer_reshape, _copy, ((0, 0),), _gradient),
)
