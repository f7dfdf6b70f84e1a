"""Ops of images, channels last, in a model, in a function and on arrays."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

import numpy as np

from memcfg.nn._argument_checks import (
    check_channels_last,
    integer,
    numbers,
    padding_name,
    real,
    resolve_padding,
)
from memcfg.nn._keras_names import absent
from memcfg.nn.layers import Resizing
from memcfg.nn.layers._operators import constant_tensor
from memcfg.nn.ops._along_axes import max as reduce_max
from memcfg.nn.ops._along_axes import mean
from memcfg.nn.ops._along_axes import min as reduce_min
from memcfg.nn.ops._convolving import depthwise_conv
from memcfg.nn.ops._declaring import (
    as_float,
    documented,
    lengths_of,
    reordered,
    reshaped,
    tensor_of,
)
from memcfg.nn.ops._of_elements import absolute, clip, where
from memcfg.nn.ops._sampling import (
    affine_transform,
    elastic_transform,
    map_coordinates,
    perspective_transform,
    scale_and_translate,
)
from memcfg.nn.ops._shapes import concatenate, get_item, pad

if TYPE_CHECKING:
    from collections.abc import Sequence

    from memcfg.nn.layers._layer import SymbolicTensor

__all__ = [
    "affine_transform",
    "crop_images",
    "elastic_transform",
    "extract_patches",
    "extract_patches_3d",
    "gaussian_blur",
    "hsv_to_rgb",
    "map_coordinates",
    "pad_images",
    "perspective_transform",
    "resize",
    "rgb_to_grayscale",
    "rgb_to_hsv",
    "scale_and_translate",
    "sobel_edges",
    "ssim",
]

_GREY = np.array(
    [0.2989, 0.5870, 0.1140], np.float32
)  # of red, green, blue, as Keras's
_RANKS = {2: "images (height, width, channels)", 3: "volumes (depth, ..., channels)"}


def _batch(x: Any, name: str, data_format: Any, rank: int = 2) -> tuple[Any, bool]:
    """Return images with a batch, and whether it was there."""
    check_channels_last(data_format, name)
    x = tensor_of(x, name)
    if len(x.shape) == rank + 1 and x.whole:
        return reshaped(x, [1, *lengths_of(x)]), False
    if len(x.shape) != rank + 2:
        raise ValueError(f"{name} is of {_RANKS[rank]}, or of a batch, got {x!r}")
    return x, True


def _given(x: Any, batched: bool) -> Any:
    """Return a result without the batch that was not there."""
    return x if batched else reshaped(x, lengths_of(x)[1:])


@documented
def resize(
    images: Any,
    size: Any,
    interpolation: str = "bilinear",
    antialias: bool = False,
    crop_to_aspect_ratio: bool = False,
    pad_to_aspect_ratio: bool = False,
    fill_mode: str = "constant",
    fill_value: float = 0.0,
    data_format: str | None = None,
) -> Any:
    """Resize images, as the layer `Resizing`."""
    x, batched = _batch(images, "resize", data_format)
    height, width = numbers(size, 2, "resize: size")
    layer = Resizing(
        height,
        width,
        interpolation,
        crop_to_aspect_ratio,
        pad_to_aspect_ratio,
        fill_mode,
        fill_value,
        antialias,
    )
    return _given(layer(x), batched)


def _margins(length: int, given: Sequence[Any], names: str) -> tuple[int, int]:
    """Return what is before and after a part, of which one of three is None.

    `given` is the number before, the number after, and the length of the part, which is
    within `length`.
    """
    if [each is None for each in given].count(True) != 1:
        raise ValueError(f"exactly two of {names} must be given, got {tuple(given)}")
    before, after, part = (
        -1 if each is None else integer(each, names, 0) for each in given
    )
    if given[0] is None:
        before = length - after - part
    elif given[1] is None:
        after = length - before - part
    if min(before, after) < 0 or length - before - after < 1:
        raise ValueError(f"{names}: {tuple(given)} do not fit the length {length}")
    return before, after


@documented
def crop_images(
    images: Any,
    top_cropping: int | None = None,
    left_cropping: int | None = None,
    bottom_cropping: int | None = None,
    right_cropping: int | None = None,
    target_height: int | None = None,
    target_width: int | None = None,
    data_format: str | None = None,
) -> Any:
    """Crop images by two of top, bottom and height, and of left, right and width."""
    x, batched = _batch(images, "crop_images", data_format)
    _, height, width, _ = lengths_of(x)
    names = "top_cropping, bottom_cropping, target_height"
    top, bottom = _margins(
        height, (top_cropping, bottom_cropping, target_height), names
    )
    names = "left_cropping, right_cropping, target_width"
    left, right = _margins(width, (left_cropping, right_cropping, target_width), names)
    rows, columns = slice(top, height - bottom), slice(left, width - right)
    return _given(get_item(x, (slice(None), rows, columns)), batched)


@documented
def pad_images(
    images: Any,
    top_padding: int | None = None,
    left_padding: int | None = None,
    bottom_padding: int | None = None,
    right_padding: int | None = None,
    target_height: int | None = None,
    target_width: int | None = None,
    data_format: str | None = None,
) -> Any:
    """Surround images with zeros; the numbers are given as for `crop_images`."""
    x, batched = _batch(images, "pad_images", data_format)
    _, height, width, _ = lengths_of(x)
    rows = _added(height, (top_padding, bottom_padding, target_height), "height")
    columns = _added(width, (left_padding, right_padding, target_width), "width")
    return _given(pad(x, ((0, 0), rows, columns, (0, 0))), batched)


def _added(length: int, given: Sequence[Any], axis: str) -> tuple[int, int]:
    """Return the paddings of an axis, of which one or the padded length is None."""
    before, after, whole = given
    if [each is None for each in given].count(True) != 1:
        raise ValueError(
            f"pad_images: exactly two of both paddings and target_{axis} must be "
            f"given, got {tuple(given)}"
        )
    if before is None:
        before = whole - length - after
    elif after is None:
        after = whole - length - before
    what = f"pad_images: a padding of the {axis}"
    return integer(before, what, 0), integer(after, what, 0)


@documented
def extract_patches(
    images: Any,
    size: Any,
    strides: Any = None,
    dilation_rate: Any = 1,
    padding: str = "valid",
    data_format: str | None = None,
) -> Any:
    """Return the patches of images at each place, flattened to channels."""
    rank = 3 if isinstance(size, list | tuple) and len(size) == 3 else 2
    name = "extract_patches"
    return _patches(
        images, name, rank, size, strides, dilation_rate, padding, data_format
    )


@documented
def extract_patches_3d(
    volumes: Any,
    size: Any,
    strides: Any = None,
    dilation_rate: Any = 1,
    padding: str = "valid",
    data_format: str | None = None,
) -> Any:
    """Return the patches of volumes at each place, flattened to channels."""
    name = "extract_patches_3d"
    return _patches(
        volumes, name, 3, size, strides, dilation_rate, padding, data_format
    )


def _patches(
    images: Any,
    name: str,
    rank: int,
    size: Any,
    strides: Any,
    dilation_rate: Any,
    padding: str,
    data_format: Any,
) -> Any:
    x, batched = _batch(images, name, data_format, rank)
    window = numbers(size, rank, f"{name}: size")
    steps = window if strides is None else numbers(strides, rank, f"{name}: strides")
    dilation = numbers(dilation_rate, rank, f"{name}: dilation_rate")
    how = padding_name(padding, name)
    batch, *lengths, channels = lengths_of(x)
    around = resolve_padding(how, lengths, window, steps, dilation)
    if np.any(around):
        x = pad(x, ((0, 0), *around, (0, 0)))
    batch, *lengths, channels = lengths_of(x)
    reach = [d * (w - 1) + 1 for d, w in zip(dilation, window, strict=True)]
    counts = [
        (length - r) // s + 1
        for length, r, s in zip(lengths, reach, steps, strict=True)
    ]
    if min(counts) < 1:
        raise ValueError(f"{name}: patches of {window} do not fit {tuple(lengths)}")
    if steps == window and set(dilation) == {1}:  # they do not overlap
        whole = tuple(slice(0, n * w) for n, w in zip(counts, window, strict=True))
        x = get_item(x, (slice(None), *whole))
        pairs = itertools.chain.from_iterable(zip(counts, window, strict=True))
        x = reshaped(x, [batch, *pairs, channels])
        odd, even = range(1, 2 * rank, 2), range(2, 2 * rank + 1, 2)
        x = reordered(x, [0, *odd, *even, 2 * rank + 1])
        flat = [batch, *counts, int(np.prod(window)) * channels]
        return _given(reshaped(x, flat), batched)
    parts = []
    for place in itertools.product(*map(range, window)):
        begins = [p * d for p, d in zip(place, dilation, strict=True)]
        key = tuple(
            slice(b, b + (n - 1) * s + 1, s)
            for b, n, s in zip(begins, counts, steps, strict=True)
        )
        parts.append(get_item(x, (slice(None), *key)))
    return _given(concatenate(parts, -1), batched)


def _channels(x: Any, name: str) -> list[Any]:
    """Return the three channels of images, in float."""
    x = as_float(tensor_of(x, name))
    if lengths_of(x)[-1] != 3:
        raise ValueError(f"{name} takes images of three channels, got {x!r}")
    return [get_item(x, (..., slice(i, i + 1))) for i in range(3)]


@documented
def rgb_to_grayscale(images: Any, data_format: str | None = None) -> Any:
    """Return the brightness of images of red, green and blue, as one channel."""
    check_channels_last(data_format, "rgb_to_grayscale")
    red, green, blue = _channels(images, "rgb_to_grayscale")
    r, g, b = map(float, _GREY)
    return red * r + green * g + blue * b


@documented
def rgb_to_hsv(images: Any, data_format: str | None = None) -> Any:
    """Return hue, saturation and value, from 0 to 1, of red, green and blue."""
    check_channels_last(data_format, "rgb_to_hsv")
    red, green, blue = _channels(images, "rgb_to_hsv")
    rgb = concatenate([red, green, blue], -1)
    value = reduce_max(rgb, axis=-1, keepdims=True)
    spread = value - reduce_min(rgb, axis=-1, keepdims=True)
    saturation = where(value > 0, spread / where(value > 0, value, 1.0), 0.0)
    by = 1 / (6 * where(spread > 0, spread, 1.0))
    hue = where(value == green, by * (blue - red) + 2 / 6, by * (red - green) + 4 / 6)
    hue = where(value == red, by * (green - blue), hue)
    hue = where(spread > 0, hue, 0.0)
    return concatenate([where(hue < 0, hue + 1, hue), saturation, value], -1)


@documented
def hsv_to_rgb(images: Any, data_format: str | None = None) -> Any:
    """Return red, green and blue of hue, saturation and value from 0 to 1."""
    check_channels_last(data_format, "hsv_to_rgb")
    hue, saturation, value = _channels(images, "hsv_to_rgb")
    place = hue * 6
    ends = absolute(place - 3) - 1, 2 - absolute(place - 2), 2 - absolute(place - 4)
    shares = clip(concatenate(ends, -1), 0.0, 1.0)
    return (1 - saturation + saturation * shares) * value


def _bell(size: int, sigma: float) -> np.ndarray:
    """Return a Gaussian window whose sum is 1."""
    x = np.arange(size) - (size - 1) / 2
    window: np.ndarray = np.exp(-0.5 * (x / sigma) ** 2)
    window /= window.sum()
    return window


def _filtered(x: Any, kernels: np.ndarray, padding: str) -> Any:
    """Return each channel convolved with each of some kernels."""
    height, width, times = kernels.shape
    channels = lengths_of(x)[-1]
    wide = np.broadcast_to(kernels[:, :, None], (height, width, channels, times))
    return depthwise_conv(x, constant_tensor(wide), padding=padding)


@documented
def gaussian_blur(
    images: Any,
    kernel_size: Any = (3, 3),
    sigma: Any = (1.0, 1.0),
    data_format: str | None = None,
) -> Any:
    """Blur images by a Gaussian window of an odd size; beyond the edges are zeros."""
    x, batched = _batch(images, "gaussian_blur", data_format)
    size = numbers(kernel_size, 2, "gaussian_blur: kernel_size")
    if not all(each % 2 for each in size):
        raise ValueError(f"gaussian_blur: kernel_size must be odd, got {kernel_size}")
    both = sigma if isinstance(sigma, list | tuple) else (sigma, sigma)
    first, second = (
        _bell(n, real(each, "gaussian_blur: sigma"))
        for n, each in zip(size, both, strict=True)
    )
    kernel = np.outer(second, first)[..., None]
    return _given(_filtered(as_float(x), kernel, "same"), batched)


@documented
def sobel_edges(images: Any, data_format: str | None = None) -> Any:
    """Return the slopes of images along both axes, in a last axis of 2."""
    x, batched = _batch(images, "sobel_edges", data_format)
    across = np.array([[-1, -2, -1], [0, 0, 0], [1, 2, 1]], np.float32)
    kernels = np.stack([across, across.T], -1)
    x = pad(as_float(x), ((0, 0), (1, 1), (1, 1), (0, 0)), "reflect")
    edges = _filtered(x, kernels, "valid")
    *lengths, channels = lengths_of(edges)
    return _given(reshaped(edges, [*lengths, channels // 2, 2]), batched)


@documented
def ssim(
    image1: Any,
    image2: Any,
    max_val: float = 1.0,
    filter_size: int = 11,
    filter_sigma: float = 1.5,
    k1: float = 0.01,
    k2: float = 0.03,
    data_format: str | None = None,
) -> Any:
    """Return the structural similarity of images (Wang et al. 2004), a number each."""
    x, batched = _batch(image1, "ssim", data_format)
    y, _ = _batch(image2, "ssim", data_format)
    x, y = as_float(x), as_float(y)
    window = _bell(integer(filter_size, "ssim: filter_size"), filter_sigma)
    kernel = np.outer(window, window)[..., None]

    def smoothed(z: SymbolicTensor) -> Any:
        return _filtered(z, kernel, "valid")

    m, n = smoothed(x), smoothed(y)
    of_x, of_y = smoothed(x * x) - m * m, smoothed(y * y) - n * n
    both = smoothed(x * y) - m * n
    c1, c2 = (k1 * max_val) ** 2, (k2 * max_val) ** 2
    alike = (2 * m * n + c1) * (2 * both + c2)
    alike = alike / ((m * m + n * n + c1) * (of_x + of_y + c2))
    return _given(mean(alike, axis=(1, 2, 3)), batched)


if not TYPE_CHECKING:  # otherwise type checkers would accept any name
    __getattr__ = absent(__name__)
