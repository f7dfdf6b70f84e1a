"""Ops that compute each element from those at its place, one line each."""

from __future__ import annotations

from memcfg.ops._expression import maximum, minimum, select
from memcfg.ops._formula import elementwise

__all__: list[str] = []

elementwise("add", lambda a, b: a + b)
elementwise("subtract", lambda a, b: a - b)
elementwise("multiply", lambda a, b: a * b)
elementwise("divide", lambda a, b: a / b)
elementwise("maximum", maximum)
elementwise("minimum", minimum)
elementwise("affine", lambda x, *, factor, term: x * factor + term)
elementwise("scale", lambda x, by: x * by, scalars=("by",))

elementwise("choose", lambda mask, a, b: select(mask > 0, a, b))
elementwise("dual_product", lambda a, b, c, d: a * b + c * d)
elementwise("mix", lambda part, a, b: part * a + (1 - part) * b)
