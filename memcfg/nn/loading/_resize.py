"""Resizing of images: weighted sums of pixels along each axis.

A pixel of the result is a sum of those within the radius of a kernel around its place,
with weights that sum to 1; pixels beyond the image do not count. This is TensorFlow's
``image.resize``.
"""

from __future__ import annotations

from math import ceil
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from memcfg._checks import unknown

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import numpy.typing as npt

    _Floats = npt.NDArray[np.float64]


class _Kernel(NamedTuple):
    radius: float
    weight: Callable[[_Floats], _Floats]  # of distances up to the radius


def _cubic(b: float, c: float) -> Callable[[_Floats], _Floats]:
    """Return a cubic filter.

    Mitchell and Netravali, "Reconstruction filters in computer graphics", SIGGRAPH
    1988.
    """

    def weight(x: _Floats) -> _Floats:
        near = ((12 - 9 * b - 6 * c) * x + (-18 + 12 * b + 6 * c)) * x * x + 6 - 2 * b
        far = (((-b - 6 * c) * x + 6 * b + 30 * c) * x - 12 * b - 48 * c) * x
        far = far + 8 * b + 24 * c
        result: _Floats = np.where(x < 1, near, np.where(x < 2, far, 0)) / 6
        return result

    return weight


def _lanczos(radius: float) -> _Kernel:
    def weight(x: _Floats) -> _Floats:
        result: _Floats = np.where(x < radius, np.sinc(x) * np.sinc(x / radius), 0)
        return result

    return _Kernel(radius, weight)


_KERNELS = {
    "bilinear": _Kernel(1, lambda x: np.maximum(0, 1 - x)),
    "bicubic": _Kernel(2, _cubic(0, 0.5)),
    "lanczos3": _lanczos(3),
    "lanczos5": _lanczos(5),
    "gaussian": _Kernel(1.5, lambda x: np.where(x < 1.5, np.exp(-2 * x * x), 0)),
    "mitchellcubic": _Kernel(2, _cubic(1 / 3, 1 / 3)),
}
_BLURRING = ("gaussian", "mitchellcubic")  # they change images of the same size
INTERPOLATIONS = (*_KERNELS, "nearest", "area")


def check_interpolation(interpolation: Any, known: Sequence[str]) -> str:
    """Return the name of an interpolation in lower case; ValueError if unknown."""
    name = interpolation.lower() if isinstance(interpolation, str) else ""
    if name not in known:
        raise unknown("interpolation", str(interpolation), known)
    return name


def resize(
    images: npt.NDArray[Any],
    size: tuple[int, int],
    interpolation: str = "bilinear",
    *,
    antialias: bool = False,
) -> npt.NDArray[Any]:
    """Resize images (..., height, width, channels) to a height and width.

    The result is float32, or has the dtype of the images if the nearest pixel is taken.
    """
    *_, height, width, _ = images.shape
    if interpolation == "nearest":
        rows, columns = _nearest(height, size[0]), _nearest(width, size[1])
        return images[..., rows[:, None], columns, :]
    result = images.astype(np.float32)
    for axis, (given, wanted) in ((-3, (height, size[0])), (-2, (width, size[1]))):
        if given != wanted or interpolation in _BLURRING:
            result = _along(result, axis, wanted, interpolation, antialias=antialias)
    return result


def _nearest(given: int, wanted: int) -> npt.NDArray[np.intp]:
    scale = np.float32(given) / np.float32(wanted)
    places = (np.arange(wanted, dtype=np.float32) + np.float32(0.5)) * scale
    result: npt.NDArray[np.intp] = np.floor(places).astype(np.intp)
    return np.minimum(result, given - 1, out=result)


def _along(
    images: npt.NDArray[np.float32],
    axis: int,
    wanted: int,
    interpolation: str,
    *,
    antialias: bool,
) -> npt.NDArray[np.float32]:
    """Resize along one axis."""
    given = images.shape[axis]
    sources, weights = _taps(given, wanted, interpolation, antialias=antialias)
    tail = (1,) * (-1 - axis)
    shape = list(images.shape)
    shape[axis] = wanted
    result = np.zeros(shape, np.float32)
    for source, weight in zip(sources, weights, strict=True):
        result += images.take(source, axis) * weight.reshape(-1, *tail)
    return result


def _taps(
    given: int, wanted: int, interpolation: str, *, antialias: bool
) -> tuple[npt.NDArray[np.intp], npt.NDArray[np.float32]]:
    """Return the pixels and their weights, each of shape (pixels of one, `wanted`)."""
    scale = given / wanted
    if interpolation == "area":
        first = np.floor(np.arange(wanted) * scale).astype(np.intp)
        sources = first + np.arange(ceil(scale) + 1)[:, None]
        begin, end = np.arange(wanted) * scale, np.arange(1, wanted + 1) * scale
        inside = np.minimum(sources + 1, end) - np.maximum(sources, begin)
        weights = np.maximum(0, inside)
    else:
        kernel = _KERNELS[interpolation]
        stretch = max(1.0, scale) if antialias else 1.0
        reach = kernel.radius * stretch
        # In float32, as in TensorFlow: it decides about pixels at the radius.
        ratio = np.float32(1) / (np.float32(wanted) / np.float32(given))
        places = (np.arange(wanted, dtype=np.float32) + np.float32(0.5)) * ratio
        first = np.ceil(places - reach - 0.5).astype(np.intp)
        sources = first + np.arange(2 * ceil(reach) + 1)[:, None]
        centers = sources.astype(np.float32) + np.float32(0.5)
        weights = kernel.weight(np.abs(centers - places) / np.float32(stretch))
    weights = np.where((sources >= 0) & (sources < given), weights, 0)
    weights = weights / weights.sum(axis=0)
    return np.clip(sources, 0, given - 1), weights.astype(np.float32)


def weights_along(
    given: int, wanted: int, interpolation: str, *, antialias: bool = False
) -> npt.NDArray[np.float32]:
    """Return the weights of pixels along an axis, of shape (wanted, given)."""
    result = np.zeros((wanted, given), np.float32)
    if interpolation == "nearest":
        result[np.arange(wanted), _nearest(given, wanted)] = 1
        return result
    sources, weights = _taps(given, wanted, interpolation, antialias=antialias)
    for source, weight in zip(sources, weights, strict=True):
        result[np.arange(wanted), source] += weight
    return result


def cropped_to_ratio(
    images: npt.NDArray[Any], size: tuple[int, int]
) -> npt.NDArray[Any]:
    """Return the largest part in the middle that has the aspect ratio of a size."""
    *_, height, width, _ = images.shape
    (top, down), (left, right) = beside_ratio((height, width), size)
    return images[..., top : height - down, left : width - right, :]


def beside_ratio(
    given: tuple[int, int], size: tuple[int, int]
) -> tuple[tuple[int, int], tuple[int, int]]:
    """Return the pixels on each side of the part that has a size's aspect ratio."""
    height, width = given
    rows = max(min(height, int(width * size[0] / size[1])), 1)
    columns = max(min(width, int(height * size[1] / size[0])), 1)
    top, left = (height - rows) // 2, (width - columns) // 2
    return (top, height - rows - top), (left, width - columns - left)


def resized_with_padding(
    images: npt.NDArray[Any],
    size: tuple[int, int],
    interpolation: str,
    *,
    antialias: bool = False,
    value: float = 0.0,
) -> npt.NDArray[Any]:
    """Resize images in their aspect ratio, and pad them to a size."""
    *_, height, width, _ = images.shape
    given = np.array([height, width], np.float32)
    fitting = given / (given / np.array(size, np.float32)).max()
    rows, columns = map(int, fitting)
    top, left = map(int, (np.array(size, np.float32) - fitting) / 2)
    inner = resize(images, (rows, columns), interpolation, antialias=antialias)
    shape = (*images.shape[:-3], *size, images.shape[-1])
    result = np.full(shape, value, inner.dtype)
    result[..., top : top + rows, left : left + columns, :] = inner
    return result
