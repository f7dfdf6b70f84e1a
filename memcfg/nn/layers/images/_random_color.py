"""`RandomContrast` and `RandomBrightness`: images whose values vary."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from memcfg.nn.layers._layer import OPERATIONS
from memcfg.nn.layers._merge import broadcast
from memcfg.nn.layers.images._image_layer import (
    _ImageLayer,
    drawn,
    factor_of,
    floats,
    traced,
    value_range_of,
)
from memcfg.nn.layers.images._random_flip import uniform

if TYPE_CHECKING:
    from collections.abc import Sequence

    from memcfg.nn.layers._layer import Scope


class _ColorLayer(_ImageLayer):
    """The base of layers that change the values of images, not of masks."""

    __slots__ = ("value_range",)

    value_range: tuple[float, float]

    def _transform_masks(
        self, masks: np.ndarray, transformation: Any, *, training: bool
    ) -> np.ndarray:
        del transformation, training
        return masks

    def _uniform(
        self, data: Any, bounds: tuple[float, float], seed: int | None
    ) -> np.ndarray:
        """Draw a number for each image, of shape (..., 1, 1, 1)."""
        shape = (*np.shape(data)[:-3], 1, 1, 1)
        numbers = self._generator(seed).uniform(*bounds, shape)
        return np.asarray(numbers, np.float32)

    def _factors(self, scope: Scope, x: int, bounds: tuple[float, float]) -> int:
        """Append a number for each image, broadcast to the images."""
        numbers = uniform(scope, self._seed, scope.builder.shape(x)[0])
        attributes = {"factor": bounds[1] - bounds[0], "term": bounds[0]}
        (numbers,) = scope.apply("affine", (numbers,), attributes)
        return broadcast(scope, (numbers, x))[0]

    def _change(self, images: Any, *uniform: Any) -> Any:
        """Return symbolic images that uniform numbers of shape (n, 1, 1, 1) vary."""
        raise NotImplementedError

    def _varied(self, scope: Scope, x: int, count: int) -> int:
        """Append `_change` with so many uniform numbers when training."""
        if not scope.training or scope.step is None:
            return x
        samples = scope.builder.shape(x)[0]

        def change(images: Any, *uniform: Any) -> Any:
            shape = (samples, 1, 1, 1)
            return self._change(
                images, *(OPERATIONS["reshape"](each, shape) for each in uniform)
            )

        return traced(scope, change, (x, *drawn(scope, self._seed, samples, count)))

    def _clipped(self, scope: Scope, x: int) -> int:
        low, high = self.value_range
        return scope.apply("clip", (x,), {"low": low, "high": high})[0]


class RandomContrast(_ColorLayer):
    """Change the contrast of images at random while training.

    ``y = (x - mean) * factor + mean``, with the mean of each channel of an image.

    Parameters
    ----------
    factor : float or (float, float)
        The factor lies between ``1 - lower`` and ``1 + upper``; one number is `upper`,
        and `lower` is 0, as in Keras.
    value_range : (float, float), default (0, 255)
        The range to which results are clipped.
    seed : int, optional
        The seed, by default drawn from `set_random_seed`'s sequence.
    data_format : str, optional
        Must be ``"channels_last"`` or None.
    name : str, optional
        The name, unique within a model.

    Raises
    ------
    TypeError, ValueError
        If an argument has the wrong type or is out of range.
    """

    __slots__ = ("factor",)

    def __init__(
        self,
        factor: Any,
        value_range: Any = (0, 255),
        seed: int | None = None,
        data_format: str | None = None,
        *,
        name: str | None = None,
    ) -> None:
        self.factor = factor_of(factor, "RandomContrast: factor", 0.0)
        self.value_range = value_range_of(value_range, "RandomContrast: value_range")
        self._begin(name, data_format, seed)

    @property
    def _bounds(self) -> tuple[float, float]:
        return 1 - self.factor[0], 1 + self.factor[1]

    def get_random_transformation(
        self, data: Any, training: bool = True, seed: int | None = None
    ) -> dict[str, Any]:
        """Draw factors."""
        if not training:
            shape = (*np.shape(data)[:-3], 1, 1, 1)
            return {"contrast_factor": np.zeros(shape, np.float32)}
        return {"contrast_factor": self._uniform(data, self._bounds, seed)}

    def transform_images(
        self, images: Any, transformation: Any, training: bool = True
    ) -> np.ndarray:
        """Change the contrast."""
        result = floats(images)
        if not training:
            return result
        mean = result.mean(axis=(-3, -2), keepdims=True)
        factor = np.asarray(transformation["contrast_factor"], np.float32)
        low, high = self.value_range
        changed: np.ndarray = np.clip((result - mean) * factor + mean, low, high)
        return changed

    def trace(self, scope: Scope, inputs: Sequence[int]) -> int:
        """Append the ops when training, else nothing."""
        (x,) = inputs
        if not scope.training or scope.step is None:
            return x
        batch, *_, channels = scope.builder.shape(x)
        (mean,) = scope.apply("global_average_pool2d", (x,))
        shape = {"shape": (batch, 1, 1, channels)}
        (mean,) = scope.apply("reshape", (mean,), shape)
        mean = broadcast(scope, (mean, x))[0]
        (y,) = scope.apply("subtract", (x, mean))
        (y,) = scope.apply("multiply", (y, self._factors(scope, x, self._bounds)))
        (y,) = scope.apply("add", (y, mean))
        return self._clipped(scope, y)


class RandomBrightness(_ColorLayer):
    """Change the brightness of images at random while training.

    Parameters
    ----------
    factor : float or (float, float)
        The largest change either way, or its range, as a fraction of the value range.
    value_range : (float, float), default (0, 255)
        The range of values, to which results are clipped.
    seed : int, optional
        The seed, by default drawn from `set_random_seed`'s sequence.
    data_format : str, optional
        Must be ``"channels_last"`` or None.
    name : str, optional
        The name, unique within a model.

    Raises
    ------
    TypeError, ValueError
        If an argument has the wrong type or is out of range.
    """

    __slots__ = ("factor",)

    def __init__(
        self,
        factor: Any,
        value_range: Any = (0, 255),
        seed: int | None = None,
        data_format: str | None = None,
        *,
        name: str | None = None,
    ) -> None:
        self.factor = factor_of(factor, "RandomBrightness: factor")
        self.value_range = value_range_of(value_range, "RandomBrightness: value_range")
        self._begin(name, data_format, seed)

    @property
    def _bounds(self) -> tuple[float, float]:
        size = self.value_range[1] - self.value_range[0]
        return self.factor[0] * size, self.factor[1] * size

    def get_random_transformation(
        self, data: Any, training: bool = True, seed: int | None = None
    ) -> dict[str, Any]:
        """Draw changes."""
        if not training:
            shape = (*np.shape(data)[:-3], 1, 1, 1)
            return {"rgb_delta": np.zeros(shape, np.float32)}
        return {"rgb_delta": self._uniform(data, self._bounds, seed)}

    def transform_images(
        self, images: Any, transformation: Any, training: bool = True
    ) -> np.ndarray:
        """Change the brightness."""
        result = floats(images)
        if not training:
            return result
        delta = np.asarray(transformation["rgb_delta"], np.float32)
        low, high = self.value_range
        changed: np.ndarray = np.clip(result + delta, low, high)
        return changed

    def trace(self, scope: Scope, inputs: Sequence[int]) -> int:
        """Append the ops when training, else nothing."""
        (x,) = inputs
        if not scope.training or scope.step is None:
            return x
        delta = self._factors(scope, x, self._bounds)
        (y,) = scope.apply("add", (x, delta))
        return self._clipped(scope, y)
