"""Element-wise functions of NumPy's and Keras's names, one expression each.

Where a formula's own derivative would lose digits, or be NaN at an edge, `partials`
gives it. Rounded results, signs and tests have no gradient. Tests return 1 or 0. The
coefficients of `erfc`, `erfinv` and `i0` are our own fits, in float32, to values of
SciPy's: the relative errors are below 2e-6, as tests/ops/test_mathematics.py says.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from memcfg.ops._expression import (
    atan,
    cos,
    equal,
    erf,
    exp,
    expm1,
    floor,
    fmod,
    log,
    log1p,
    maximum,
    minimum,
    number,
    select,
    sigmoid,
    sin,
    sqrt,
)
from memcfg.ops._formula import elementwise
from memcfg.ops._op_type import op_types

if TYPE_CHECKING:
    from collections.abc import Sequence

    from memcfg.ops._expression import Expression

__all__ = ["FUNCTIONS"]

_BEFORE = {kind.name for kind in op_types()}

_LN2 = math.log(2)
_LARGE = 1e8  # 1 + x * x is x * x, and x * x is finite


def _polynomial(x: Expression, coefficients: Sequence[float]) -> Expression:
    """Return the polynomial of coefficients in ascending order."""
    result = number(coefficients[-1])
    for each in reversed(coefficients[:-1]):
        result = each + x * result
    return result


def _with_sign(magnitude: Expression, x: Expression) -> Expression:
    return select(x < 0, -magnitude, magnitude)


def _either(x1: Expression, x2: Expression) -> Expression:
    """Return 1 where a number is not 0."""
    return select(equal(x1, 0), select(equal(x2, 0), 0, 1), 1)


def _negative(x: Expression) -> Expression:
    """Return 1 for numbers below 0 and for -0.0."""
    return select(equal(x, 0), select(1 / x < 0, 1, 0), select(x < 0, 1, 0))


# Rounding. Halves are rounded to even numbers.


def _truncated(x: Expression) -> Expression:
    return select(x < 0, -floor(-x), floor(x))


def _rounded(x: Expression) -> Expression:
    low = floor(x)
    part = x - low
    odd = low - 2 * floor(low / 2)
    near = select(part < 0.5, low, select(part > 0.5, low + 1, low + odd))
    return select(equal(low, x), x, near)  # of infinite numbers, too


def _rounded_to(x: Expression, *, factor: Expression) -> Expression:
    return _rounded(x * factor) / factor


elementwise("floor", lambda x: floor(x))
elementwise("ceil", lambda x: -floor(-x))
elementwise("truncate", _truncated)
elementwise("round", _rounded, constants=("x",))
elementwise("round_to", _rounded_to, constants=("x",))
elementwise("sign", lambda x: select(x > 0, 1, select(x < 0, -1, x)), constants=("x",))
elementwise("sign_bit", _negative, constants=("x",))


# Quotients


def _remainder(x1: Expression, x2: Expression) -> Expression:
    rest = fmod(x1, x2)
    above = select(rest < 0, rest + x2, rest)
    return select(x2 < 0, select(rest > 0, rest + x2, rest), above)


def _floor_divide(x1: Expression, x2: Expression) -> Expression:
    """Return the whole quotient that fits the exact remainder, as NumPy does."""
    rest = fmod(x1, x2)
    cut = (x1 - rest) / x2  # nearly an integer
    above = select(rest < 0, cut - 1, cut)
    quotient = select(x2 < 0, select(rest > 0, cut - 1, cut), above)
    whole = floor(quotient)
    whole = select(quotient - whole > 0.5, whole + 1, whole)
    return select(equal(x2, 0), x1 / x2, whole)


def _divided_or_zero(x1: Expression, x2: Expression) -> Expression:
    return select(equal(x2, 0), 0, x1 / select(equal(x2, 0), 1, x2))


elementwise(
    "remainder",
    _remainder,
    partials={"x1": lambda: number(1), "x2": lambda x1, x2: -floor(x1 / x2)},
)
elementwise(
    "truncated_remainder",
    fmod,
    partials={"x1": lambda: number(1), "x2": lambda x1, x2: -_truncated(x1 / x2)},
)
elementwise("floor_divide", _floor_divide, constants=("x1", "x2"))
elementwise("divide_or_zero", _divided_or_zero)


# Trigonometric functions, of radians


def _angle(x1: Expression, x2: Expression) -> Expression:
    """Return the angle of the point (x2, x1)."""
    a, b = abs(x1), abs(x2)
    most = maximum(a, b)
    ratio = select(equal(a, b), 1, minimum(a, b) / most)  # of infinite ones, too
    part = atan(select(equal(most, 0), 0, ratio))
    steep = select(a > b, math.pi / 2 - part, part)
    turned = select(_negative(x2) > 0, math.pi - steep, steep)
    angle = select(_negative(x1) > 0, -turned, turned)
    return select(equal(x1, x1), select(equal(x2, x2), angle, x2), x1)


def _over_square(x: Expression, x1: Expression, x2: Expression) -> Expression:
    """Return x by the squared distance, and 0 at the origin."""
    square = x1 * x1 + x2 * x2
    return select(equal(square, 0), 0, x / square)


elementwise("sin", lambda x: sin(x))
elementwise("cos", lambda x: cos(x))
elementwise("tan", lambda x: sin(x) / cos(x), partials={"x": lambda y: 1 + y * y})
elementwise(
    "arcsin",
    lambda x: atan(x / sqrt((1 - x) * (1 + x))),
    partials={"x": lambda x: 1 / sqrt((1 - x) * (1 + x))},
)
elementwise(
    "arccos",
    lambda x: 2 * atan(sqrt((1 - x) / (1 + x))),
    partials={"x": lambda x: -1 / sqrt((1 - x) * (1 + x))},
)
elementwise("arctan", lambda x: atan(x))
elementwise(
    "arctan2",
    _angle,
    partials={
        "x1": lambda x1, x2: _over_square(x2, x1, x2),
        "x2": lambda x1, x2: _over_square(-x1, x1, x2),
    },
)


def _sinc(x: Expression) -> Expression:
    return select(equal(x, 0), 1, sin(math.pi * x) / (math.pi * x))


def _sinc_slope(x: Expression) -> Expression:
    turn = math.pi * x
    square = turn * turn
    near = -math.pi / 3 * turn * (1 - square / 10 * (1 - square / 28))
    far = (cos(turn) - sin(turn) / turn) / x
    return select(abs(turn) < 0.5, near, far)


elementwise("sinc", _sinc, partials={"x": _sinc_slope})


# Hyperbolic functions


def _sinh(x: Expression) -> Expression:
    a = abs(x)
    small = expm1(a)
    half = exp(a / 2)  # its square may be infinite where half of the square is not
    far = 0.5 * half * half - 0.5 / (half * half)
    return _with_sign(select(a < 1, 0.5 * (small + small / (small + 1)), far), x)


def _cosh(x: Expression) -> Expression:
    half = exp(abs(x) / 2)
    return 0.5 * half * half + 0.5 / (half * half)


def _arcsinh(x: Expression) -> Expression:
    a = abs(x)
    near = log1p(a + a * a / (1 + sqrt(a * a + 1)))
    return _with_sign(select(a > _LARGE, log(a) + _LN2, near), x)


def _arccosh(x: Expression) -> Expression:
    above = x - 1
    near = log1p(above + sqrt(above * (above + 2)))
    return select(x < 1, sqrt(x - 1), select(x > _LARGE, log(x) + _LN2, near))


def _arctanh(x: Expression) -> Expression:
    a = abs(x)
    return _with_sign(0.5 * log1p(2 * a / (1 - a)), x)


elementwise("sinh", _sinh, partials={"x": _cosh})
elementwise("cosh", _cosh, partials={"x": _sinh})
elementwise("arcsinh", _arcsinh, partials={"x": lambda x: 1 / sqrt(x * x + 1)})
elementwise("arccosh", _arccosh, partials={"x": lambda x: 1 / sqrt((x - 1) * (x + 1))})
elementwise("arctanh", _arctanh, partials={"x": lambda x: 1 / ((1 - x) * (1 + x))})


# Exponentials, logarithms and powers


def _cube_root(x: Expression) -> Expression:
    return _with_sign(abs(x) ** (1 / 3), x)


def _hypotenuse(x1: Expression, x2: Expression) -> Expression:
    a, b = abs(x1), abs(x2)
    most = maximum(a, b)
    ratio = select(equal(most, 0), 0, minimum(a, b) / most)
    finite = most * sqrt(1 + ratio * ratio)
    infinite = equal(a, math.inf), equal(b, math.inf)  # even beside NaN
    return select(infinite[0], a, select(infinite[1], b, finite))


def _sum_of_exponentials(x1: Expression, x2: Expression) -> Expression:
    apart = maximum(x1, x2) + log1p(exp(-abs(x1 - x2)))
    return select(equal(x1, x2), 0.5 * (x1 + x2) + _LN2, apart)


def _sum_of_powers_of_two(x1: Expression, x2: Expression) -> Expression:
    apart = maximum(x1, x2) + log1p(exp(-_LN2 * abs(x1 - x2))) / _LN2
    return select(equal(x1, x2), 0.5 * (x1 + x2) + 1, apart)


elementwise("expm1", lambda x: expm1(x), partials={"x": lambda y: y + 1})
elementwise("exp2", lambda x: number(2) ** x, partials={"x": lambda y: _LN2 * y})
elementwise("log2", lambda x: log(x) / _LN2, partials={"x": lambda x: 1 / _LN2 / x})
elementwise(
    "log10",
    lambda x: log(x) / math.log(10),
    partials={"x": lambda x: 1 / math.log(10) / x},
)
elementwise(
    "cube_root",
    _cube_root,
    partials={"x": lambda y: select(equal(y, 0), 0, 1 / (3 * y * y))},
)
elementwise(
    "hypotenuse",
    _hypotenuse,
    partials={
        "x1": lambda x1, y: select(equal(y, 0), 0, x1 / y),
        "x2": lambda x2, y: select(equal(y, 0), 0, x2 / y),
    },
)
elementwise(
    "log_add_exp",
    _sum_of_exponentials,
    partials={
        "x1": lambda x1, x2: sigmoid(x1 - x2),
        "x2": lambda x1, x2: sigmoid(x2 - x1),
    },
)
elementwise(
    "log_add_exp2",
    _sum_of_powers_of_two,
    partials={
        "x1": lambda x1, x2: sigmoid(_LN2 * (x1 - x2)),
        "x2": lambda x1, x2: sigmoid(_LN2 * (x2 - x1)),
    },
)
elementwise("power_of", lambda x1, x2: x1**x2)
elementwise("exponential_of", lambda x, *, base: base**x)


# Special functions

_ERFC = (
    *(-1.26545298, 0.998726189, 0.385906398, 0.0378141925, -0.00740147103),
    *(-0.0652290881, -0.713135242, 1.16857755, -0.685557306, 0.145751834),
)
_ERFINV_NEAR = (
    *(1.50140941, 0.246640727, -0.00417770771, -0.00125370757, 0.000218602188),
    *(-4.3967814e-06, -3.528859e-06, 3.43727095e-07, 2.85347479e-08),
)
_ERFINV_FAR = (
    *(2.83297706, 1.00167429, 0.00943404004, -0.00762806416, 0.00577180972),
    *(-0.00364980451, 0.00127898005, 7.59404647e-05, -0.000150348482),
)
_I0_NEAR = (  # of the square of x / 8
    *(1.0, 16.0, 64.0000076, 113.777563, 113.780235, 72.8022232, 32.4218407),
    *(10.4327765, 2.83433032, 0.358727604, 0.15640974),
)
_I1_NEAR = (
    *(0.5, 4.0, 10.6666667, 14.222208, 11.377923, 6.06730556, 2.31462693),
    *(0.654041231, 0.155524075, 0.0189662873, 0.00687983213),
)
_I0_FAR = (  # of 8 / x
    *(0.398942292, 0.0062336996, 0.000435906753),
    *(6.60194928e-05, -3.41854525e-06, 1.18544428e-05),
)
_I1_FAR = (
    *(0.398942292, -0.018700676, -0.000727787614),
    *(-9.0036483e-05, 2.2415943e-06, -1.37556945e-05),
)


def _erfc(x: Expression) -> Expression:
    a = abs(x)
    t = 1 / (1 + a / 2)
    tail = t * exp(_polynomial(t, _ERFC) - a * a)
    far = select(x < 0, 2 - tail, tail)
    return select(a < 0.5, 1 - erf(x), far)


def _erfinv(x: Expression) -> Expression:
    w = -log((1 - x) * (1 + x))
    root = sqrt(w)
    far = _polynomial(root - 3, _ERFINV_FAR)
    finite = x * select(w < 5, _polynomial(w - 2.5, _ERFINV_NEAR), far)
    return select(equal(abs(x), 1), x * math.inf, finite)


def _bessel(near: Sequence[float], far: Sequence[float], x: Expression) -> Expression:
    """Return an even function of |x| that grows as exp(x) / sqrt(x)."""
    a = abs(x)
    part = maximum(a, 8)
    half = exp(a / 2)
    large = _polynomial(8 / part, far) / sqrt(part) * half * half
    return select(a < 8, _polynomial(a * a / 64, near), large)


def _i0(x: Expression) -> Expression:
    return _bessel(_I0_NEAR, _I0_FAR, x)


def _i1(x: Expression) -> Expression:
    a = abs(x)
    part = maximum(a, 8)
    half = exp(a / 2)
    large = _polynomial(8 / part, _I1_FAR) / sqrt(part) * half * half
    return _with_sign(select(a < 8, a * _polynomial(a * a / 64, _I1_NEAR), large), x)


elementwise("erf", lambda x: erf(x))
elementwise(
    "erfc",
    _erfc,
    partials={"x": lambda x: -2 / math.sqrt(math.pi) * exp(-(x * x))},
)
elementwise(
    "erfinv",
    _erfinv,
    partials={"x": lambda y: math.sqrt(math.pi) / 2 * exp(y * y)},
)
elementwise("bessel_i0", _i0, partials={"x": _i1})
elementwise(
    "threshold",
    lambda x, *, threshold, default_value: select(x > threshold, x, default_value),
)


# Choices


def _not_a_number(x: Expression) -> Expression:
    return select(equal(x, x), 0, 1)


def _infinite(x: Expression) -> Expression:
    return select(equal(abs(x), math.inf), 1, 0)


def _finite(x: Expression) -> Expression:
    return select(abs(x) < math.inf, 1, 0)


def _replaced(
    x: Expression, *, nan: Expression, posinf: Expression, neginf: Expression
) -> Expression:
    finite = select(equal(x, math.inf), posinf, select(equal(x, -math.inf), neginf, x))
    return select(equal(x, x), finite, nan)


def _close(
    x1: Expression,
    x2: Expression,
    *,
    rtol: Expression,
    atol: Expression,
    equal_nan: bool = False,
) -> Expression:
    finite = select(abs(x2) < math.inf, abs(x1 - x2), math.inf)
    near = select(finite <= atol + rtol * abs(x2), _finite(x2), 0)
    same = select(equal(x1, x2), 1, near)
    both = _not_a_number(x1) * _not_a_number(x2)
    return maximum(same, both) if equal_nan else same


def _step(x1: Expression, x2: Expression) -> Expression:
    return select(x1 < 0, 0, select(x1 > 0, 1, select(equal(x1, x1), x2, x1)))


elementwise("is_nan", _not_a_number, constants=("x",))
elementwise("is_infinite", _infinite, constants=("x",))
elementwise("is_finite", _finite, constants=("x",))
elementwise("is_close", _close, constants=("x1", "x2"))
elementwise("replace_nonfinite", _replaced)
elementwise(
    "greater_not_nan",  # of two equal numbers the first one
    lambda x1, x2: select(x1 >= x2, x1, select(equal(x2, x2), x2, x1)),
)
elementwise(
    "smaller_not_nan",
    lambda x1, x2: select(x1 <= x2, x1, select(equal(x2, x2), x2, x1)),
)
elementwise("heaviside", _step, constants=("x1",))
elementwise(
    "logical_and",
    lambda x1, x2: select(equal(x1, 0), 0, select(equal(x2, 0), 0, 1)),
    constants=("x1", "x2"),
)
elementwise("logical_or", _either, constants=("x1", "x2"))
elementwise(
    "logical_xor",
    lambda x1, x2: select(
        equal(x1, 0), select(equal(x2, 0), 0, 1), select(equal(x2, 0), 1, 0)
    ),
    constants=("x1", "x2"),
)
elementwise("logical_not", lambda x: select(equal(x, 0), 1, 0), constants=("x",))

# The types of this module, which are no activations that users look for.
FUNCTIONS = frozenset(kind.name for kind in op_types()) - _BEFORE
