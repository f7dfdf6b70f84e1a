"""Element-wise functions against NumPy in float64, with special numbers."""

from __future__ import annotations

import numpy as np
import pytest
from kernels import run_kernel
from op_cases import erf, erfc, erfinv
from slopes import check_gradient

from memcfg import ops

SPECIAL = np.float32([0, -0.0, np.nan, np.inf, -np.inf, 1, -1, 0.5, -0.5, 1.5, 2.5])
POINTS = np.concatenate(
    [
        SPECIAL,
        np.linspace(-9, 9, 4001),
        np.linspace(-1, 1, 2001),
        np.random.default_rng(0).normal(size=2000) * 1e4,
        [88.9, -88.9, 1e8, -3e8, 3e-39, 1e30, 8388607.5, 8388609],
    ]
).astype(np.float32)
OF_ONE = {
    "sin": np.sin,
    "cos": np.cos,
    "tan": np.tan,
    "arcsin": np.arcsin,
    "arccos": np.arccos,
    "arctan": np.arctan,
    "sinh": np.sinh,
    "cosh": np.cosh,
    "arcsinh": np.arcsinh,
    "arccosh": np.arccosh,
    "arctanh": np.arctanh,
    "floor": np.floor,
    "ceil": np.ceil,
    "truncate": np.trunc,
    "round": np.round,
    "sign": np.sign,
    "sign_bit": np.signbit,
    "expm1": np.expm1,
    "exp2": np.exp2,
    "log2": np.log2,
    "log10": np.log10,
    "cube_root": np.cbrt,
    "erf": erf,
    "erfc": erfc,
    "erfinv": erfinv,
    "bessel_i0": np.i0,
    "is_nan": np.isnan,
    "is_infinite": np.isinf,
    "is_finite": np.isfinite,
    "logical_not": np.logical_not,
}
# Relative errors: that of exp(-x * x) grows with x.
LOOSE = {"erfc": 2e-5, "exp2": 2e-6, "bessel_i0": 2e-6, "tan": 2e-6, "cube_root": 1e-6}
PERIODIC = ("sin", "cos", "tan")  # accurate below 2**28


def computed(name, arrays, attributes=None):
    kind = ops.op_type(name)
    given = kind.kernel_attributes(attributes or {})
    (y,) = run_kernel(name, arrays, [arrays[0].shape], given)
    return y


def wanted(function, *arrays):
    with np.errstate(all="ignore"):
        return np.float32(function(*(x.astype(np.float64) for x in arrays)))


@pytest.mark.parametrize("name", OF_ONE)
def test_functions_of_one_number(name):
    found, exact = computed(name, [POINTS]), wanted(OF_ONE[name], POINTS)
    near = np.abs(exact) > 1e-30  # the smallest numbers have few digits
    near |= ~np.isfinite(exact) | (exact == 0)
    if name in PERIODIC:
        near &= ~(np.abs(POINTS) > 2**29) | np.isinf(POINTS)
    tolerance = LOOSE.get(name, 5e-7)
    np.testing.assert_allclose(found[near], exact[near], tolerance, 2e-38)


OF_TWO = {
    "arctan2": np.arctan2,
    "hypotenuse": np.hypot,
    "log_add_exp": np.logaddexp,
    "log_add_exp2": np.logaddexp2,
    "logical_and": np.logical_and,
    "logical_or": np.logical_or,
    "logical_xor": np.logical_xor,
    "greater_not_nan": np.fmax,
    "smaller_not_nan": np.fmin,
    "heaviside": np.heaviside,
    "is_close": np.isclose,
    "power_of": np.power,
}


@pytest.mark.parametrize("name", OF_TWO)
def test_functions_of_two_numbers(name):
    random = np.random.default_rng(0).normal(size=300).astype(np.float32) * 3
    pool = np.concatenate([SPECIAL, random[:40]])
    a, b = (each.reshape(-1).astype("f4") for each in np.meshgrid(pool, pool))
    given = {"rtol": 1e-5, "atol": 1e-8} if name == "is_close" else None
    found, exact = computed(name, [a, b], given), wanted(OF_TWO[name], a, b)
    np.testing.assert_allclose(found, exact, 2e-6, 1e-7)


def test_remainders_have_the_sign_of_one_of_both():
    random = np.random.default_rng(0)
    a, b = np.round(random.normal(size=(2, 4000)) * 64).astype("f4") / 8
    b[b == 0] = 1
    for name, function in (
        ("remainder", np.mod),
        ("truncated_remainder", np.fmod),
        ("floor_divide", np.floor_divide),
    ):
        exact = wanted(function, a, b)
        np.testing.assert_allclose(computed(name, [a, b]), exact, 1e-6, 1e-6)


SMOOTH = {  # name: the points
    **dict.fromkeys(("sin", "cos", "tan", "arctan", "sinc", "sinh", "cosh"), 1.2),
    **dict.fromkeys(("arcsin", "arccos", "arctanh", "erfinv"), 0.8),
    **dict.fromkeys(("arcsinh", "erf", "erfc", "bessel_i0", "expm1", "exp2"), 1.2),
}


@pytest.mark.parametrize("name", SMOOTH)
def test_slopes_agree_with_differences(name):
    x = np.random.default_rng(0).uniform(-SMOOTH[name], SMOOTH[name], (4, 3))
    check_gradient(name, [x])


@pytest.mark.parametrize("name", ["log2", "log10", "cube_root", "arccosh"])
def test_slopes_above_one(name):
    check_gradient(name, [np.random.default_rng(0).uniform(1.2, 3, (4, 3))])


@pytest.mark.parametrize(
    "name",
    ["arctan2", "hypotenuse", "log_add_exp", "log_add_exp2", "power_of", "remainder"],
)
def test_slopes_of_two(name):
    x = np.random.default_rng(0).uniform(0.6, 1.9, (2, 4, 3)) * [[[1]], [[0.31]]]
    check_gradient(name, [*x], wrt=(0, 1))


EDGES = {  # the slope at a number, as in PyTorch
    ("arcsin", 1.0): np.inf,
    ("arccos", -1.0): -np.inf,
    ("sinc", 0.0): 0.0,
    ("replace_nonfinite", np.nan): 0.0,
    ("replace_nonfinite", np.inf): 0.0,
    ("replace_nonfinite", 2.0): 1.0,
    ("cosh", 0.0): 0.0,
}


@pytest.mark.parametrize(("name", "x"), EDGES)
def test_slopes_at_edges(name, x):
    kind = ops.op_type(f"{name}_gradient")
    operands = {"x": x, "dy": 1.0}
    if name == "sinc":
        operands["y"] = 1.0
    arrays = [np.float32([operands[each]]) for each in kind.formula.operands]
    bounds = {"nan": 0.0, "posinf": 1.0, "neginf": -1.0}
    given = bounds if name == "replace_nonfinite" else {}
    found = computed(kind.name, arrays, given)
    np.testing.assert_array_equal(found, np.float32([EDGES[name, x]]))


def test_what_has_no_slope():
    for name in ("floor", "round", "sign", "is_nan", "logical_and", "stop_gradient"):
        assert ops.op_type(name).formula.gradients == []


def test_a_partial_is_of_an_operand():
    with pytest.raises(ValueError, match="a partial of 'z'"):
        ops.elementwise("wrong", lambda x: x, partials={"z": lambda z: z})
    with pytest.raises(ValueError, match="no attribute 'w', which its slope reads"):
        ops.elementwise("wrong", lambda x: x, partials={"x": lambda w: w})
