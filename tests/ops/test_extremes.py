"""Element-wise ops and their gradients far out, against extended precision.

The truth is the formula and its derivative in long double, whose exponential of 1e4 is
finite. Where it is a float32, both kernels find it.
"""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from internals import derivative, evaluate, operand
from kernels import run_kernel

from memcfg import ops

FAR = [1e4, -1e4, 300, -300, 100, -100, 89, -89, 0.0, -0.0]
SETTINGS = {  # of ops that have no default
    "max_value": 2.0,
    "to": 0.0,
    "negative_slope": 0.1,
    "threshold": 0.5,
    "norm": 1.0,
    "alpha": 0.75,
    "beta": 0.5,
    "bias": 1.0,
    "count": 5.0,
    "stddev": 0.5,
    "factor": 1.5,
    "term": -0.25,
    "number": 2.5,
    "exponent": 1.5,
    "low": -1.25,
    "high": 2.5,
    "value": 3.0,
    "other": -0.75,
    "least": 0.125,
    "l1": 0.5,
    "l2": 0.25,
    "limit": 1.0,
    "divisor": 4,
    "base": 1.5,
    "nan": 0.5,
    "posinf": 7.0,
    "neginf": -7.0,
    "default_value": 0.25,
    "rtol": 1e-5,
    "atol": 1e-8,
}
LONG = np.dtype(np.longdouble)
KNOWN = {kind.name: kind for kind in ops.op_types()}
PLAIN = [  # neither updates nor gradients
    name
    for name, kind in KNOWN.items()
    if kind.formula
    and not (kind.formula.state or kind.formula.scalars)
    and "_gradient" not in name
    and len(next(kind.formula.cases())) == 1
]
ACTIVATIONS = [
    *("sigmoid", "relu", "relu6", "leaky_relu", "rectified", "elu", "selu", "celu"),
    *("gelu", "silu", "tanh", "exponential", "softplus", "softsign", "mish"),
    *("log_sigmoid", "hard_sigmoid", "hard_silu", "hard_tanh", "tanh_shrink"),
    *("soft_shrink", "hard_shrink"),
]
NO_LIMIT = ("gelu", "silu", "softsign", "mish")  # infinity times 0, as in PyTorch


def settings_of(formula):
    return {
        name: SETTINGS[name] if default is None else default
        for name, default in formula.defaults.items()
    }


def both(name, named, settings):
    """Compute an op by the native kernel and by the reference."""
    kind = KNOWN[name]
    inputs = [named[each] for each in kind.formula.operands]
    (native,) = run_kernel(name, inputs, [inputs[0].shape], settings)
    reference = np.empty_like(native)
    with np.errstate(all="ignore"):
        kind.numpy(settings, inputs, [reference])
    return native, reference


@pytest.mark.skipif(np.finfo(LONG).maxexp < 16384, reason="needs a wide long double")
@pytest.mark.parametrize("name", PLAIN)
def test_far_out_an_op_and_its_gradients_are_the_true_ones(name):
    formula = KNOWN[name].formula
    settings, names = settings_of(formula), formula.operands
    values = FAR if len(names) < 4 else FAR[::2]
    grid = np.array(list(product(values, repeat=len(names)))).T
    exact = {("operand", n): x.astype(LONG) for n, x in zip(names, grid, strict=True)}
    exact |= {("attribute", n): float(x) for n, x in settings.items()}
    (output,) = formula.outputs(settings)
    truth = {name: output}
    for each in names:
        gradient = f"{name}_gradient" + f"_{each}" * (len(names) > 1)
        if gradient in KNOWN:
            truth[gradient] = derivative(output, operand(each))
    named = {n: x.astype(np.float32) for n, x in zip(names, grid, strict=True)}
    named |= {"y": both(name, named, settings)[0], "dy": np.ones_like(grid[0], "f4")}
    # Losses clip to 1e-7 and to 1 less that, which float32 rounds.
    tolerance = 0.25 if "cross_entropy" in name else 1e-5
    for op, expression in truth.items():
        with np.errstate(all="ignore"):
            (wanted,) = evaluate([expression], exact, LONG)
        wanted = np.broadcast_to(wanted, grid[0].shape)
        known = np.isfinite(wanted) & (abs(wanted) < np.finfo("f4").max)
        smooth = known if op == name else known & grid.all(axis=0)  # kinks are at 0
        if name == "arctan2":  # whose formula, and no slope, has a kink there
            smooth = smooth & (abs(grid[0]) != abs(grid[-1]))
        for found in both(op, named, settings):
            assert np.isfinite(found[known]).all(), op
            np.testing.assert_allclose(
                found[smooth], wanted[smooth].astype(float), rtol=tolerance, atol=1e-6
            )


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_nan_stays_and_infinity_has_its_limit(name):
    settings = settings_of(KNOWN[name].formula)
    far, infinite = np.float32([1e9, -1e9]), np.float32([np.inf, -np.inf])
    limits = both(name, {"x": far}, settings)[0]
    limits[abs(limits) > 1e7] *= np.inf
    for x in both(name, {"x": np.float32([np.nan])}, settings):
        assert np.isnan(x).all()
    for found in both(name, {"x": infinite}, settings):
        if name not in NO_LIMIT:
            np.testing.assert_array_equal(found, limits + 0.0)
        named = {"x": infinite, "y": found, "dy": np.ones(2, np.float32)}
        slopes = both(f"{name}_gradient", named, settings)[0]
        assert name in NO_LIMIT or not np.isnan(slopes).any()


def test_a_quotient_by_one_and_an_exponential_has_a_slope_everywhere():
    x = np.float32([-1e4, -300, -89, -1, 0, 89, 1e4])
    logistic = 1 / (1 + np.exp(-x.astype(LONG)))
    wanted = logistic + x * logistic * (1 - logistic)
    for formula in (
        lambda x: x / (1 + ops.exp(-x)),
        lambda x: x / (ops.exp(-x) + 1),
        lambda x: x * ops.sigmoid(x),
    ):
        ops.elementwise("logistic_unit", formula)
        try:
            (found,) = run_kernel(
                "logistic_unit_gradient", [x, np.ones_like(x)], [x.shape]
            )
        finally:
            ops.unregister("logistic_unit")
        np.testing.assert_allclose(found, wanted.astype(float), rtol=1e-6, atol=1e-30)
