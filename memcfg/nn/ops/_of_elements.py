"""Element-wise ops of symbolic tensors, and the numbers and arrays beside them."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from memcfg.nn import activations
from memcfg.nn._argument_checks import constant, integer
from memcfg.nn.layers import SymbolicTensor
from memcfg.nn.layers import _operators as operators
from memcfg.nn.layers._operators import (
    Filled,
    Function,
    Power,
    Reciprocal,
    as_tensor,
)
from memcfg.nn.ops._declaring import (
    binary,
    combined,
    documented,
    joined,
    of_one,
    of_two,
    tensor_of,
)

__all__ = [
    "abs",
    "absolute",
    "add",
    "angle",
    "arccos",
    "arccosh",
    "arcsin",
    "arcsinh",
    "arctan",
    "arctan2",
    "arctanh",
    "bitwise_and",
    "bitwise_invert",
    "bitwise_left_shift",
    "bitwise_not",
    "bitwise_or",
    "bitwise_right_shift",
    "bitwise_xor",
    "cast",
    "cbrt",
    "ceil",
    "clip",
    "conj",
    "conjugate",
    "copy",
    "cos",
    "cosh",
    "deg2rad",
    "divide",
    "divide_no_nan",
    "equal",
    "erf",
    "erfc",
    "erfinv",
    "exp",
    "exp2",
    "expm1",
    "fabs",
    "floor",
    "floor_divide",
    "fmax",
    "fmin",
    "fmod",
    "gcd",
    "gelu",
    "greater",
    "greater_equal",
    "heaviside",
    "hypot",
    "i0",
    "imag",
    "isclose",
    "isfinite",
    "isinf",
    "isnan",
    "isneginf",
    "isposinf",
    "isreal",
    "lcm",
    "ldexp",
    "left_shift",
    "less",
    "less_equal",
    "log",
    "log1p",
    "log2",
    "log10",
    "logaddexp",
    "logaddexp2",
    "logical_and",
    "logical_not",
    "logical_or",
    "logical_xor",
    "maximum",
    "minimum",
    "mod",
    "multiply",
    "nan_to_num",
    "negative",
    "nextafter",
    "not_equal",
    "power",
    "rad2deg",
    "real",
    "reciprocal",
    "right_shift",
    "round",
    "rsqrt",
    "saturate_cast",
    "select",
    "sign",
    "signbit",
    "sin",
    "sinc",
    "sinh",
    "sqrt",
    "square",
    "stop_gradient",
    "subtract",
    "tan",
    "true_divide",
    "trunc",
    "where",
]


@documented
def absolute(x: Any) -> Any:
    """Return the absolute value of each element."""
    return operators.absolute(x)


@documented
def negative(x: Any) -> Any:
    """Return ``-x``."""
    return operators.negative(x)


@documented
def add(x1: Any, x2: Any) -> Any:
    """Return ``x1 + x2``."""
    return binary("add", x1, x2)


@documented
def subtract(x1: Any, x2: Any) -> Any:
    """Return ``x1 - x2``."""
    return binary("subtract", x1, x2)


@documented
def multiply(x1: Any, x2: Any) -> Any:
    """Return ``x1 * x2``."""
    return binary("multiply", x1, x2)


@documented
def divide(x1: Any, x2: Any) -> Any:
    """Return ``x1 / x2``."""
    return binary("divide", x1, x2)


@documented
def maximum(x1: Any, x2: Any) -> Any:
    """Return the element-wise maximum."""
    return binary("maximum", x1, x2)


@documented
def minimum(x1: Any, x2: Any) -> Any:
    """Return the element-wise minimum."""
    return binary("minimum", x1, x2)


@documented
def power(x1: Any, x2: Any) -> Any:
    """Return ``x1 ** x2``."""
    return binary("power", x1, x2)


@documented
def square(x: Any) -> Any:
    """Return ``x * x``."""
    return Power(2)(x)


@documented
def sqrt(x: Any) -> Any:
    """Return the square root of each element."""
    return Power(0.5)(x)


@documented
def rsqrt(x: Any) -> Any:
    """Return ``1 / sqrt(x)``."""
    return Function("reciprocal_root", {})(x)


@documented
def reciprocal(x: Any) -> Any:
    """Return ``1 / x``."""
    return Reciprocal()(x)


@documented
def exp(x: Any) -> Any:
    """Return the exponential of each element."""
    return activations.exponential(x)


@documented
def log(x: Any) -> Any:
    """Return the natural logarithm of each element."""
    return Function("logarithm", {"term": -0.0})(x)


@documented
def log1p(x: Any) -> Any:
    """Return the natural logarithm of ``1 + x``."""
    return Function("log1p", {})(x)


@documented
def gelu(x: Any, approximate: bool = True) -> Any:
    """Return x times the standard normal distribution function of x."""
    return activations.gelu(x, approximate)


@documented
def clip(x: Any, x_min: Any, x_max: Any) -> Any:
    """Return x clipped to ``[x_min, x_max]``."""
    bounds_of = isinstance(x_min, SymbolicTensor) or isinstance(x_max, SymbolicTensor)
    if bounds_of or tensor_of(x, "clip").sample_dtype == "int32":
        return minimum(maximum(x, x_min), x_max)
    bounds = {
        "low": constant(x_min, "clip: x_min"),
        "high": constant(x_max, "clip: x_max"),
    }
    return Function("clip", bounds)(x)


@documented
def not_equal(x1: Any, x2: Any) -> Any:
    """Return 1 where the elements differ, else 0."""
    return binary("not_equal", x1, x2)


@documented
def equal(x1: Any, x2: Any) -> Any:
    """Return 1 where the elements are equal, else 0."""
    return binary("equal", x1, x2)


@documented
def greater(x1: Any, x2: Any) -> Any:
    """Return 1 where ``x1 > x2``, else 0."""
    return binary("greater", x1, x2)


@documented
def less(x1: Any, x2: Any) -> Any:
    """Return 1 where ``x1 < x2``, else 0."""
    return binary("less", x1, x2)


@documented
def greater_equal(x1: Any, x2: Any) -> Any:
    """Return 1 where ``x1 >= x2``, else 0."""
    return binary("greater_equal", x1, x2)


@documented
def less_equal(x1: Any, x2: Any) -> Any:
    """Return 1 where ``x1 <= x2``, else 0."""
    return binary("less_equal", x1, x2)


@documented
def cast(x: Any, dtype: str) -> Any:
    """Convert the elements to another dtype; bool is 1 for elements other than 0."""
    if dtype in ("bool", bool):
        return binary("not_equal", x, 0)
    if dtype not in ("float32", "bfloat16", "int32"):
        raise ValueError(
            f"cast: dtype must be float32, bfloat16, int32 or bool, got {dtype!r}"
        )
    return Function("cast", {"dtype": dtype})(x)


abs = fabs = absolute  # noqa: A001  (Keras's name)
true_divide = divide

sin = of_one("sin", "sin", "Return the sine of each element, an angle in radians.")
cos = of_one("cos", "cos", "Return the cosine of each element, an angle in radians.")
tan = of_one("tan", "tan", "Return the tangent of each element, an angle in radians.")
arcsin = of_one(
    "arcsin", "arcsin", "Return the inverse sine, between -pi / 2 and pi / 2."
)
arccos = of_one("arccos", "arccos", "Return the inverse cosine, between 0 and pi.")
arctan = of_one(
    "arctan", "arctan", "Return the inverse tangent, between -pi / 2 and pi / 2."
)
sinh = of_one("sinh", "sinh", "Return the hyperbolic sine of each element.")
cosh = of_one("cosh", "cosh", "Return the hyperbolic cosine of each element.")
arcsinh = of_one(
    "arcsinh", "arcsinh", "Return the inverse hyperbolic sine of each element."
)
arccosh = of_one(
    "arccosh", "arccosh", "Return the inverse hyperbolic cosine; NaN below 1."
)
arctanh = of_one(
    "arctanh", "arctanh", "Return the inverse hyperbolic tangent; NaN outside [-1, 1]."
)
sinc = of_one("sinc", "sinc", "Return ``sin(pi x) / (pi x)``, and 1 at 0.")
floor = of_one(
    "floor", "floor", "Return the largest integer that is not above each element."
)
ceil = of_one(
    "ceil", "ceil", "Return the smallest integer that is not below each element."
)
trunc = of_one("trunc", "truncate", "Return each element without its fraction.")
sign = of_one(
    "sign", "sign", "Return -1, 0 or 1 by the sign of each element; NaN stays NaN."
)
signbit = of_one(
    "signbit", "sign_bit", "Return 1 for numbers below 0 and for -0.0, else 0."
)
expm1 = of_one("expm1", "expm1", "Return ``exp(x) - 1``, accurate near 0.")
exp2 = of_one("exp2", "exp2", "Return 2 to the power of each element.")
log2 = of_one("log2", "log2", "Return the logarithm to base 2 of each element.")
log10 = of_one("log10", "log10", "Return the logarithm to base 10 of each element.")
cbrt = of_one("cbrt", "cube_root", "Return the cube root of each element.")
erf = of_one("erf", "erf", "Return the error function of each element.")
erfc = of_one("erfc", "erfc", "Return ``1 - erf(x)``, accurate where that is small.")
erfinv = of_one("erfinv", "erfinv", "Return the inverse of the error function.")
i0 = of_one(
    "i0",
    "bessel_i0",
    "Return the modified Bessel function of the first kind of order 0.",
)
isnan = of_one("isnan", "is_nan", "Return 1 where an element is NaN, else 0.")
isinf = of_one("isinf", "is_infinite", "Return 1 where an element is infinite, else 0.")
isfinite = of_one(
    "isfinite",
    "is_finite",
    "Return 1 where an element is neither NaN nor infinite, else 0.",
)
logical_not = of_one(
    "logical_not", "logical_not", "Return 1 where an element is 0, else 0."
)
mod = of_two(
    "mod", "remainder", "Return the remainder of ``x1 / x2``, with the sign of x2."
)
fmod = of_two(
    "fmod",
    "truncated_remainder",
    "Return the remainder of ``x1 / x2``, with the sign of x1.",
)
floor_divide = of_two(
    "floor_divide", "floor_divide", "Return ``floor(x1 / x2)``, which has no gradient."
)
divide_no_nan = of_two(
    "divide_no_nan", "divide_or_zero", "Return ``x1 / x2``, and 0 where x2 is 0."
)
arctan2 = of_two(
    "arctan2",
    "arctan2",
    "Return the angle of the point ``(x2, x1)``, between -pi and pi.",
)
hypot = of_two(
    "hypot", "hypotenuse", "Return ``sqrt(x1**2 + x2**2)`` without overflow."
)
logaddexp = of_two(
    "logaddexp", "log_add_exp", "Return ``log(exp(x1) + exp(x2))`` without overflow."
)
logaddexp2 = of_two(
    "logaddexp2", "log_add_exp2", "Return ``log2(2**x1 + 2**x2)`` without overflow."
)
logical_and = of_two(
    "logical_and", "logical_and", "Return 1 where neither element is 0, else 0."
)
logical_or = of_two(
    "logical_or", "logical_or", "Return 1 where an element is not 0, else 0."
)
logical_xor = of_two(
    "logical_xor", "logical_xor", "Return 1 where exactly one element is 0, else 0."
)
heaviside = of_two(
    "heaviside", "heaviside", "Return 0 below 0, 1 above, and x2 where x1 is 0."
)
fmax = of_two(
    "fmax",
    "greater_not_nan",
    "Return the maximum, or the other element where one is NaN.",
)
fmin = of_two(
    "fmin",
    "smaller_not_nan",
    "Return the minimum, or the other element where one is NaN.",
)


@documented
def where(condition: Any, x1: Any = None, x2: Any = None) -> Any:
    """Return x1 where the condition is not 0, else x2."""
    if x1 is None or x2 is None:
        raise ValueError(
            "where: pass x1 and x2: the places alone would have a shape that depends "
            "on the data"
        )
    if _stay_integers(x1, x2):
        x1, x2 = as_tensor(x1, "where"), as_tensor(x2, "where")
    tensors = [isinstance(each, SymbolicTensor) for each in (x1, x2)]
    numbers = [
        not tensor and np.ndim(each) == 0
        for tensor, each in zip(tensors, (x1, x2), strict=True)
    ]
    arrays = not all(map(any, zip(tensors, numbers, strict=True)))
    if arrays or all(tensors) or not isinstance(condition, SymbolicTensor):
        return combined("where", [condition, x1, x2])
    if tensors[0]:
        other = {"other": constant(x2, "where: x2")}
        return combined("where_or", [condition, x1], other)
    value = {"value": constant(x1, "where: x1")}
    if tensors[1]:
        return combined("where_not", [condition, x2], value)
    both = value | {"other": constant(x2, "where: x2")}
    return Function("where_numbers", both)(condition)


def _stay_integers(*values: Any) -> bool:
    """Return whether integers of 32 bits stand beside a tensor of integers."""
    others = [each for each in values if not isinstance(each, SymbolicTensor)]
    if len(others) == len(values) or any(
        isinstance(each, SymbolicTensor) and each.sample_dtype != "int32"
        for each in values
    ):
        return False
    arrays = [np.asarray(each) for each in others]
    return all(
        each.dtype.kind in "iu" and ((each >= -(2**31)) & (each < 2**31)).all()
        for each in arrays
    )


@documented
def select(condlist: Any, choicelist: Any, default: Any = 0) -> Any:
    """Return the choice of the first condition that is not 0, else the default."""
    if len(condlist) != len(choicelist) or not len(condlist):
        raise ValueError(
            f"select: {len(condlist)} conditions and {len(choicelist)} choices: they "
            "must be as many, and at least one"
        )
    result = default
    for condition, choice in zip(
        reversed(list(condlist)), reversed(list(choicelist)), strict=True
    ):
        result = where(condition, choice, result)
    return result


@documented
def isposinf(x: Any) -> Any:
    """Return 1 where an element is infinity, else 0."""
    return equal(x, math.inf)


@documented
def isneginf(x: Any) -> Any:
    """Return 1 where an element is -infinity, else 0."""
    return equal(x, -math.inf)


@documented
def round(x: Any, decimals: int = 0) -> Any:  # noqa: A001  (Keras's name)
    """Round to the nearest number of so many decimals, halves to the even one."""
    digits = integer(decimals, "round: decimals", None)
    if tensor_of(x, "round").sample_dtype == "int32" and digits >= 0:
        return x
    if not digits:
        return Function("round", {})(tensor_of(x, "round"))
    if not -30 <= digits <= 30:
        raise ValueError(f"round: decimals must be -30 to 30, got {digits}")
    return Function("round_to", {"factor": 10.0**digits})(tensor_of(x, "round"))


@documented
def deg2rad(x: Any) -> Any:
    """Convert degrees to radians."""
    return multiply(x, math.pi / 180)


@documented
def rad2deg(x: Any) -> Any:
    """Convert radians to degrees."""
    return multiply(x, 180 / math.pi)


@documented
def nan_to_num(
    x: Any, nan: float = 0.0, posinf: float | None = None, neginf: float | None = None
) -> Any:
    """Replace NaN and infinite numbers; their gradient is 0."""
    most = float(np.finfo(np.float32).max)
    given = {
        "nan": constant(nan, "nan_to_num: nan"),
        "posinf": most if posinf is None else constant(posinf, "nan_to_num: posinf"),
        "neginf": -most if neginf is None else constant(neginf, "nan_to_num: neginf"),
    }
    x = tensor_of(x, "nan_to_num")
    if x.sample_dtype == "int32":
        return x
    return Function("replace_nonfinite", given)(x)


@documented
def isclose(
    x1: Any,
    x2: Any,
    rtol: float = 1e-5,
    atol: float = 1e-8,
    equal_nan: bool = False,
) -> Any:
    """Return 1 where ``abs(x1 - x2) <= atol + rtol * abs(x2)``, else 0."""
    given = {
        "rtol": constant(rtol, "isclose: rtol"),
        "atol": constant(atol, "isclose: atol"),
        "equal_nan": bool(equal_nan),
    }
    return combined("is_close", [x1, x2], given)


@documented
def real(x: Any) -> Any:
    """Return x: all numbers are real."""
    return tensor_of(x, "real")


conj = conjugate = copy = real


@documented
def imag(x: Any) -> Any:
    """Return zeros: all numbers are real."""
    return Filled(0.0)(tensor_of(x, "imag"))


@documented
def isreal(x: Any) -> Any:
    """Return ones: all numbers are real."""
    return Filled(1.0)(tensor_of(x, "isreal"))


@documented
def angle(x: Any) -> Any:
    """Return the angle of each real number: pi below 0, else 0."""
    return where(less(x, 0.0), math.pi, multiply(x, 0.0))


@documented
def saturate_cast(x: Any, dtype: str) -> Any:
    """Convert to another dtype, of which numbers out of range become the bounds."""
    if dtype != "int32":
        return cast(x, dtype)
    # The largest float32 below 2**31.
    return cast(clip(nan_to_num(x), -(2.0**31), 2.0**31 - 128), dtype)


@documented
def stop_gradient(variable: Any) -> Any:
    """Return the tensor as a constant: no gradient flows through it."""
    return Function("stop_gradient", {})(tensor_of(variable, "stop_gradient"))


@documented
def ldexp(x1: Any, x2: Any) -> Any:
    """Return ``x1 * 2**x2``."""
    factor = exp2(x2) if isinstance(x2, SymbolicTensor) else np.exp2(x2)
    return multiply(x1, factor)


# Integers


def _of_integers(name: str, op: str, x: Any, y: Any) -> Any:
    """Return an element-wise op of integers, after broadcasting."""
    if not isinstance(x, SymbolicTensor) and not isinstance(y, SymbolicTensor):
        raise TypeError(f"{name} needs a symbolic tensor, got {x!r} and {y!r}")
    tensors = [as_tensor(each, name) for each in (x, y)]
    for each in tensors:
        if each.sample_dtype != "int32":
            raise TypeError(
                f"{name} takes integers in int32, got {each.sample_dtype}: use ops.cast"
            )
    return joined(op, tensors)


@documented
def bitwise_and(x: Any, y: Any) -> Any:
    """Return the bits that both integers have."""
    return _of_integers("bitwise_and", "bitwise_and", x, y)


@documented
def bitwise_or(x: Any, y: Any) -> Any:
    """Return the bits that one of two integers has."""
    return _of_integers("bitwise_or", "bitwise_or", x, y)


@documented
def bitwise_xor(x: Any, y: Any) -> Any:
    """Return the bits that exactly one of two integers has."""
    return _of_integers("bitwise_xor", "bitwise_xor", x, y)


@documented
def bitwise_not(x: Any) -> Any:
    """Return the bits that an integer does not have."""
    return _of_integers("bitwise_not", "bitwise_xor", x, -1)


bitwise_invert = bitwise_not


@documented
def left_shift(x: Any, y: Any) -> Any:
    """Return integers with their bits moved up by 0 to 31 places; otherwise 0."""
    return _of_integers("left_shift", "left_shift", x, y)


@documented
def right_shift(x: Any, y: Any) -> Any:
    """Return integers with their bits moved down; the sign is kept."""
    return _of_integers("right_shift", "right_shift", x, y)


bitwise_left_shift, bitwise_right_shift = left_shift, right_shift


@documented
def gcd(x1: Any, x2: Any) -> Any:
    """Return the greatest common divisors of integers."""
    return _of_integers("gcd", "greatest_common_divisor", x1, x2)


@documented
def lcm(x1: Any, x2: Any) -> Any:
    """Return the least common multiples of integers."""
    return _of_integers("lcm", "least_common_multiple", x1, x2)


@documented
def nextafter(x1: Any, x2: Any) -> Any:
    """Return the float32 next to x1 in the direction of x2; it has no gradient."""
    return combined("next_after", [x1, x2])
