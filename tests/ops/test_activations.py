"""Activations against formulas of their own, in double precision."""

from __future__ import annotations

import math

import numpy as np
import pytest
from kernels import run_kernel

from memcfg import ops

erf = np.vectorize(math.erf, otypes=[float])


def sigmoid(x):
    return np.exp(-np.logaddexp(0, -x))


def elu(x, alpha=1.0):
    return np.where(x > 0, x, alpha * np.expm1(np.minimum(x, 0)))


def softplus(x):
    return np.logaddexp(0, x)


def hard_sigmoid(x):
    return np.clip(x / 6 + 0.5, 0, 1)


MEANINGS = {
    "relu6": (lambda x: np.clip(x, 0, 6), {}),
    "leaky_relu": (lambda x: np.where(x < 0, 0.2 * x, x), {}),
    "rectified": (
        lambda x: np.where(x < 0.25, 0.1 * (x - 0.25), np.minimum(x, 2)),
        {"negative_slope": 0.1, "max_value": 2.0, "threshold": 0.25},
    ),
    "elu": (lambda x: elu(x, 0.7), {"alpha": 0.7}),
    "selu": (lambda x: 1.0507009873554805 * elu(x, 1.6732632423543772), {}),
    "celu": (lambda x: elu(x / 1.5) * 1.5, {"alpha": 1.5}),
    "gelu": (lambda x: x / 2 * (1 + erf(x / math.sqrt(2))), {}),
    "silu": (lambda x: x * sigmoid(x), {}),
    "tanh": (np.tanh, {}),
    "exponential": (np.exp, {}),
    "softplus": (softplus, {}),
    "softsign": (lambda x: x / (1 + np.abs(x)), {}),
    "mish": (lambda x: x * np.tanh(softplus(x)), {}),
    "log_sigmoid": (lambda x: -softplus(-x), {}),
    "hard_sigmoid": (hard_sigmoid, {}),
    "hard_silu": (lambda x: x * hard_sigmoid(x), {}),
    "hard_tanh": (lambda x: np.clip(x, -1, 1), {}),
    "tanh_shrink": (lambda x: x - np.tanh(x), {}),
    "soft_shrink": (lambda x: np.sign(x) * np.maximum(np.abs(x) - 0.5, 0), {}),
    "hard_shrink": (lambda x: np.where(np.abs(x) > 0.5, x, 0), {}),
}
X = np.array([*np.linspace(-9.013, 9.021, 4001), -40.3, -15.1, 15.2, 40.7, 1e-6, -1e-6])


@pytest.mark.parametrize("name", MEANINGS)
def test_activation(name):
    meaning, attributes = MEANINGS[name]
    x = X.astype(np.float32)
    (found,) = run_kernel(name, [x], [x.shape], attributes)
    exact = meaning(x.astype(np.float64))
    np.testing.assert_allclose(found, exact, rtol=3e-6, atol=3e-7)


@pytest.mark.parametrize("name", ["softplus", "elu", "log_sigmoid", "celu", "selu"])
def test_near_zero_no_digits_are_lost(name):
    meaning, attributes = MEANINGS[name]
    x = -np.logspace(-7, 1.1, 200).astype(np.float32)
    x = -x if name == "log_sigmoid" else x
    (found,) = run_kernel(name, [x], [x.shape], attributes)
    np.testing.assert_allclose(found, meaning(x.astype(np.float64)), rtol=2e-6)


@pytest.mark.parametrize("name", MEANINGS)
def test_slope_of_an_activation(name):
    """The op of the gradient against differences of the meaning."""
    meaning, attributes = MEANINGS[name]
    x = X[:-2]  # two are too near to kinks
    y, dy, h = meaning(x), np.cos(np.arange(len(x))), 1e-5
    slope = (meaning(x + h) - meaning(x - h)) / (2 * h)
    second = meaning(x + h) - 2 * y + meaning(x - h)
    smooth = np.abs(second) < 1e-8 * np.maximum(
        1, np.abs(y)
    )  # no kink between x - h and x + h
    gradient = ops.op_type(f"{name}_gradient")
    named = {"x": x, "y": y, "dy": dy}
    inputs = [named[each].astype(np.float32) for each in gradient.formula.operands]
    (found,) = run_kernel(gradient.name, inputs, [x.shape], attributes)
    wanted = (dy * slope)[smooth]
    np.testing.assert_allclose(found[smooth], wanted, rtol=2e-5, atol=2e-6)
    assert smooth.sum() > 0.99 * len(x)


def test_approximate_gelu_is_near_the_exact_one():
    x = X.astype(np.float32)
    (found,) = run_kernel("gelu", [x], [x.shape], {"approximate": True})
    np.testing.assert_allclose(found, MEANINGS["gelu"][0](X), atol=6e-4)


def test_a_slope_reads_attributes_of_the_formula_alone():
    with pytest.raises(ValueError, match="no attribute 'beta', which its slope reads"):
        ops.elementwise(
            "bent", lambda x, *, alpha=1.0: x * alpha, slope=lambda y, beta: y * beta
        )
