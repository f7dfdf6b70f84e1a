"""The nodes of expressions: NumPy function, C++ code and cost of each.

This is the only table of them. `_native/generate.py` writes the C++ core's table and
the loops of the library's own ops from it; CUDA sources are written from it when an op
is planned.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["CONDITIONS", "NODES", "Node"]


class Node(NamedTuple):
    """A function of one to three numbers.

    `code` is C++ for float and double on both kinds of device, which define the
    functions ``*_of`` and ``blend`` for both types. A *uniform* node has only uniform
    arguments: numbers that are the same for all elements.
    """

    code: str
    numpy: Callable[..., Any]
    flops: int = 1  # per element
    uniform: bool = False

    @property
    def arguments(self) -> int:
        """Number of arguments."""
        return self.code.count("{")


def _erf(x: Any) -> Any:
    return np.vectorize(math.erf, otypes=[np.float64])(x)


def _pow(x: Any, exponent: Any) -> Any:
    """Compute C's `pow`: NumPy would use sqrt for a scalar exponent of 0.5."""
    several = np.ndim(x) > 0 and np.ndim(exponent) == 0
    return np.power(x, np.full_like(x, exponent) if several else exponent)


def _sigmoid(x: Any) -> Any:
    with np.errstate(over="ignore"):  # the quotient is then 0
        return 1 / (1 + np.exp(-x))


CONDITIONS = {
    "less": Node("{0} < {1}", np.less),
    "less_equal": Node("{0} <= {1}", np.less_equal),
    "equal": Node("{0} == {1}", np.equal),
}
NODES = {
    "add": Node("{0} + {1}", np.add),
    "subtract": Node("{0} - {1}", np.subtract),
    "multiply": Node("{0} * {1}", np.multiply),
    "divide": Node("{0} / {1}", np.divide),
    "negate": Node("-{0}", np.negative),
    "absolute": Node("absolute_of({0})", np.absolute),
    "maximum": Node("maximum_of({0}, {1})", np.maximum),
    "minimum": Node("minimum_of({0}, {1})", np.minimum),
    "sqrt": Node("sqrt_of({0})", np.sqrt),
    "exp": Node("exp_of({0})", np.exp, 15),
    "expm1": Node("expm1_of({0})", np.expm1, 40),
    "log": Node("log_of({0})", np.log, 20),
    "log1p": Node("log1p_of({0})", np.log1p, 24),
    "tanh": Node("tanh_of({0})", np.tanh, 30),
    "sigmoid": Node("sigmoid_of({0})", _sigmoid, 18),
    "erf": Node("erf_of({0})", _erf, 40),
    "power": Node("power_of({0}, {1})", _pow, 60),
    "sin": Node("sin_of({0})", np.sin, 30),
    "cos": Node("cos_of({0})", np.cos, 30),
    "atan": Node("atan_of({0})", np.arctan, 25),
    "fmod": Node("fmod_of({0}, {1})", np.fmod, 40),
    "floor": Node("floor_of({0})", np.floor, 4),
    "rounded": Node("rounded_of({0})", np.float32, uniform=True),
    **CONDITIONS,
    "select": Node("blend({0}, {1}, {2})", np.where),
}
