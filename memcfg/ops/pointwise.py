"""Ops that compute each element from those at its place, one line each.

Where ``slope`` is given, backward reads the output instead of the input.
"""

from __future__ import annotations

from memcfg.ops._expression import exp, maximum, minimum, select
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

elementwise("sigmoid", lambda x: 1 / (1 + exp(-x)), slope=lambda y: y * (1 - y))
elementwise(  # NaN stays NaN
    "relu",
    lambda x: select(x < 0, 0, x),
    slope=lambda y: select(y > 0, 1, 0),
)
