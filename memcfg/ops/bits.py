"""Bits and divisors of integers in int32, and neighbours of floats.

A shift by a negative number, or by more than the bits that there are, leaves nothing
but the sign of a right shift. ``next_after`` is the float next to the first operand, in
the direction of the second one. These ops have no gradients.
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
    from collections.abc import Callable, Sequence

    from memcfg.ops._op_type import Infer, Meaning

__all__: list[str] = []

_BITS = 32


def _of(name: str, dtype: str) -> Infer:
    def infer(inputs: Sequence[Spec], _: Attributes) -> Sequence[Spec]:
        a, b = inputs
        require(
            a.dtype == b.dtype == dtype,
            f"{name}: of {dtype}, not of {a.dtype} and {b.dtype}",
        )
        require(a.shape == b.shape, f"{name}: shapes {a.shape} and {b.shape} differ")
        return [Spec(a.shape, a.dtype)]

    return infer


def _meaning(function: Callable[[Array, Array], Array]) -> Meaning:
    def meaning(_: Attributes, inputs: Arrays, outputs: Arrays) -> None:
        outputs[0][...] = function(*inputs)

    return meaning


def _of_int64(function: Callable[[Array, Array], Array]) -> Callable[..., Array]:
    """Return a function that computes in int64 and keeps the lower bits."""

    def call(a: Array, b: Array) -> Array:
        return function(a.astype(np.int64), b.astype(np.int64)).astype(np.int32)

    return call


def _left(a: Array, b: Array) -> Array:
    known = (b >= 0) & (b < _BITS)
    return np.where(known, a << np.where(known, b, 0), 0)


def _right(a: Array, b: Array) -> Array:
    return a >> np.where((b >= 0) & (b < _BITS), b, _BITS - 1)


def _next_after(a: Array, b: Array) -> Array:
    """Return neighbours in float32, of which the operands are even in float64."""
    with np.errstate(all="ignore"):
        result: Array = np.nextafter(a.astype(np.float32), b.astype(np.float32))
    return result


def _no_gradient(_: Adjoint) -> Sequence[int | None]:
    return [None, None]


_INTEGERS: dict[str, Callable[[Array, Array], Array]] = {
    "bitwise_and": np.bitwise_and,
    "bitwise_or": np.bitwise_or,
    "bitwise_xor": np.bitwise_xor,
    "left_shift": _left,
    "right_shift": _right,
    "greatest_common_divisor": _of_int64(np.gcd),
    "least_common_multiple": _of_int64(np.lcm),
}
_PAIRS = ((0, 0), (1, 0))

register(
    *(
        OpType(name, 2, _of(name, "int32"), _meaning(f), _PAIRS, _no_gradient)
        for name, f in _INTEGERS.items()
    ),
    OpType(
        "next_after",
        2,
        _of("next_after", "float32"),
        _meaning(_next_after),
        _PAIRS,
        _no_gradient,
        float32_inputs=None,
    ),
)
