"""Arithmetic, bits and divisors of integers in int32, and neighbours of floats.

The ops ``integer_NAME`` compute what ``NAME`` does of floats, and keep the lower 32
bits of the result; ``integer_assign`` replaces its first operand, which is state, by
the second. A quotient or remainder by 0 is 0, a power of a negative exponent is the
reciprocal without its fraction, and comparisons are 1 or 0.

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


def _quotient(a: Array, b: Array) -> Array:
    return np.where(b == 0, 0, a // np.where(b == 0, 1, b))


def _remainder(a: Array, b: Array) -> Array:
    return np.where(b == 0, 0, a % np.where(b == 0, 1, b))


def _truncated(a: Array, b: Array) -> Array:
    return np.where(b == 0, 0, np.fmod(a, np.where(b == 0, 1, b)))


def _power(a: Array, b: Array) -> Array:
    """Return powers by squaring, in 64 bits without a sign, which wrap around."""
    base, rest = a.astype(np.uint64), np.maximum(b, 0)
    result = np.ones_like(base)
    while rest.any():
        result = np.where(rest & 1, result * base, result)
        base, rest = base * base, rest >> 1
    odd = np.where(b & 1, a, 1)
    reciprocal = np.where(np.abs(a) == 1, np.where(a < 0, odd, 1), 0)
    return np.where(b < 0, reciprocal, result.astype(np.int64))


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
    "integer_add": _of_int64(np.add),
    "integer_subtract": _of_int64(np.subtract),
    "integer_multiply": _of_int64(np.multiply),
    "integer_maximum": np.maximum,
    "integer_minimum": np.minimum,
    "integer_floor_divide": _of_int64(_quotient),
    "integer_remainder": _of_int64(_remainder),
    "integer_truncated_remainder": _of_int64(_truncated),
    "integer_power_of": _of_int64(_power),
    "integer_less": np.less,
    "integer_less_equal": np.less_equal,
    "integer_equal": np.equal,
    "integer_not_equal": np.not_equal,
}
_PAIRS = ((0, 0), (1, 0))

register(
    *(
        OpType(name, 2, _of(name, "int32"), _meaning(f), _PAIRS, _no_gradient)
        for name, f in _INTEGERS.items()
    ),
    OpType(
        "integer_assign",
        2,
        _of("integer_assign", "int32"),
        _meaning(lambda _, value: value),
        ((0, 0),),
        replayable=False,
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
