"""Update ops: they overwrite state, once a step, and are never replayed.

SGD with momentum as Keras writes it (Nesterov: Sutskever et al., ICML 2013); Adam:
Kingma & Ba, ICLR 2015.
"""

from __future__ import annotations

from math import sqrt
from typing import TYPE_CHECKING

import numpy as np

from memcfg.ops._op_type import (
    Arrays,
    Attributes,
    OpType,
    Spec,
    register,
    require,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from memcfg.ops._op_type import Infer

__all__: list[str] = []


def _state(places: Sequence[int], same: Sequence[int]) -> Infer:
    """Infer the new values of the state at `places`; `same` must share its shape."""

    def infer(inputs: Sequence[Spec], _: Attributes) -> Sequence[Spec]:
        for place in same:
            require(
                inputs[place].shape == inputs[0].shape,
                f"update: {inputs[place].shape} for state {inputs[0].shape}",
            )
        return [
            Spec(inputs[place].shape, inputs[place].dtype, suffix=f"new{place}")
            for place in places
        ]

    return infer


def _moving_average(a: Attributes, inputs: Arrays, outputs: Arrays) -> None:
    moving, value = inputs
    momentum = a["momentum"]
    outputs[0][...] = momentum * moving + (1 - momentum) * value


def _sgd(_: Attributes, inputs: Arrays, outputs: Arrays) -> None:
    w, g, rate = inputs
    outputs[0][...] = w - rate * g


def _sgd_momentum(a: Attributes, inputs: Arrays, outputs: Arrays) -> None:
    w, g, v, rate = inputs
    momentum = a["momentum"]
    velocity = momentum * v - rate * g
    step = momentum * velocity - rate * g if a["nesterov"] else velocity
    outputs[0][...] = w + step
    outputs[1][...] = velocity


def _adam(a: Attributes, inputs: Arrays, outputs: Arrays) -> None:
    w, g, m, v, rate, step = inputs
    t = int(step) + 1
    alpha = float(rate) * sqrt(1 - a["beta_2"] ** t) / (1 - a["beta_1"] ** t)
    first = m + (g - m) * (1 - a["beta_1"])
    second = v + (g * g - v) * (1 - a["beta_2"])
    outputs[0][...] = w - alpha * first / (np.sqrt(second) + a["epsilon"])
    outputs[1][...] = first
    outputs[2][...] = second


register(
    OpType(
        "moving_average",
        2,
        _state((0,), (1,)),
        _moving_average,
        ((0, 0),),
        replayable=False,
    ),
    OpType("sgd", 3, _state((0,), (1,)), _sgd, ((0, 0),), replayable=False),
    OpType(
        "sgd_momentum",
        4,
        _state((0, 2), (1, 2)),
        _sgd_momentum,
        ((0, 0), (2, 1)),
        replayable=False,
    ),
    OpType(
        "adam",
        6,
        _state((0, 2, 3), (1, 2, 3)),
        _adam,
        ((0, 0), (2, 1), (3, 2)),
        replayable=False,
    ),
)
