"""Update ops: they overwrite state, once a step, and are never replayed.

SGD with momentum as Keras writes it (Nesterov: Sutskever et al., ICML 2013); Adam:
Kingma & Ba, ICLR 2015.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from memcfg.ops._expression import rounded, sqrt
from memcfg.ops._formula import elementwise

if TYPE_CHECKING:
    from memcfg.ops._expression import Expression

__all__: list[str] = []


def _moving_average(
    moving: Expression, value: Expression, *, momentum: Expression
) -> Expression:
    return momentum * moving + (1 - rounded(momentum)) * value


def _sgd_momentum(
    w: Expression,
    g: Expression,
    v: Expression,
    rate: Expression,
    *,
    momentum: Expression,
    nesterov: bool = False,
) -> tuple[Expression, Expression]:
    velocity = momentum * v - rate * g
    step = momentum * velocity - rate * g if nesterov else velocity
    return w + step, velocity


def _adam(
    w: Expression,
    g: Expression,
    m: Expression,
    v: Expression,
    rate: Expression,
    step: Expression,
    *,
    beta_1: Expression,
    beta_2: Expression,
    epsilon: Expression,
) -> tuple[Expression, Expression, Expression]:
    t = step + 1
    alpha = rate * sqrt(1 - beta_2**t) / (1 - beta_1**t)
    first = m + (g - m) * (1 - beta_1)
    second = v + (g * g - v) * (1 - beta_2)
    return w - alpha * first / (sqrt(second) + epsilon), first, second


elementwise("moving_average", _moving_average, state=("moving",))
elementwise("sgd", lambda w, g, rate: w - rate * g, scalars=("rate",), state=("w",))
elementwise("sgd_momentum", _sgd_momentum, scalars=("rate",), state=("w", "v"))
elementwise("adam", _adam, scalars=("rate", "step"), state=("w", "m", "v"))
