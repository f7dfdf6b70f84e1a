"""`RandomHue`, `RandomSaturation`, `RandomInvert`, and layers towards grey."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from memcfg.nn._argument_checks import real
from memcfg.nn.layers._layer import OPERATIONS
from memcfg.nn.layers.images._image_layer import (
    factor_of,
    floats,
    scaled,
    value_range_of,
)
from memcfg.nn.layers.images._random_color import _ColorLayer

if TYPE_CHECKING:
    from collections.abc import Sequence

    from memcfg.nn.layers._layer import Scope

_GREY = np.array([0.2989, 0.5870, 0.1140], np.float32)  # shares of red, green, blue


def _grey(images: np.ndarray, layer: str) -> np.ndarray:
    """Return the brightness of images of three channels, as one channel."""
    if images.shape[-1] != 3:
        raise ValueError(
            f"{layer} takes images of red, green and blue, not of {images.shape[-1]} "
            "channels"
        )
    return (images @ _GREY)[..., None]


def _to_hsv(rgb: np.ndarray, layer: str) -> list[np.ndarray]:
    """Return hue, saturation and value of images with values from 0 to 1."""
    if rgb.shape[-1] != 3:
        raise ValueError(
            f"{layer} takes images of red, green and blue, not of {rgb.shape[-1]} "
            "channels"
        )
    red, green, blue = (rgb[..., i] for i in range(3))
    value = rgb.max(-1)
    spread = value - rgb.min(-1)
    with np.errstate(divide="ignore", invalid="ignore"):
        saturation = np.where(value > 0, spread / value, 0)
        by = 1 / (6 * spread)
        hue = np.where(value == green, by * (blue - red) + 2 / 6, by * (red - green))
        hue = np.where((value != green) & (value != red), hue + 4 / 6, hue)
        hue = np.where(value == red, by * (green - blue), hue)
    hue = np.where(spread > 0, hue, 0)
    return [np.where(hue < 0, hue + 1, hue), saturation, value]


def _to_rgb(hue: np.ndarray, saturation: np.ndarray, value: np.ndarray) -> np.ndarray:
    """Return images of red, green and blue."""
    place = hue * 6
    parts = [np.abs(place - 3) - 1, 2 - np.abs(place - 2), 2 - np.abs(place - 4)]
    shares = np.clip(np.stack(parts, axis=-1), 0, 1)
    saturation = saturation[..., None]
    result: np.ndarray = (1 - saturation + saturation * shares) * value[..., None]
    return result.astype(np.float32)


class _TintLayer(_ColorLayer):
    """The base of layers of colors with a factor for each image."""

    __slots__ = ("factor",)

    factor: tuple[float, float]
    _least: ClassVar[float] = -1.0

    def __init__(
        self,
        factor: Any,
        value_range: Any = (0, 255),
        data_format: str | None = None,
        seed: int | None = None,
        *,
        name: str | None = None,
    ) -> None:
        kind = type(self).__name__
        self.factor = factor_of(factor, f"{kind}: factor", self._least)
        self.value_range = value_range_of(value_range, f"{kind}: value_range")
        self._begin(name, data_format, seed)

    def get_random_transformation(
        self, data: Any, training: bool = True, seed: int | None = None
    ) -> dict[str, Any] | None:
        """Draw a factor for each image."""
        if not training:
            return None
        return {"factor": self._from_uniform(self._uniform(data, self.factor, seed))}

    def _from_uniform(self, factors: np.ndarray) -> np.ndarray:
        """Return the factors of a transformation for uniform numbers."""
        return factors

    def transform_images(
        self, images: Any, transformation: Any, training: bool = True
    ) -> np.ndarray:
        """Change colors."""
        result = floats(images)
        if not training or transformation is None:
            return result
        factor = np.asarray(transformation["factor"], np.float32)
        return self._changed(result, factor.reshape((*result.shape[:-3], 1, 1, 1)))

    def _changed(self, images: np.ndarray, factor: np.ndarray) -> np.ndarray:
        raise NotImplementedError


class _TracedTint(_TintLayer):
    """The base of those that models compute as well."""

    __slots__ = ()

    def trace(self, scope: Scope, inputs: Sequence[int]) -> int:
        """Append the ops when training, else nothing."""
        return self._varied(scope, inputs[0], 1)

    def _between(self, uniform: Any) -> Any:
        """Return symbolic numbers of the range of the factor."""
        lower, upper = self.factor
        return uniform * (upper - lower) + lower

    def _recolored(self, images: Any, change: Any) -> Any:
        """Return symbolic images of which `change` gives a new hue and saturation."""
        low, high = self.value_range
        hsv = OPERATIONS["rgb_to_hsv"]((images - low) / (high - low))
        parts = [hsv[..., i : i + 1] for i in range(3)]
        hsv = OPERATIONS["concatenate"]([*change(*parts[:2]), parts[2]], axis=-1)
        rgb = OPERATIONS["clip"](OPERATIONS["hsv_to_rgb"](hsv), 0.0, 1.0)
        return rgb * (high - low) + low


class RandomHue(_TracedTint):
    """Turn the hue of images at random while training.

    Parameters
    ----------
    factor : float or (float, float)
        In ``[0, 1]``: a hue is turned by up to half of it either way, where 1 is a full
        turn.
    value_range : (float, float), default (0, 255)
        The range of values.
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

    def get_random_transformation(
        self, data: Any, training: bool = True, seed: int | None = None
    ) -> dict[str, Any] | None:
        """Draw a turn for each image."""
        if not training:
            return None
        generator = self._generator(seed)
        shape = (*np.shape(data)[:-3],)
        ways = np.where(generator.random(shape) > 0.5, -1, 1)
        turns = ways * generator.uniform(*self.factor, shape) / 2
        return {"factor": np.atleast_1d(np.float32(turns))}

    def _changed(self, images: np.ndarray, factor: np.ndarray) -> np.ndarray:
        rgb = scaled(images, self.value_range, (0, 1))
        hue, saturation, value = _to_hsv(rgb, "RandomHue")
        turned = _to_rgb((hue + factor[..., 0]) % 1, saturation, value)
        return scaled(np.clip(turned, 0, 1), (0, 1), self.value_range)

    def trace(self, scope: Scope, inputs: Sequence[int]) -> int:
        """Append the ops when training, else nothing."""
        return self._varied(scope, inputs[0], 2)

    def _change(self, images: Any, *uniform: Any) -> Any:
        way, amount = uniform
        turn = OPERATIONS["where"](way > 0.5, -0.5, 0.5) * self._between(amount)

        def turned(hue: Any, saturation: Any) -> tuple[Any, Any]:
            hue = hue + turn
            return hue - OPERATIONS["floor"](hue), saturation

        return self._recolored(images, turned)


class RandomSaturation(_TracedTint):
    """Change the saturation of images at random while training.

    It is multiplied by ``f / (1 - f)``, with f drawn for each image, and is at most 1.

    Parameters
    ----------
    factor : float or (float, float)
        The range of f within ``[0, 1]``, or its upper bound; 0.5 changes nothing.
    value_range : (float, float), default (0, 255)
        The range of values.
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

    def _from_uniform(self, factors: np.ndarray) -> np.ndarray:
        one = factors.reshape(-1)
        result: np.ndarray = one / (1 - one + np.float32(1e-7))
        return result

    def _changed(self, images: np.ndarray, factor: np.ndarray) -> np.ndarray:
        rgb = scaled(images, self.value_range, (0, 1))
        hue, saturation, value = _to_hsv(rgb, "RandomSaturation")
        more = np.clip(saturation * factor[..., 0], 0, 1)
        return scaled(_to_rgb(hue, more, value), (0, 1), self.value_range)

    def _change(self, images: Any, *uniform: Any) -> Any:
        factor = self._between(uniform[0])
        factor = factor / (1 - factor + 1e-7)
        return self._recolored(
            images, lambda hue, s: (hue, OPERATIONS["clip"](s * factor, 0.0, 1.0))
        )


class RandomColorDegeneration(_TracedTint):
    """Mix images with their brightness at random while training.

    Parameters
    ----------
    factor : float or (float, float)
        The range of the share of grey in an image, within ``[-1, 1]``; one number f
        stands for ``(-f, f)``, as in Keras. A negative share makes colors stronger.
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

    def _changed(self, images: np.ndarray, factor: np.ndarray) -> np.ndarray:
        grey = _grey(images, "RandomColorDegeneration")
        low, high = self.value_range
        result: np.ndarray = np.clip(images + factor * (grey - images), low, high)
        return result

    def _change(self, images: Any, *uniform: Any) -> Any:
        grey = OPERATIONS["rgb_to_grayscale"](images)
        mixed = images + self._between(uniform[0]) * (grey - images)
        return OPERATIONS["clip"](mixed, *map(float, self.value_range))


class RandomGrayscale(_ColorLayer):
    """Replace images by their brightness at random while training.

    Parameters
    ----------
    factor : float, default 0.5
        The share of images that become grey, in ``[0, 1]``.
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
        factor: float = 0.5,
        data_format: str | None = None,
        seed: int | None = None,
        *,
        name: str | None = None,
    ) -> None:
        self.factor = real(factor, "RandomGrayscale: factor")
        if not 0 <= self.factor <= 1:
            raise ValueError(
                f"RandomGrayscale: factor must be in [0, 1], not {factor!r}"
            )
        self._begin(name, data_format, seed)

    def get_random_transformation(
        self, data: Any, training: bool = True, seed: int | None = None
    ) -> np.ndarray | None:
        """Draw which images become grey."""
        if not training:
            return None
        return self._uniform(data, (0.0, 1.0), seed) < self.factor

    def transform_images(
        self, images: Any, transformation: Any, training: bool = True
    ) -> np.ndarray:
        """Take the brightness of some images."""
        result = floats(images)
        if not training or transformation is None:
            return result
        chosen = np.reshape(transformation, (*result.shape[:-3], 1, 1, 1))
        return np.where(chosen, _grey(result, "RandomGrayscale"), result)

    def trace(self, scope: Scope, inputs: Sequence[int]) -> int:
        """Append the ops when training, else nothing."""
        return self._varied(scope, inputs[0], 1)

    def _change(self, images: Any, *uniform: Any) -> Any:
        grey = OPERATIONS["rgb_to_grayscale"](images)
        return OPERATIONS["where"](uniform[0] < self.factor, grey, images)


class RandomInvert(_ColorLayer):
    """Invert the values of images at random while training.

    Parameters
    ----------
    factor : float or (float, float), default 1.0
        The range of the probability of an image, or its upper bound, in ``[0, 1]``.
    value_range : (float, float), default (0, 255)
        The range of values; an inverted one is taken from the highest.
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

    __slots__ = ("factor",)

    def __init__(
        self,
        factor: Any = 1.0,
        value_range: Any = (0, 255),
        seed: int | None = None,
        data_format: str | None = None,
        *,
        name: str | None = None,
    ) -> None:
        self.factor = factor_of(factor, "RandomInvert: factor", 0.0)
        self.value_range = value_range_of(value_range, "RandomInvert: value_range")
        self._begin(name, data_format, seed)

    def get_random_transformation(
        self, data: Any, training: bool = True, seed: int | None = None
    ) -> dict[str, Any] | None:
        """Draw which images are inverted."""
        if not training:
            return None
        generator = self._generator(seed)
        shape = np.shape(data)[:-3] or (1,)
        least = generator.uniform(*self.factor, shape)
        return {"apply_inversion": generator.random(shape) < least}

    def transform_images(
        self, images: Any, transformation: Any, training: bool = True
    ) -> np.ndarray:
        """Invert some images."""
        result = floats(images)
        if not training or transformation is None:
            return result
        shape = (*result.shape[:-3], 1, 1, 1)
        chosen = np.reshape(transformation["apply_inversion"], shape)
        return np.where(chosen, np.float32(self.value_range[1]) - result, result)

    def trace(self, scope: Scope, inputs: Sequence[int]) -> int:
        """Append the ops when training, else nothing."""
        return self._varied(scope, inputs[0], 2)

    def _change(self, images: Any, *uniform: Any) -> Any:
        lower, upper = self.factor
        chosen = uniform[1] < uniform[0] * (upper - lower) + lower
        return OPERATIONS["where"](chosen, self.value_range[1] - images, images)
