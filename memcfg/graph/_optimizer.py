"""Update ops: they overwrite state, once a step, and are never replayed.

SGD with momentum as Keras writes it (Nesterov: Sutskever et al., ICML 2013); Adam:
Kingma & Ba, ICLR 2015.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from memcfg.graph._definition import (
    Attributes,
    Definition,
    Infer,
    Spec,
    require,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["DEFINITIONS"]


def _state(places: Sequence[int], same: Sequence[int]) -> Infer:
    """Infer the new values of the state at `places`; `same` must share its shape."""

    def infer(inputs: Sequence[Spec], _: Attributes) -> Sequence[Spec]:
        for place in same:
            require(
                inputs[place].shape == inputs[0].shape,
                f"update: {inputs[place].shape} for state {inputs[0].shape}",
            )
        return [Spec(inputs[place].shape, suffix=f"new{place}") for place in places]

    return infer


DEFINITIONS = (
    Definition("moving_average", 2, _state((0,), (1,)), ((0, 0),), replayable=False),
    Definition("sgd", 3, _state((0,), (1,)), ((0, 0),), replayable=False),
    Definition(
        "sgd_momentum",
        4,
        _state((0, 2), (1, 2)),
        ((0, 0), (2, 1)),
        replayable=False,
    ),
    Definition(
        "adam",
        6,
        _state((0, 2, 3), (1, 2, 3)),
        ((0, 0), (2, 1), (3, 2)),
        replayable=False,
    ),
)
