"""Ops that compute each element from those at its place, one line each."""

from __future__ import annotations

from memcfg.ops._expression import equal, exp, log, maximum, minimum, select, sqrt
from memcfg.ops._formula import elementwise

__all__: list[str] = []

elementwise("add", lambda a, b: a + b)
elementwise("subtract", lambda a, b: a - b)
elementwise("multiply", lambda a, b: a * b)
elementwise("divide", lambda a, b: a / b)
elementwise("maximum", maximum)
elementwise("minimum", minimum)
elementwise("affine", lambda x, *, factor, term: x * factor + term)
elementwise("quotient", lambda x, *, number: number / x)
elementwise("power", lambda x, *, exponent: exp(exponent * log(x)))
elementwise("logarithm", lambda x, *, term: log(x + term))
elementwise("root", lambda x, *, term: sqrt(x + term))
elementwise("inverse_root", lambda x, *, least: 1 / sqrt(maximum(x, least)))
elementwise("scale", lambda x, by: x * by, scalars=("by",))

elementwise("unequal", lambda x, *, to: select(equal(x, to), 0, 1))
elementwise("masked", lambda mask, x: select(mask > 0, x, 0))
elementwise("choose", lambda mask, a, b: select(mask > 0, a, b))
elementwise("dual_product", lambda a, b, c, d: a * b + c * d)
elementwise("mix", lambda part, a, b: part * a + (1 - part) * b)
