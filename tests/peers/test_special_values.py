"""Element-wise ops beside PyTorch at kinks and special values: value and gradient.

Where the input is NaN so is the value. The gradient of a piecewise function is then
that of one of its pieces, which PyTorch chooses otherwise: it is compared only where
PyTorch has NaN.
"""

from __future__ import annotations

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="needs PyTorch: tox run -e parity")

from special_values import VALUES, grid, to_dtype, values_and_slopes  # noqa: E402

from memcfg import nn  # noqa: E402
from memcfg.nn import activations, ops  # noqa: E402

pytestmark = [pytest.mark.parity, pytest.mark.filterwarnings("ignore")]
F = torch.nn.functional
DTYPES = ("float32", "bfloat16")

# name -> ours, PyTorch's
OF_ONE = {
    "abs": (ops.abs, torch.abs),
    "negative": (ops.negative, torch.neg),
    "square": (ops.square, torch.square),
    "sqrt": (ops.sqrt, torch.sqrt),
    "rsqrt": (ops.rsqrt, torch.rsqrt),
    "reciprocal": (ops.reciprocal, torch.reciprocal),
    "exp": (ops.exp, torch.exp),
    "log": (ops.log, torch.log),
    "log1p": (ops.log1p, torch.log1p),
    "relu": (ops.relu, F.relu),
    "relu6": (ops.relu6, F.relu6),
    "leaky_relu": (lambda x: ops.leaky_relu(x, 0.25), lambda x: F.leaky_relu(x, 0.25)),
    "ReLU": (nn.ReLU(negative_slope=0.125), lambda x: F.leaky_relu(x, 0.125)),
    "elu": (lambda x: ops.elu(x, 0.5), lambda x: F.elu(x, 0.5)),
    "selu": (ops.selu, F.selu),
    "celu": (lambda x: ops.celu(x, 0.5), lambda x: F.celu(x, 0.5)),
    "gelu": (lambda x: ops.gelu(x, approximate=False), F.gelu),
    "gelu of tanh": (ops.gelu, lambda x: F.gelu(x, approximate="tanh")),
    "silu": (ops.silu, F.silu),
    "sigmoid": (ops.sigmoid, torch.sigmoid),
    "tanh": (ops.tanh, torch.tanh),
    "softplus": (ops.softplus, F.softplus),
    "softsign": (ops.softsign, F.softsign),
    "mish": (activations.mish, F.mish),
    "log_sigmoid": (ops.log_sigmoid, F.logsigmoid),
    "hard_sigmoid": (ops.hard_sigmoid, F.hardsigmoid),
    "hard_silu": (ops.hard_silu, F.hardswish),
    "hard_tanh": (ops.hard_tanh, F.hardtanh),
    "tanh_shrink": (ops.tanh_shrink, F.tanhshrink),
    "soft_shrink": (ops.soft_shrink, F.softshrink),
    "hard_shrink": (ops.hard_shrink, F.hardshrink),
    "clip": (lambda x: ops.clip(x, -1, 2.5), lambda x: torch.clamp(x, -1, 2.5)),
    "maximum": (
        lambda x: ops.maximum(x, 0.5),
        lambda x: torch.maximum(x, torch.full_like(x, 0.5)),
    ),
    "minimum": (
        lambda x: ops.minimum(x, -3.0),
        lambda x: torch.minimum(x, torch.full_like(x, -3)),
    ),
    "x / 3": (lambda x: x / 3, lambda x: x / 3),
    "x / 0": (lambda x: x / 0.0, lambda x: x / 0.0),
    "x * inf": (lambda x: x * np.inf, lambda x: x * np.inf),
    "x - inf": (lambda x: x - np.inf, lambda x: x - np.inf),
    "2 / x": (lambda x: 2 / x, lambda x: 2 / x),
    "x > inf": (lambda x: 0 * x + (x > np.inf), lambda x: 0 * x + (x > np.inf)),
    "where": (
        lambda x: ops.where(x > 0.5, x, -np.inf),
        lambda x: torch.where(x > 0.5, x, -np.inf),
    ),
}
OF_TWO = {
    "add": (ops.add, torch.add),
    "subtract": (ops.subtract, torch.sub),
    "multiply": (ops.multiply, torch.mul),
    "divide": (ops.divide, torch.div),
    "maximum": (ops.maximum, torch.maximum),
    "minimum": (ops.minimum, torch.minimum),
    **{
        name: (
            lambda x, y, f=name: ops.where(getattr(ops, f)(x, y), x, 2 * y),
            lambda x, y, f=name: torch.where(getattr(torch, f)(x, y), x, 2 * y),
        )
        for name in ("less", "less_equal", "greater", "greater_equal", "not_equal")
    },
    "equal": (
        lambda x, y: ops.where(ops.equal(x, y), x, 2 * y),
        lambda x, y: torch.where(torch.eq(x, y), x, 2 * y),
    ),
}
# PyTorch takes 0.5 and -0.5 for roots, which are NaN for -inf; here 0.5 alone is one.
EXPONENTS = (0, 0.25, 0.5, 1, 2, 2.5, 3, 4, 15, 16, 17, 18, -1, -2, -3, -16, -17, -2.5)
# PyTorch's formulas of these overflow, or multiply infinity by 0.
BOUNDED = ("gelu", "hard_silu")
ROUGH = {  # absolute errors
    ("tanh_shrink", "bfloat16"): 2e-3,  # in PyTorch two ops, the first one rounded
    ("gelu", "float32"): 1e-6,  # 1 + erf cancels
}


def beside(function, arrays, dtype):
    """PyTorch's value and gradients of the sum, as float32."""
    kind = getattr(torch, dtype)
    tensors = [torch.tensor(x, dtype=kind, requires_grad=True) for x in arrays]
    y = function(*tensors)
    y.backward(torch.ones_like(y))
    return y.detach().float().numpy(), [x.grad.float().numpy() for x in tensors]


def check(ours, theirs, arrays, dtype, name):
    if name in BOUNDED:
        arrays = [x[abs(x) < 1e30] for x in arrays]
    arrays = [to_dtype(x, dtype) for x in arrays]
    value, slopes = values_and_slopes(ours, arrays, dtype)
    expected, wanted = beside(theirs, arrays, dtype)
    rtol, atol = (2e-5, 2e-6) if dtype == "float32" else (2**-6, 2**-7)
    least = ROUGH.get((name, dtype), 1e-37)
    np.testing.assert_allclose(value, expected, rtol, least, err_msg=name)
    nan = np.isnan(arrays).any(axis=0)
    for found, want in zip(slopes, wanted, strict=True):
        compared = ~nan | np.isnan(want)
        np.testing.assert_allclose(
            found[compared], want[compared], rtol, atol, err_msg=f"slope of {name}"
        )


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", OF_ONE)
def test_ops_of_one_array(name, dtype):
    check(*OF_ONE[name], [VALUES], dtype, name)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", OF_TWO)
def test_ops_of_two_arrays(name, dtype):
    check(*OF_TWO[name], grid(VALUES, VALUES), dtype, name)


@pytest.mark.parametrize("dtype", DTYPES)
def test_powers(dtype):
    for n in EXPONENTS:
        check(lambda x, n=n: x**n, lambda x, n=n: x**n, [VALUES], dtype, f"x**{n}")


def test_prelu():
    x, a = grid(VALUES, np.float32([0.25, 0, -1]))
    check(
        lambda x, a: ops.where(x > 0, x, a * x),
        lambda x, a: torch.where(x > 0, x, a * x),
        [x, a],
        "float32",
        "prelu",
    )
