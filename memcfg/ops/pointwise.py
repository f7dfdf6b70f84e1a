"""Element-wise ops, one line each."""

from __future__ import annotations

from memcfg.ops._expression import (
    clip,
    equal,
    log,
    log1p,
    maximum,
    minimum,
    select,
    sqrt,
)
from memcfg.ops._formula import elementwise

__all__: list[str] = []

elementwise("add", lambda a, b: a + b)
elementwise("subtract", lambda a, b: a - b)
elementwise("multiply", lambda a, b: a * b)
elementwise("divide", lambda a, b: a / b)
elementwise("maximum", maximum)
elementwise("minimum", minimum)
elementwise("absolute", lambda x: abs(x))
elementwise("stop_gradient", lambda x: x, constants=("x",))
elementwise("less", lambda a, b: select(a < b, 1, 0))
elementwise("less_equal", lambda a, b: select(a <= b, 1, 0))
elementwise("equal", lambda a, b: select(equal(a, b), 1, 0))
elementwise("not_equal", lambda a, b: select(equal(a, b), 0, 1))
elementwise("where", lambda mask, a, b: select(equal(mask, 0), b, a))

# Of an array and an attribute, which may be infinite or NaN.
elementwise("maximum_number", lambda x, *, number: maximum(x, number))
elementwise("minimum_number", lambda x, *, number: minimum(x, number))
elementwise("less_number", lambda x, *, number: select(x < number, 1, 0))
elementwise("less_equal_number", lambda x, *, number: select(x <= number, 1, 0))
elementwise("greater_number", lambda x, *, number: select(x > number, 1, 0))
elementwise("greater_equal_number", lambda x, *, number: select(x >= number, 1, 0))
elementwise("equal_number", lambda x, *, number: select(equal(x, number), 1, 0))
elementwise("not_equal_number", lambda x, *, number: select(equal(x, number), 0, 1))
elementwise("unequal", lambda x, *, to: select(equal(x, to), 0, 1))
elementwise("where_or", lambda mask, x, *, other: select(equal(mask, 0), other, x))
elementwise("where_not", lambda mask, x, *, value: select(equal(mask, 0), x, value))
elementwise(
    "where_numbers", lambda mask, *, value, other: select(equal(mask, 0), other, value)
)
elementwise("divide_number", lambda x, *, number: x / number)
elementwise("affine", lambda x, *, factor, term: x * factor + term)
elementwise("quotient", lambda x, *, number: number / x)
elementwise("power", lambda x, *, exponent: x**exponent)
elementwise("logarithm", lambda x, *, term: log(x + term))
elementwise("log1p", lambda x: log1p(x))
elementwise("root", lambda x, *, term: sqrt(x + term))
elementwise("inverse_root", lambda x, *, least: 1 / sqrt(maximum(x, least)))
elementwise("reciprocal_root", lambda x: 1 / sqrt(x))
elementwise("scale", lambda x, by: x * by, scalars=("by",))

elementwise("clip", lambda x, *, low, high: clip(x, low, high))
elementwise("masked", lambda mask, x: select(mask > 0, x, 0))
elementwise("choose", lambda mask, a, b: select(mask > 0, a, b))
elementwise("dual_product", lambda a, b, c, d: a * b + c * d)
elementwise("mix", lambda part, a, b: part * a + (1 - part) * b)
