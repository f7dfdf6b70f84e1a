"""`RandomErasing` and `RandomGaussianBlur`: images that lose detail."""

from __future__ import annotations

from typing import Any

import numpy as np

from memcfg.nn._argument_checks import integer, real
from memcfg.nn.layers.images._image_layer import factor_of, floats, value_range_of
from memcfg.nn.layers.images._random_color import _ColorLayer

_LEAST_SIGMA = 1e-6  # pixels


def count_of(data: Any) -> int:
    """Return the number of images: 1 for a single one."""
    shape = np.shape(data)
    return shape[0] if len(shape) == 4 else 1


def chosen(
    generator: np.random.Generator, factor: tuple[float, float], count: int
) -> np.ndarray:
    """Draw whether each image is changed, by a probability of its own."""
    least = generator.uniform(*factor, count)
    result: np.ndarray = generator.random(count) < least
    return result


def per_image(values: Any, images: np.ndarray) -> np.ndarray:
    """Return a value for each image in a shape that broadcasts to images."""
    return np.reshape(values, (*images.shape[:-3], 1, 1, 1))


def boxes(
    generator: np.random.Generator, shape: tuple[int, ...], shares: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Draw a box for each image: its pixels, and the share of the image's area.

    `shares` has the shares of the width and of the height, of shape (images, 2).
    """
    inside, area = [], np.ones(len(shares), np.float32)
    for axis, size in ((0, shape[-2]), (1, shape[-3])):
        length = (shares[:, axis] * size).astype(np.float32)
        start = generator.random(len(shares), np.float32) * (size - length)
        place = np.arange(size, dtype=np.float32)
        end = (start + length)[:, None]
        inside.append((place >= start[:, None]) & (place < end))
        area *= length / size
    across, down = inside
    mask = down[:, :, None, None] & across[:, None, :, None]
    return np.repeat(mask, shape[-1], axis=-1), area


class RandomErasing(_ColorLayer):
    """Fill a rectangle of images at random, on arrays.

    Parameters
    ----------
    factor : float or (float, float), default 1.0
        The range of the probability of an image, or its upper bound, in ``[0, 1]``.
    scale : float or (float, float), default (0.02, 0.33)
        The range of the share of an image that is erased, or its upper bound. The
        square roots of two such shares are those of the width and of the height.
    fill_value : float or sequence of float, optional
        The value of the rectangle, or one for each channel. None: normal noise of the
        range's upper bound as deviation.
    value_range : (float, float), default (0, 255)
        The range to which the filling is clipped.
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

    References
    ----------
    Zhong et al., "Random erasing data augmentation", AAAI 2020.
    """

    __slots__ = ("factor", "fill_value", "scale")

    def __init__(
        self,
        factor: Any = 1.0,
        scale: Any = (0.02, 0.33),
        fill_value: Any = None,
        value_range: Any = (0, 255),
        seed: int | None = None,
        data_format: str | None = None,
        *,
        name: str | None = None,
    ) -> None:
        self.factor = factor_of(factor, "RandomErasing: factor", 0.0)
        self.scale = factor_of(scale, "RandomErasing: scale", 0.0)
        what = "RandomErasing: fill_value"
        if isinstance(fill_value, list | tuple):
            self.fill_value: Any = tuple(real(each, what) for each in fill_value)
        else:
            self.fill_value = None if fill_value is None else real(fill_value, what)
        self.value_range = value_range_of(value_range, "RandomErasing: value_range")
        self._begin(name, data_format, seed)

    def get_random_transformation(
        self, data: Any, training: bool = True, seed: int | None = None
    ) -> dict[str, Any] | None:
        """Draw which images lose which rectangle, and what fills it."""
        if not training:
            return None
        generator, shape = self._generator(seed), np.shape(data)
        count = count_of(data)
        shares = np.sqrt(generator.uniform(*self.scale, (count, 2)))
        masks, _ = boxes(generator, shape, shares)
        return {
            "apply_erasing": chosen(generator, self.factor, count),
            "batch_masks": masks,
            "fill_value": self._filling(generator, shape),
        }

    def _filling(
        self, generator: np.random.Generator, shape: tuple[int, ...]
    ) -> np.ndarray:
        if self.fill_value is None:
            values = generator.standard_normal(shape, np.float32) * self.value_range[1]
        elif isinstance(self.fill_value, tuple) and len(self.fill_value) != shape[-1]:
            raise ValueError(
                f"RandomErasing: fill_value has {len(self.fill_value)} numbers for "
                f"{shape[-1]} channels"
            )
        else:
            values = np.broadcast_to(np.float32(self.fill_value), shape)
        result: np.ndarray = np.clip(values, *self.value_range)
        return result

    def transform_images(
        self, images: Any, transformation: Any = None, training: bool = True
    ) -> np.ndarray:
        """Fill rectangles."""
        result = floats(images)
        if not training or transformation is None:
            return result
        masks = np.reshape(transformation["batch_masks"], result.shape)
        masks = masks & per_image(transformation["apply_erasing"], result)
        return np.where(masks, transformation["fill_value"], result)


class RandomGaussianBlur(_ColorLayer):
    """Blur images at random, on arrays; pixels beyond the border are 0.

    Parameters
    ----------
    factor : float or (float, float), default 1.0
        The range of the probability of an image, or its upper bound, in ``[0, 1]``.
    kernel_size : int or (int, int), default 3
        The height and width of the window in pixels, odd.
    sigma : float or (float, float), default 1.0
        The range of the deviation in pixels, or its upper bound, in ``[0, 1]``. One
        is drawn for each axis of all images.
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

    __slots__ = ("factor", "kernel_size", "sigma")

    def __init__(
        self,
        factor: Any = 1.0,
        kernel_size: Any = 3,
        sigma: Any = 1.0,
        value_range: Any = (0, 255),
        data_format: str | None = None,
        seed: int | None = None,
        *,
        name: str | None = None,
    ) -> None:
        kind = "RandomGaussianBlur"
        self.factor = factor_of(factor, f"{kind}: factor", 0.0)
        what = f"{kind}: kernel_size"
        several = kernel_size if isinstance(kernel_size, tuple | list) else None
        sizes = [integer(each, what) for each in several or [kernel_size] * 2]
        if len(sizes) != 2 or any(size % 2 == 0 for size in sizes):
            raise ValueError(f"{what} is one odd number or two, not {kernel_size!r}")
        self.kernel_size = sizes[0], sizes[1]
        self.sigma = factor_of(sigma, f"{kind}: sigma", 0.0)
        self.value_range = value_range_of(value_range, f"{kind}: value_range")
        self._begin(name, data_format, seed)

    def get_random_transformation(
        self, data: Any, training: bool = True, seed: int | None = None
    ) -> dict[str, Any] | None:
        """Draw which images are blurred, and the deviations across and down."""
        if not training:
            return None
        generator = self._generator(seed)
        sigma = generator.uniform(*self.sigma, 2) + _LEAST_SIGMA
        return {
            "should_apply_blur": chosen(generator, self.factor, count_of(data)),
            "blur_factor": np.float32(sigma),
        }

    def transform_images(
        self, images: Any, transformation: Any = None, training: bool = True
    ) -> np.ndarray:
        """Blur images."""
        result = floats(images)
        if not training or transformation is None:
            return result
        across, down = np.asarray(transformation["blur_factor"], np.float32)
        smooth = blurred(result, self.kernel_size, (down, across))
        which = per_image(transformation["should_apply_blur"], result)
        changed: np.ndarray = np.clip(
            np.where(which, smooth, result), *self.value_range
        )
        return changed


def blurred(
    images: np.ndarray, sizes: tuple[int, int], sigmas: tuple[Any, Any]
) -> np.ndarray:
    """Return images (..., height, width, channels) convolved with a Gaussian."""
    for axis, size, sigma in zip((-3, -2), sizes, sigmas, strict=True):
        place = np.arange(size, dtype=np.float32) - (size - 1) / 2
        kernel = np.exp(-0.5 * (place / sigma) ** 2, dtype=np.float32)
        kernel /= kernel.sum()
        sides = [(0, 0)] * images.ndim
        sides[axis] = (size // 2, size // 2)
        wide = np.moveaxis(np.pad(images, sides), axis, 0)
        length = images.shape[axis]
        total = sum(k * wide[i : i + length] for i, k in enumerate(kernel))
        images = np.moveaxis(np.asarray(total, np.float32), 0, axis)
    return images
