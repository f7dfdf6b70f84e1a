"""`RandomFlip`: images that are mirrored or not."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from memcfg._checks import unknown
from memcfg.nn._random import derive_seed
from memcfg.nn.layers._merge import broadcast
from memcfg.nn.layers.images._image_layer import _ImageLayer, floats

if TYPE_CHECKING:
    from collections.abc import Sequence

    from memcfg.nn.layers._layer import Scope

_AXES = {
    "horizontal": (-2,),
    "vertical": (-3,),
    "horizontal_and_vertical": (-2, -3),
}


class RandomFlip(_ImageLayer):
    """Mirror images at random while training.

    Parameters
    ----------
    mode : str, default "horizontal_and_vertical"
        The direction; ``"horizontal"`` exchanges left and right, ``"vertical"`` top and
        bottom. As in Keras, both are exchanged or none.
    seed : int, optional
        The seed, by default drawn from `set_random_seed`'s sequence.
    data_format : str, optional
        Must be ``"channels_last"`` or None.
    name : str, optional
        The name, unique within a model.

    Raises
    ------
    TypeError, ValueError
        If an argument has the wrong type or is unknown.
    """

    __slots__ = ("mode",)

    def __init__(
        self,
        mode: str = "horizontal_and_vertical",
        seed: int | None = None,
        data_format: str | None = None,
        *,
        name: str | None = None,
    ) -> None:
        if mode not in _AXES:
            raise unknown("mode", str(mode), _AXES, "RandomFlip: ")
        self.mode = mode
        self._begin(name, data_format, seed)

    def get_random_transformation(
        self, data: Any, training: bool = True, seed: int | None = None
    ) -> dict[str, Any] | None:
        """Draw which images are mirrored."""
        if not training:
            return None
        shape = np.shape(data)
        drawn = self._generator(seed).random((*shape[:-3], 1, 1, 1))
        return {"flips": drawn <= 0.5, "input_shape": shape}

    def transform_images(
        self, images: Any, transformation: Any, training: bool = True
    ) -> np.ndarray:
        """Mirror images."""
        result = floats(images)
        if not training or transformation is None:
            return result
        flipped = np.flip(result, _AXES[self.mode])
        return np.where(transformation["flips"], flipped, result)

    def trace(self, scope: Scope, inputs: Sequence[int]) -> int:
        """Append the ops when training, else nothing."""
        (x,) = inputs
        if not scope.training or scope.step is None:
            return x
        shape = scope.builder.shape(x)
        axes = tuple(len(shape) + axis for axis in _AXES[self.mode])
        (flipped,) = scope.apply("reverse", (x,), {"axes": axes})
        drawn = uniform(scope, self._seed, shape[0])
        (flips,) = scope.apply("less_equal_number", (drawn,), {"number": 0.5})
        condition, _ = broadcast(scope, (flips, x))
        return scope.apply("where", (condition, flipped, x))[0]


def uniform(scope: Scope, seed: int, samples: int) -> int:
    """Append a number in [0, 1) for each image, of shape (samples, 1, 1, 1)."""
    assert scope.step is not None
    attributes = {"shape": (samples, 1, 1, 1), "key": derive_seed(seed, scope.call)}
    return scope.apply("random_uniform", (scope.step(),), attributes)[0]
