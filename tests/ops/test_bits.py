"""Integers bit by bit, their divisors, and neighbours of floats, beside Python's."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kernels import run_kernel

from memcfg import ops
from memcfg.errors import GraphError
from memcfg.graph import Builder

ENDS = [0, 1, -1, 2, 31, 32, 33, -31, -32, 2**31 - 1, -(2**31), -(2**31) + 1]
INTEGERS = st.one_of(st.integers(-(2**31), 2**31 - 1), st.sampled_from(ENDS))
FLOATS = st.floats(width=32, allow_nan=True, allow_infinity=True)


def wrapped(value):
    """The lower 32 bits of a number of any size."""
    return (value + 2**31) % 2**32 - 2**31


def powered(a, b):
    if b < 0:
        return int(1 / a ** (-b % 2)) if abs(a) == 1 else 0
    return wrapped(pow(a, b, 2**32))


MEANINGS = {
    "bitwise_and": lambda a, b: a & b,
    "bitwise_or": lambda a, b: a | b,
    "bitwise_xor": lambda a, b: a ^ b,
    "left_shift": lambda a, b: wrapped(a << b) if 0 <= b < 32 else 0,
    "right_shift": lambda a, b: a >> (b if 0 <= b < 32 else 31),
    "greatest_common_divisor": lambda a, b: wrapped(math.gcd(a, b)),
    "least_common_multiple": lambda a, b: wrapped(math.lcm(a, b)),
    "integer_add": lambda a, b: wrapped(a + b),
    "integer_subtract": lambda a, b: wrapped(a - b),
    "integer_multiply": lambda a, b: wrapped(a * b),
    "integer_maximum": max,
    "integer_minimum": min,
    "integer_floor_divide": lambda a, b: wrapped(a // b) if b else 0,
    "integer_remainder": lambda a, b: a % b if b else 0,
    "integer_truncated_remainder": lambda a, b: (
        (abs(a) % abs(b)) * (-1 if a < 0 else 1) if b else 0
    ),
    "integer_power_of": powered,
    "integer_assign": lambda _, b: b,
    "integer_less": lambda a, b: a < b,
    "integer_less_equal": lambda a, b: a <= b,
    "integer_equal": lambda a, b: a == b,
    "integer_not_equal": lambda a, b: a != b,
}


@pytest.mark.parametrize("kind", MEANINGS)
@given(pairs=st.lists(st.tuples(INTEGERS, INTEGERS), min_size=1, max_size=9))
@settings(max_examples=40, deadline=None)
def test_integers_are_those_of_python(kind, pairs):
    a, b = (np.array(each, np.int32) for each in zip(*pairs, strict=True))
    wanted = [MEANINGS[kind](*pair) for pair in pairs]
    (found,) = run_kernel(kind, [a, b], [a.shape], {}, (), ["int32"])
    np.testing.assert_array_equal(found, wanted)
    meant = np.empty(a.shape, np.int32)
    ops.op_type(kind).numpy({}, [a, b], [meant])
    np.testing.assert_array_equal(meant, wanted)


@given(pairs=st.lists(st.tuples(FLOATS, FLOATS), min_size=1, max_size=9))
@settings(max_examples=80, deadline=None)
def test_neighbours_of_floats(pairs):
    a, b = (np.array(each, np.float32) for each in zip(*pairs, strict=True))
    (found,) = run_kernel("next_after", [a, b], [a.shape])
    for x, y, made in zip(a, b, found, strict=True):
        if np.isnan(x) or np.isnan(y):
            assert np.isnan(made)
        elif x == y:
            assert made == y
        else:
            assert (made > x) if y > x else (made < x)
            if np.isfinite(x) and np.isfinite(made):  # nothing lies between
                with np.errstate(all="ignore"):
                    middle = np.float32((np.float64(x) + np.float64(made)) / 2)
                assert middle in (x, made)
            assert min(x, y) <= made <= max(x, y)


def test_what_does_not_fit():
    builder = Builder("bits")
    i, x = builder.tensor("i", (2,), "int32"), builder.tensor("x", (2,))
    j = builder.tensor("j", (3,), "int32")
    for kind, inputs, words in (
        ("bitwise_and", (i, x), "of int32, not of int32 and float32"),
        ("left_shift", (i, j), "shapes .* differ"),
        ("next_after", (i, i), "of float32, not of int32"),
    ):
        with pytest.raises(GraphError, match=words):
            builder.apply(kind, inputs)
