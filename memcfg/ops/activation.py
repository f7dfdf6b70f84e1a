"""Keras's activations, and element-wise parts of layers.

With ``slope``, backward reads the output instead of the input. Derivatives at kinks are
PyTorch's: 0 at the ends of the constant pieces of relu, relu6, hard_tanh, hard_sigmoid,
soft_shrink and hard_shrink; the left derivative of leaky_relu, prelu, rectified, elu,
selu and celu at 0; 0 at -3 and 1 at 3 for hard_silu.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from memcfg.ops._expression import (
    clip,
    equal,
    erf,
    exp,
    expm1,
    log,
    log1p,
    maximum,
    number,
    select,
    sigmoid,
    sqrt,
    tanh,
)
from memcfg.ops._formula import elementwise

if TYPE_CHECKING:
    from memcfg.ops._expression import Expression, Number

__all__: list[str] = []


def _softplus(x: Expression) -> Expression:
    return maximum(x, 0) + log1p(exp(-abs(x)))


def _below_zero(x: Expression) -> Expression:
    return select(x > 0, 0, x)  # has derivative 1 at 0; minimum's is 1/2


def _elu(x: Expression, alpha: Expression | Number) -> Expression:
    return select(x > 0, x, alpha * expm1(_below_zero(x)))


def _hard_sigmoid(x: Expression) -> Expression:
    return clip(x * (1 / 6) + 0.5, 0, 1)


def _gelu(x: Expression, *, approximate: bool = False) -> Expression:
    if approximate:
        return 0.5 * x * (1 + tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x * x * x)))
    return 0.5 * x * (1 + erf(x * math.sqrt(0.5)))


def _rectified(
    x: Expression,
    *,
    negative_slope: Expression,
    max_value: Expression,
    threshold: Expression,
) -> Expression:
    above = select(x > max_value, max_value, x)
    flat = select(x <= threshold, 0, x)  # infinity times 0 is NaN, and NaN stays NaN
    sloped = negative_slope * (x - threshold)
    return select(x > threshold, above, select(equal(negative_slope, 0), flat, sloped))


_SELU_ALPHA, _SELU_SCALE = 1.6732632423543772, 1.0507009873554805

elementwise("sigmoid", sigmoid, slope=lambda y: y * (1 - y))
elementwise(  # NaN stays NaN
    "relu",
    lambda x: select(x < 0, 0, x),
    slope=lambda y: select(y > 0, 1, 0),
)
elementwise(
    "relu6",
    lambda x: clip(x, 0, 6),
    slope=lambda y: select(y > 0, select(y < 6, 1, 0), 0),
)
elementwise(
    "leaky_relu",
    lambda x, *, negative_slope=0.2: select(x > 0, x, negative_slope * x),
)
elementwise("rectified", _rectified)
elementwise(
    "elu",
    lambda x, *, alpha=1.0: _elu(x, alpha),
    slope=lambda y, *, alpha=1.0: select(y > 0, 1, y + alpha),
)
elementwise(
    "selu",
    lambda x: _SELU_SCALE * _elu(x, _SELU_ALPHA),
    slope=lambda y: select(y > 0, _SELU_SCALE, y + _SELU_SCALE * _SELU_ALPHA),
)
elementwise(
    "celu",
    lambda x, *, alpha=1.0: select(x > 0, x, alpha * expm1(_below_zero(x) / alpha)),
)
elementwise("gelu", _gelu)
elementwise("silu", lambda x: x * sigmoid(x))
elementwise("tanh", lambda x: tanh(x), slope=lambda y: 1 - y * y)
elementwise("exponential", lambda x: exp(x), slope=lambda y: y)
elementwise("softplus", _softplus, slope=lambda y: -expm1(-y))
elementwise("softsign", lambda x: x / (1 + abs(x)))
elementwise("mish", lambda x: x * tanh(_softplus(x)))
elementwise("log_sigmoid", lambda x: -_softplus(-x), slope=lambda y: -expm1(y))
elementwise(
    "hard_sigmoid",
    _hard_sigmoid,
    slope=lambda y: select(y > 0, select(y < 1, 1 / 6, 0), 0),
)
elementwise(
    "hard_silu",
    lambda x: select(x <= -3, 0, select(x >= 3, x, x * (x * (1 / 6) + 0.5))),
)
elementwise(
    "hard_tanh",
    lambda x: clip(x, -1, 1),
    slope=lambda y: select(y > -1, select(y < 1, 1, 0), 0),
)
elementwise("tanh_shrink", lambda x: x - tanh(x))
elementwise(
    "soft_shrink",
    lambda x, *, threshold=0.5: select(
        abs(x) <= threshold, 0, select(x > 0, x - threshold, x + threshold)
    ),
)
elementwise(
    "hard_shrink",
    lambda x, *, threshold=0.5: select(abs(x) <= threshold, 0, x),
)


def _normal(u: Expression) -> Expression:
    """Return the normal quantile of u in (0, 1) by Giles' single-precision erfinv.

    Giles, "Approximating the erfinv function", GPU Computing Gems, 2011.
    """
    x = 2 * u - 1
    w = -log((1 - x) * (1 + x))
    near, far = w - 2.5, sqrt(maximum(w, 5)) - 3
    p, q = number(_NEAR[0]), number(_FAR[0])
    for c, d in zip(_NEAR[1:], _FAR[1:], strict=True):
        p, q = p * near + c, q * far + d
    return math.sqrt(2) * select(w < 5, p, q) * x


_NEAR = (
    *(2.81022636e-08, 3.43273939e-07, -3.5233877e-06, -4.39150654e-06, 0.00021858087),
    *(-0.00125372503, -0.00417768164, 0.246640727, 1.50140941),
)
_FAR = (
    *(-0.000200214257, 0.000100950558, 0.00134934322, -0.00367342844, 0.00573950773),
    *(-0.0076224613, 0.00943887047, 1.00167406, 2.83297682),
)

elementwise(
    "gaussian_noise",
    lambda x, u, *, stddev: x + stddev * _normal(u),
    constants=("u",),
)
elementwise(
    "gaussian_dropout",
    lambda x, u, *, stddev: x * (1 + stddev * _normal(u)),
    constants=("u",),
)
elementwise("prelu", lambda x, alpha: select(x > 0, x, alpha * x))
elementwise(
    "divide_by_local_response",
    lambda x, mean, *, count, alpha, beta, bias: (
        x * exp(-beta * log(bias + alpha * count * mean))
    ),
)


def _squareplus(x: Expression, *, b: Expression | float = 4.0) -> Expression:
    root = sqrt(x * x + b)
    return select(x < 0, b / (2 * (root - x)), (x + root) / 2)


elementwise("squareplus", _squareplus)
elementwise(
    "sparse_plus",
    lambda x: select(x <= -1, 0, select(x >= 1, x, (x + 1) * (x + 1) / 4)),
)
elementwise(
    "sparse_sigmoid",
    lambda x: select(x <= -1, 0, select(x >= 1, 1, (x + 1) / 2)),
)
