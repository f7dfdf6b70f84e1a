"""Comparisons, powers and kinks at special values, as NumPy and IEEE 754 have them."""

from __future__ import annotations

import operator
from functools import partial

import numpy as np
import pytest
from cuda_compiler import run_source
from kernels import run_kernel
from special_values import (
    KINKS,
    MEANINGS,
    SPECIAL,
    VALUES,
    grid,
    to_dtype,
    values_and_slopes,
)

import memcfg as mc
from memcfg import ops as op_types
from memcfg.nn import ops

nn = mc.nn
DTYPES = ("float32", "bfloat16")
COMPARISONS = ("lt", "le", "gt", "ge", "eq", "ne")
ARRAYS = ("less", "less_equal", "equal", "not_equal")  # op types of two arrays
NUMBERS = (np.inf, -np.inf, np.nan, 0.0, -0.0, 0.1, 2.0)
quiet = partial(np.errstate, all="ignore")


def rounded(values, dtype):
    with quiet():
        return to_dtype(np.float32(values), dtype)


def same(found, expected):
    """Equal bits but for those of NaN."""
    np.testing.assert_array_equal(found, expected)
    signed = ~np.isnan(expected)
    np.testing.assert_array_equal(
        np.signbit(found)[signed], np.signbit(expected[signed])
    )


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", COMPARISONS)
def test_comparisons_are_ieees(name, dtype):
    holds = getattr(operator, name)
    a, b = grid(*[to_dtype(VALUES, dtype)] * 2)
    for meaning in MEANINGS:
        found, slopes = values_and_slopes(holds, [a, b], dtype, meaning)
        np.testing.assert_array_equal(found, holds(a, b))
        assert slopes == [None, None]
    x = to_dtype(VALUES, dtype)
    for number in NUMBERS:
        other = rounded(number, dtype)
        for found, expected in (
            (
                values_and_slopes(
                    lambda x, number=number: holds(x, number), [x], dtype
                ),
                holds(x, other),
            ),
            (
                values_and_slopes(
                    lambda x, number=number: holds(number, x), [x], dtype
                ),
                holds(other, x),
            ),
        ):
            np.testing.assert_array_equal(found[0], expected)


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_choice_takes_what_its_condition_says(dtype):
    x, y = (to_dtype(v, dtype) for v in grid(VALUES, VALUES))
    for number in NUMBERS:
        other = rounded(number, dtype)
        for function, expected in (
            (lambda x, y, n=number: ops.where(x > y, x, n), np.where(x > y, x, other)),
            (lambda x, y, n=number: ops.where(x, n, y), np.where(x, other, y)),
            (
                lambda x, y, n=number: ops.where(x == y, 2.0, n),
                np.where(x == y, np.float32(2), other),
            ),
        ):
            found, _ = values_and_slopes(function, [x, y], dtype)
            np.testing.assert_array_equal(found, expected)
    found, slopes = values_and_slopes(
        lambda x, y: ops.where(x <= y, x, y), [x, y], dtype
    )
    np.testing.assert_array_equal(found, np.where(x <= y, x, y))
    np.testing.assert_array_equal(slopes, [x <= y, ~(x <= y)])


NUMBERED = {  # of an array and a number
    "x + n": operator.add,
    "x - n": operator.sub,
    "n - x": lambda x, n: n - x,
    "x * n": operator.mul,
    "x / n": operator.truediv,
    "n / x": lambda x, n: n / x,
    "-x": lambda x, n: -x,
    "abs(x)": lambda x, n: abs(x),
}


@pytest.mark.parametrize("meaning", MEANINGS)
@pytest.mark.parametrize("name", NUMBERED)
def test_a_number_may_be_infinite_nan_or_minus_zero(name, meaning):
    function = NUMBERED[name]
    for number in (*NUMBERS, 3.0):
        found, _ = values_and_slopes(
            lambda x, n=number: function(x, n), [VALUES], meaning=meaning
        )
        with quiet():
            same(found, function(VALUES, np.float32(number)))


@pytest.mark.parametrize("dtype", DTYPES)
def test_bounds(dtype):
    x = to_dtype(VALUES, dtype)
    for number in NUMBERS:
        n = rounded(number, dtype)
        for name in ("maximum", "minimum"):
            found, (slope,) = values_and_slopes(
                lambda x, n=number, f=name: getattr(ops, f)(x, n), [x], dtype
            )
            np.testing.assert_array_equal(found, getattr(np, name)(x, n))
            above = x > n if name == "maximum" else x < n
            expected = np.where(x == n, 0.5, above)  # as in PyTorch
            np.testing.assert_array_equal(slope, expected)
    for low, high in ((-1.0, 2.5), (-np.inf, 0.0), (2.0, -2.0)):
        found, (slope,) = values_and_slopes(
            lambda x, a=low, b=high: ops.clip(x, a, b), [x], dtype
        )
        np.testing.assert_array_equal(found, np.clip(x, low, high))
        if low < high:
            expected = ~((x < low) | (x > high))
            np.testing.assert_array_equal(slope, expected)


@pytest.mark.parametrize("meaning", MEANINGS)
def test_roots_and_logarithms(meaning):
    x = VALUES
    with quiet():
        root = np.sqrt(x)
        for function, expected, slope in (
            (ops.sqrt, root, 0.5 / root),
            (ops.rsqrt, 1 / root, None),
            (ops.log, np.log(x), 1 / x),
            (ops.log1p, np.log1p(x), 1 / (1 + x)),
            (ops.reciprocal, 1 / x, None),
        ):
            found, (slopes,) = values_and_slopes(function, [x], meaning=meaning)
            np.testing.assert_allclose(found, expected, rtol=4e-7)
            if slope is not None:
                np.testing.assert_allclose(slopes, slope, rtol=4e-7)
    assert np.isnan(values_and_slopes(ops.rsqrt, [np.float32([-1, -np.inf])])[0]).all()


BASES = np.concatenate([SPECIAL, KINKS, np.float32([1.5, -1.5, 1e-20, -1e20, 0.99])])
EXPONENTS = [
    *(0.0, 0.3, 0.5, 1.5, 2.5, -0.5, -1.5, 1e-9, np.inf, -np.inf, np.nan),
    *(float(n) for n in (1, 2, 3, 4, 7, 15, 16, 17, 18, 33, 100, 101)),
    *(float(-n) for n in (1, 2, 3, 15, 16, 17, 18, 33, 100)),
    *(2.0**24 + 2, 2.0**24 - 1, -(2.0**23) - 1, 2.0**22 + 0.5, 3e38),
]


def power_of(x, n):
    """What `numpy.power` gives, rounded once; of one exponent 0.5 it is the root."""
    with quiet():
        exact = np.float64(x) ** np.full(np.shape(x), n, np.float64)
        return exact.astype(np.float32)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("meaning", MEANINGS)
def test_powers_and_their_gradients(meaning, dtype):
    x = to_dtype(BASES, dtype)
    rtol = 3e-6 if dtype == "float32" else 2**-6
    for n in EXPONENTS:
        found, (slope,) = values_and_slopes(lambda x, n=n: x**n, [x], dtype, meaning)
        with quiet():
            expected = np.sqrt(x) if n == 0.5 else power_of(x, n)
            wanted = np.float32(n) * power_of(x, np.float32(n - 1))
            if n == 0.5:
                wanted = np.float32(0.5) / expected
            expected, wanted = to_dtype(expected, dtype), to_dtype(wanted, dtype)
        if n == 0:
            wanted = np.zeros_like(x)
        message = f"exponent {n}"
        np.testing.assert_allclose(found, expected, rtol, 1e-37, err_msg=message)
        np.testing.assert_allclose(slope, wanted, 4 * rtol, 1e-37, err_msg=message)
        zero = expected == 0
        signs = np.signbit(expected[zero])
        np.testing.assert_array_equal(np.signbit(found[zero]), signs, message)


def test_powers_of_elements_are_those_of_pow():
    """Each special base and exponent: compiled for blocks and for CUDA, and NumPy's."""
    kind = op_types.elementwise("raised", lambda a, b: a**b)
    try:
        a, b = grid(BASES, np.concatenate([BASES, np.float32(EXPONENTS)]))
        with quiet():  # what overflows on the way does so here
            power = power_of(a, b)
            slope = b * power_of(a, b - 1)
            growth = power * np.log(a)
        truth = {
            "raised": power,
            "raised_gradient_a": np.where(b == 0, 0, slope),
            "raised_gradient_b": np.where((a == 0) & ~(b < 0), 0, growth),
        }
        inputs = [a, b, np.ones_like(a)]
        for name, expected in truth.items():
            rtol = 3e-7 if name == "raised" else 2e-6
            given = inputs[: op_types.op_type(name).arity]
            meaning = np.empty_like(a)
            with quiet():
                op_types.op_type(name).numpy({}, given, [meaning])
            for found in (
                *run_kernel(name, given, [a.shape]),
                *run_source(name, given, [a.shape]),
                meaning,
            ):
                np.testing.assert_allclose(found, expected, rtol, 3e-38)
                if name == "raised":
                    signs = np.signbit(expected[expected == 0])
                    np.testing.assert_array_equal(
                        np.signbit(found[expected == 0]), signs
                    )
        assert kind.formula.gradients == list(truth)[1:]
    finally:
        op_types.unregister("raised")


AT_KINKS = {  # inputs, and the slope at each
    "abs": (ops.abs, [0, -0.0, -1, 1], [0, 0, -1, 1]),
    "relu": (ops.relu, [0, -0.0, 1], [0, 0, 1]),
    "relu6": (ops.relu6, [0, -0.0, 6, 3], [0, 0, 0, 1]),
    "leaky_relu": (
        lambda x: ops.leaky_relu(x, 0.25),
        [0, -0.0, 1, -1],
        [0.25, 0.25, 1, 0.25],
    ),
    "LeakyReLU": (nn.LeakyReLU(0.25), [0, -0.0, 1], [0.25, 0.25, 1]),
    "ReLU": (nn.ReLU(negative_slope=0.25), [0, -0.0, 1], [0.25, 0.25, 1]),
    "ReLU with a ceiling": (nn.ReLU(2.0, 0.25), [0, -0.0, 2, 3], [0.25, 0.25, 1, 0]),
    "ReLU with a threshold": (
        nn.ReLU(None, 0.25, 0.5),
        [0.5, 1, 0, -0.0],
        [0.25, 1, 0.25, 0.25],
    ),
    "elu": (lambda x: ops.elu(x, 0.5), [0, -0.0, 1], [0.5, 0.5, 1]),
    "celu": (lambda x: ops.celu(x, 0.5), [0, -0.0, 1], [1, 1, 1]),
    "hard_tanh": (ops.hard_tanh, [-1, 1, 0], [0, 0, 1]),
    "hard_sigmoid": (ops.hard_sigmoid, [-3, 3, 0], [0, 0, 1 / 6]),
    "hard_silu": (ops.hard_silu, [-3, 3, 0], [0, 1, 0.5]),
    "soft_shrink": (ops.soft_shrink, [-0.5, 0.5, 0, 1], [0, 0, 0, 1]),
    "hard_shrink": (ops.hard_shrink, [-0.5, 0.5, 0, 1], [0, 0, 0, 1]),
    "softplus": (ops.softplus, [0, -0.0], [0.5, 0.5]),
}


@pytest.mark.parametrize("name", AT_KINKS)
def test_a_kink_has_the_slope_of_its_rule(name):
    function, x, expected = AT_KINKS[name]
    for dtype in DTYPES:
        for meaning in MEANINGS:
            _, (slopes,) = values_and_slopes(function, [x], dtype, meaning)
            np.testing.assert_array_equal(slopes, to_dtype(expected, dtype))


def test_a_rectifier_has_its_limits():
    x = np.float32([-np.inf, np.inf, np.nan, 0.5])
    for layer, expected in (
        (nn.ReLU(5.0), [0, 5, np.nan, 0.5]),
        (nn.ReLU(threshold=0.5), [0, np.inf, np.nan, 0]),
        (nn.ReLU(negative_slope=0.5), [-np.inf, np.inf, np.nan, 0.5]),
    ):
        for meaning in MEANINGS:
            found, _ = values_and_slopes(layer, [x], meaning=meaning)
            np.testing.assert_array_equal(found, expected)


def test_a_model_keeps_constants_that_are_not_finite(tmp_path):
    x = nn.Input((4,))
    y = ops.where(x > -np.inf, ops.maximum(x, -np.inf), np.inf) / 0.0
    y = ops.where(y == np.inf, x * np.nan, y)
    model = nn.Model(x, y)
    model.save(tmp_path / "constants.memcfg")
    other = nn.models.load_model(tmp_path / "constants.memcfg")
    values = np.float32([[1, -1, -np.inf, 0]])
    expected = [[np.nan, -np.inf, np.nan, np.nan]]
    for each in (model, other):
        np.testing.assert_array_equal(each.predict(values, verbose=0), expected)


def test_a_number_is_finite_in_float32_or_not_finite_at_all():
    x = nn.Input((4,))
    for use in (lambda: x * 1e300, lambda: x**1e300, lambda: ops.clip(x, 0, 1e300)):
        with pytest.raises(ValueError, match="must be finite in float32"):
            use()


def test_remainders_and_whole_quotients_are_numpys():
    values = [0, -0.0, 1, -1, 0.1, 5.5, -5.5, 3, 1e8, -1e8, 3.4e38, 2.0**24 + 2, 1e-40]
    values = np.array([*values, np.inf, -np.inf, np.nan], np.float32)
    x1, x2 = map(np.ravel, np.meshgrid(values, values))
    for function in (np.mod, np.floor_divide, np.fmod):
        with np.errstate(all="ignore"):
            expected = function(x1, x2)
        made = getattr(mc.nn.ops, function.__name__, mc.nn.ops.mod)(x1, x2)
        np.testing.assert_array_equal(made, expected)
