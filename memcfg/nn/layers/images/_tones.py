"""`Solarization`, `RandomPosterization`, `AutoContrast` and `RandomSharpness`."""

from __future__ import annotations

from typing import Any

import numpy as np

from memcfg.nn._argument_checks import integer, real
from memcfg.nn.layers.images._image_layer import (
    Range,
    factor_of,
    floats,
    scaled,
    value_range_of,
)
from memcfg.nn.layers.images._random_color import _ColorLayer
from memcfg.nn.layers.images._random_tint import _TintLayer

_BYTES = (0.0, 255.0)
_BITS = 8  # of a channel


def _up_to(value: Any, what: str) -> Range:
    """Return a range that starts at 0, or the given one."""
    if isinstance(value, tuple | list):
        return factor_of(value, what, 0.0)
    return factor_of((0.0, real(value, what)), what, 0.0)


class Solarization(_ColorLayer):
    """Invert values from a threshold on, after an addition, at random, on arrays.

    Both are drawn for each image.

    Parameters
    ----------
    addition_factor, threshold_factor : float or (float, float), default 0.0
        The range of the addition and of the threshold as a fraction of the value range,
        or its upper bound, in ``[0, 1]``.
    value_range : (float, float), default (0, 255)
        The range of values.
    seed : int, optional
        The seed, by default drawn from `set_random_seed`'s sequence.
    data_format : str, optional
        Must be ``"channels_last"`` or None.
    name : str, optional
        The name.

    Raises
    ------
    TypeError, ValueError
        If an argument has the wrong type or is out of range.
    """

    __slots__ = ("addition_factor", "threshold_factor")

    def __init__(
        self,
        addition_factor: Any = 0.0,
        threshold_factor: Any = 0.0,
        value_range: Any = (0, 255),
        seed: int | None = None,
        *,
        data_format: str | None = None,
        name: str | None = None,
    ) -> None:
        kind = "Solarization"
        self.addition_factor = _up_to(addition_factor, f"{kind}: addition_factor")
        self.threshold_factor = _up_to(threshold_factor, f"{kind}: threshold_factor")
        self.value_range = value_range_of(value_range, f"{kind}: value_range")
        self._begin(name, data_format, seed)

    def get_random_transformation(
        self, data: Any, training: bool = True, seed: int | None = None
    ) -> dict[str, Any] | None:
        """Draw additions and thresholds between 0 and 255."""
        if not training:
            return None
        generator = self._generator(seed)
        shape = (*np.shape(data)[:-3], 1, 1, 1)
        bounds = {
            "additions": self.addition_factor,
            "thresholds": self.threshold_factor,
        }
        return {
            name: np.float32(255 * generator.uniform(*each, shape))
            for name, each in bounds.items()
        }

    def transform_images(
        self, images: Any, transformation: Any, training: bool = True
    ) -> np.ndarray:
        """Add and invert."""
        result = floats(images)
        if not training or transformation is None:
            return result
        values = scaled(result, self.value_range, _BYTES) + transformation["additions"]
        values = np.clip(values, *_BYTES)
        inverted = np.where(values < transformation["thresholds"], values, 255 - values)
        return scaled(inverted, _BYTES, self.value_range)


class RandomPosterization(_ColorLayer):
    """Keep the highest bits of the values of images, on arrays.

    Parameters
    ----------
    factor : int or (int, int)
        The range of the number of bits that are kept, which is drawn for each image
        without the upper bound, or that bound alone, from 1 to 8. A range of one number
        is that number.
    value_range : (float, float), default (0, 255)
        The range of values, which has 256 levels.
    data_format : str, optional
        Must be ``"channels_last"`` or None.
    seed : int, optional
        The seed, by default drawn from `set_random_seed`'s sequence.
    name : str, optional
        The name.

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
        data_format: str | None = None,
        seed: int | None = None,
        *,
        name: str | None = None,
    ) -> None:
        what = "RandomPosterization: factor"
        several = factor if isinstance(factor, tuple | list) else (1, factor)
        if len(several) != 2:
            raise ValueError(f"{what} is one number or two, not {factor!r}")
        low, high = sorted(integer(each, what) for each in several)
        if high > _BITS:
            raise ValueError(f"{what} must be in [1, {_BITS}], not {factor!r}")
        self.factor = low, high
        kind = "RandomPosterization"
        self.value_range = value_range_of(value_range, f"{kind}: value_range")
        self._begin(name, data_format, seed)

    def get_random_transformation(
        self, data: Any, training: bool = True, seed: int | None = None
    ) -> dict[str, Any] | None:
        """Draw the numbers of bits that become 0."""
        if not training:
            return None
        low, high = self.factor
        shape = np.shape(data)[:-3] or (1,)
        kept = self._generator(seed).integers(low, max(high, low + 1), shape)
        return {"shift_factor": np.uint8(_BITS - kept)}

    def transform_images(
        self, images: Any, transformation: Any, training: bool = True
    ) -> np.ndarray:
        """Set bits to 0."""
        result = floats(images)
        if not training or transformation is None:
            return result
        shape = (*result.shape[:-3], 1, 1, 1)
        shift = np.reshape(transformation["shift_factor"], shape).astype(np.uint16)
        levels = scaled(result, self.value_range, _BYTES).astype(np.uint8)
        coarse = (levels.astype(np.uint16) >> shift) << shift
        return scaled(coarse.astype(np.float32), _BYTES, self.value_range)


class AutoContrast(_ColorLayer):
    """Stretch the values of each channel of an image to the whole range, on arrays.

    Parameters
    ----------
    value_range : (float, float), default (0, 255)
        The range of values.
    data_format : str, optional
        Must be ``"channels_last"`` or None.
    name : str, optional
        The name.

    Raises
    ------
    TypeError, ValueError
        If an argument has the wrong type or is out of range.
    """

    __slots__ = ()

    def __init__(
        self,
        value_range: Any = (0, 255),
        *,
        data_format: str | None = None,
        name: str | None = None,
    ) -> None:
        self.value_range = value_range_of(value_range, "AutoContrast: value_range")
        self._begin(name, data_format)

    def transform_images(
        self, images: Any, transformation: Any = None, training: bool = True
    ) -> np.ndarray:
        """Stretch values; a channel of one value stays as it is."""
        del transformation, training
        result = floats(images)
        low = result.min((-3, -2), keepdims=True)
        spread = result.max((-3, -2), keepdims=True) - low
        least, most = self.value_range
        with np.errstate(divide="ignore", invalid="ignore"):
            stretched = (result - low) * ((most - least) / spread) + least
        stretched = np.clip(stretched, least, most).astype(np.float32)
        return np.where(spread > 0, stretched, result)


class RandomSharpness(_TintLayer):
    """Sharpen or blur images at random, on arrays.

    ``y = x + (1 - 2 f) * (smooth(x) - x)``, with f drawn for each image.

    Parameters
    ----------
    factor : float or (float, float)
        The range of f within ``[0, 1]``, or its upper bound: 0 blurs, 0.5 changes
        nothing, 1 sharpens.
    value_range : (float, float), default (0, 255)
        The range to which results are clipped.
    data_format : str, optional
        Must be ``"channels_last"`` or None.
    seed : int, optional
        The seed, by default drawn from `set_random_seed`'s sequence.
    name : str, optional
        The name.

    Raises
    ------
    TypeError, ValueError
        If an argument has the wrong type or is out of range.
    """

    __slots__ = ()

    _least = 0.0

    def _changed(self, images: np.ndarray, factor: np.ndarray) -> np.ndarray:
        """Mix images with the mean of each pixel and its neighbours, 0 outside."""
        height, width = images.shape[-3:-1]
        sides = [(0, 0)] * (images.ndim - 3) + [(1, 1), (1, 1), (0, 0)]
        wide = np.pad(images, sides)
        around = sum(
            wide[..., row : row + height, column : column + width, :]
            for row in range(3)
            for column in range(3)
        )
        smooth = (around + 4 * images) / np.float32(13)
        mixed = images + (1 - 2 * factor) * (smooth - images)
        result: np.ndarray = np.clip(mixed, *self.value_range)
        return result
