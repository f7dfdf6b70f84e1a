"""Element-wise terms of losses and metrics, of a target t and an output p.

As in Keras, probabilities are clipped to ``[EPSILON, 1 - EPSILON]``, with zero gradient
outside. Terms of logits, or of log-probabilities, are not clipped.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, TypeAlias

from memcfg.ops._expression import (
    Expression,
    clip,
    equal,
    exp,
    expm1,
    log,
    log1p,
    maximum,
    select,
    sigmoid,
    sqrt,
)
from memcfg.ops._formula import elementwise

if TYPE_CHECKING:
    _Setting: TypeAlias = Expression | float  # an attribute, and its default

__all__: list[str] = []

EPSILON = 1e-7


def _clip(p: Expression, most: float = 1 - EPSILON) -> Expression:
    return clip(p, EPSILON, most)


def _huber(t: Expression, p: Expression, *, delta: _Setting = 1.0) -> Expression:
    error = p - t
    size = abs(error)
    return select(
        size <= delta, 0.5 * (error * error), delta * size - 0.5 * delta * delta
    )


def _log_cosh(t: Expression, p: Expression) -> Expression:
    size = abs(p - t)
    return size + log1p(exp(-2 * size)) - math.log(2)


def _squared_log_error(t: Expression, p: Expression) -> Expression:
    difference = log1p(maximum(p, EPSILON)) - log1p(maximum(t, EPSILON))
    return difference * difference


def _smooth(t: Expression, smoothing: _Setting) -> Expression:
    return t * (1 - smoothing) + 0.5 * smoothing


def _binary(t: Expression, p: Expression) -> Expression:
    p = _clip(p)
    return -(t * log(p) + (1 - t) * log(1 - p))


def _binary_logits(
    t: Expression, x: Expression, *, smoothing: _Setting = 0.0
) -> Expression:
    return maximum(x, 0) - x * _smooth(t, smoothing) + log1p(exp(-abs(x)))


def _focus(miss: Expression, gamma: _Setting) -> Expression:
    """Return miss**gamma; the bound keeps the derivative finite for gamma < 1."""
    return maximum(miss, 1e-30) ** gamma


def _balance(t: Expression, alpha: _Setting, balanced: bool) -> Expression | float:
    return t * alpha + (1 - t) * (1 - alpha) if balanced else 1


def _binary_focal(
    t: Expression,
    p: Expression,
    *,
    smoothing: _Setting = 0.0,
    alpha: _Setting = 0.25,
    gamma: _Setting = 2.0,
    balanced: bool = False,
) -> Expression:
    t = _smooth(t, smoothing)
    miss = t * (1 - p) + (1 - t) * p
    return _balance(t, alpha, balanced) * (_focus(miss, gamma) * _binary(t, p))


def _binary_focal_logits(
    t: Expression,
    x: Expression,
    *,
    smoothing: _Setting = 0.0,
    alpha: _Setting = 0.25,
    gamma: _Setting = 2.0,
    balanced: bool = False,
) -> Expression:
    t = _smooth(t, smoothing)
    miss = t * sigmoid(-x) + (1 - t) * sigmoid(x)
    value = _focus(miss, gamma) * _binary_logits(t, x)
    return _balance(t, alpha, balanced) * value


def _categorical(
    t: Expression,
    p: Expression,
    total: Expression,
    *,
    smoothing: _Setting = 0.0,
    share: _Setting = 0.0,
) -> Expression:
    """Return the term of one class; `share` is smoothing / number of classes."""
    return -(t * (1 - smoothing) + share) * log(_clip(p / total))


def _categorical_focal(
    t: Expression,
    p: Expression,
    total: Expression,
    *,
    smoothing: _Setting = 0.0,
    share: _Setting = 0.0,
    alpha: _Setting = 0.25,
    gamma: _Setting = 2.0,
) -> Expression:
    p = _clip(p / total)
    return _focus(1 - p, gamma) * alpha * (-(t * (1 - smoothing) + share) * log(p))


def _categorical_focal_log(
    t: Expression,
    p: Expression,
    *,
    smoothing: _Setting = 0.0,
    share: _Setting = 0.0,
    alpha: _Setting = 0.25,
    gamma: _Setting = 2.0,
) -> Expression:
    weight = t * (1 - smoothing) + share
    return _focus(-expm1(p), gamma) * alpha * -(weight * p)


def _kl(t: Expression, p: Expression) -> Expression:
    t, p = _clip(t, 1), _clip(p, 1)
    return t * log(t / p)


def _kl_log(t: Expression, p: Expression) -> Expression:
    return t * (log(_clip(t, 1)) - p)


def _signed(t: Expression, odd: Expression) -> Expression:
    """Map targets 0 and 1 to -1 and 1, unless `odd`, the count of others, is not 0."""
    return select(equal(odd, 0), 2 * t - 1, t)


def _hinge(t: Expression, p: Expression, odd: Expression) -> Expression:
    return maximum(1 - _signed(t, odd) * p, 0)


def _above(t: Expression, threshold: _Setting = 0.5) -> Expression:
    return select(t > threshold, 1, 0)


def _cosine(
    dot: Expression, t: Expression, p: Expression, *, factor: _Setting = 1.0
) -> Expression:
    """Divide a scalar product by two norms, given as their squares."""
    lengths = maximum(sqrt(t), EPSILON) * maximum(sqrt(p), EPSILON)
    return factor * dot / lengths


def _tversky(
    hit: Expression,
    t: Expression,
    p: Expression,
    *,
    alpha: _Setting = 0.5,
    beta: _Setting = 0.5,
    epsilon: _Setting = EPSILON,
) -> Expression:
    """Return the Tversky loss of the sums of t * p, of t and of p."""
    return 1 - hit / (hit + (t - hit) * alpha + (p - hit) * beta + epsilon)


elementwise("squared_error", lambda t, p: (p - t) ** 2)
elementwise("absolute_error", lambda t, p: abs(p - t))
elementwise(
    "percentage_error",
    lambda t, p: 100 * abs((p - t) / maximum(abs(t), EPSILON)),
)
elementwise("squared_log_error", _squared_log_error)
elementwise("huber", _huber)
elementwise("log_cosh", _log_cosh)
elementwise("poisson", lambda t, p: p - t * log(p + EPSILON))
elementwise("kl_divergence", _kl)
elementwise("kl_divergence_log", _kl_log)  # of log-probabilities
elementwise(
    "binary_cross_entropy",
    lambda t, p, *, smoothing=0.0: _binary(_smooth(t, smoothing), p),
)
elementwise("binary_cross_entropy_logits", _binary_logits)
elementwise("binary_focal_cross_entropy", _binary_focal)
elementwise("binary_focal_cross_entropy_logits", _binary_focal_logits)
elementwise("categorical_cross_entropy", _categorical)
elementwise("categorical_focal_cross_entropy", _categorical_focal)
elementwise("categorical_focal_cross_entropy_log", _categorical_focal_log)
elementwise(
    "categorical_cross_entropy_log",  # of log-probabilities
    lambda t, p, *, smoothing=0.0, share=0.0: -(t * (1 - smoothing) + share) * p,
)
elementwise("agreement", lambda t, p: select(equal(t, p), 1, 0))
elementwise(
    "binary_agreement",
    lambda t, p, *, threshold=0.5: select(equal(t, _above(p, threshold)), 1, 0),
)
elementwise("above", lambda t, *, threshold=0.5: _above(t, threshold), constants=("t",))
elementwise(
    "is_most",  # a maximum, unless it is only a rounding error
    lambda t, most: select(t < most, 0, _above(abs(t), 1e-9)),
    constants=("t", "most"),
)
elementwise(
    "differs",
    lambda t, *, value=0.0: select(equal(t, value), 0, 1),
    constants=("t",),
)
elementwise("odd_target", lambda t: select(equal(t * t, t), 0, 1), constants=("t",))
elementwise("hinge", _hinge, scalars=("odd",), constants=("odd",))
elementwise(
    "squared_hinge",
    lambda t, p, odd: _hinge(t, p, odd) ** 2,
    scalars=("odd",),
    constants=("odd",),
)
elementwise("categorical_hinge_miss", lambda t, p: (1 - t) * p)
elementwise("categorical_hinge", lambda hit, miss: maximum(miss - hit + 1, 0))
elementwise("cosine_similarity", _cosine)
elementwise("tversky", _tversky)
elementwise("divide_no_nan", lambda a, t: select(equal(t, 0), 0, a / t))
elementwise("l1_l2", lambda x, *, l1, l2: l1 * abs(x) + l2 * (x * x))
