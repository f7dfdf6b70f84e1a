"""Attributes and operands for every element-wise op type."""

from __future__ import annotations

from functools import cache

import numpy as np
from cuda_compiler import cuda_source

from memcfg import ops
from memcfg.devices import OperandSpec

ELEMENTWISE = [kind.name for kind in ops.op_types() if kind.formula is not None]
ATTRIBUTES = {
    "momentum": 0.9,
    "nesterov": True,
    "beta_1": 0.9,
    "beta_2": 0.99,
    "epsilon": 1e-7,
    "l1": 0.5,
    "l2": 0.25,
    "factor": 1.5,
    "term": -0.25,
    "negative_slope": 0.1,
    "max_value": 2.0,
    "threshold": 0.5,
    "rho": 0.9,
    "weight_decay": 0.01,
    "steps": 4,  # of a window whose last step is step 3
    "parts": 2,
    "divisor": 4,
    "frequency": 2,
    "limit": 1.0,
    "norm": 1.0,
    "size": 7,
    "beta_2_decay": -0.8,
    "epsilon_1": 1e-30,
    "epsilon_2": 1e-3,
    "clip_threshold": 1.0,
    "number": 2.5,
    "exponent": 1.5,
    "low": -1.25,
    "high": 2.5,
    "value": 3.0,
    "other": -0.75,
    "least": 0.125,
    "stddev": 0.5,
    "to": 0.5,
    "alpha": 0.75,
    "beta": 0.5,
    "bias": 1.0,
    "count": 5.0,
    "base": 1.5,
    "nan": 0.5,
    "posinf": 7.0,
    "neginf": -7.0,
    "default_value": 0.25,
    "rtol": 1e-5,
    "atol": 1e-8,
    "b": 4.0,
    "learning_rate_power": -0.5,
    "l1_regularization_strength": 0.5,
    "l2_regularization_strength": 0.25,
    "l2_shrinkage_regularization_strength": 0.125,
    "warmup_steps": 4.0,
}
SPECIAL = [
    0.0,
    -0.0,
    1.0,
    -1.0,
    np.inf,
    -np.inf,
    np.nan,
    1e-45,
    -1e-40,
    3e38,
    88.8,
    -104,
]


def some_values(count, seed=0):
    values = np.random.default_rng(seed).normal(size=count).astype(np.float32) * 3
    values[: len(SPECIAL)] = np.array(SPECIAL, np.float32)[:count]
    return values


def near_values(count, seed=0):
    """Values for a sine, which is accurate below 2**28."""
    values = some_values(count, seed)
    values[np.abs(values) == np.float32(3e38)] = 3e7
    return values


def is_periodic(kind):
    """Whether it has a sine."""
    formula = kind.formula
    known = {name: ATTRIBUTES.get(name, 1) for name in formula.defaults}
    text = formula.kernel_attributes(known)["expression"]
    return any(line.startswith(("sin ", "cos ")) for line in text.split("; "))


def operands_of(kind, count, dtype=np.float32):
    """Arrays for an op type's operands: special values, each at another place."""
    values = near_values if is_periodic(kind) else some_values
    return [
        np.array(3, np.int64)
        if name == "step"
        else np.array(0.1, dtype)
        if name in kind.formula.scalars
        else np.roll(values(count, place), place).astype(dtype)
        for place, name in enumerate(kind.formula.operands)
    ]


# These subtract near numbers, or take powers: their last bits are those of `log`.
ROUGH = (
    *("remainder", "truncated_remainder", "floor_divide", "power_of", "exponential_of"),
    *("tan", "sinc", "erfc", "erfinv", "bessel_i0", "cube_root", "sinh", "cosh"),
    *("arctanh", "arccosh", "arcsinh", "log_add_exp", "exp2", "squareplus"),
    *("squared_log_error", "log_cosh", "poisson"),
    *("gelu", "mish", "silu", "tanh_shrink", "ftrl"),
    *("divide_by_local_response", "gaussian"),
    *("binary_cross", "binary_focal", "categorical_focal", "kl_divergence_log"),
)


def bits(values):
    """All bits, those of every NaN the same: which one a sum keeps is undefined."""
    return np.where(np.isnan(values), np.float32(np.nan), values).tobytes()


def count_outputs(kind):
    return len(next(iter(kind.formula.cases())))


def elementwise_source(name, count, attributes=ATTRIBUTES):
    """The CUDA of an op over so many elements."""
    kind = ops.op_type(name)
    inputs = [OperandSpec(x.shape, x.dtype.name) for x in operands_of(kind, count)]
    outputs = [OperandSpec((count,), "float32")] * count_outputs(kind)
    return cuda_source(name, attributes, inputs, outputs)


@cache
def sources_of_formulas():
    """The CUDA of all element-wise ops, which is compiled at once."""
    settings = [ATTRIBUTES, {**ATTRIBUTES, "nesterov": False}]
    return "".join(
        elementwise_source(n, 1, a).text for n in ELEMENTWISE for a in settings
    )
