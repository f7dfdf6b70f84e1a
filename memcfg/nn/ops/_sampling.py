"""Images and arrays that are read at places between their elements."""

from __future__ import annotations

import itertools
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np

from memcfg._checks import unknown
from memcfg.nn._argument_checks import (
    check_channels_last,
    integer,
    nonnegative,
    real,
)
from memcfg.nn.layers._layer import OPERATIONS
from memcfg.nn.layers._operators import AlongLast, constant_tensor
from memcfg.nn.ops._along_axes import sum as sum_of
from memcfg.nn.ops._contractions import matmul
from memcfg.nn.ops._convolving import depthwise_conv
from memcfg.nn.ops._creation import zeros_like
from memcfg.nn.ops._declaring import (
    as_float,
    documented,
    lengths_of,
    reordered,
    reshaped,
    tensor_of,
)
from memcfg.nn.ops._linear_algebra import solve
from memcfg.nn.ops._of_elements import (
    absolute,
    cast,
    clip,
    maximum,
    minimum,
    round,  # noqa: A004
    where,
)
from memcfg.nn.ops._shapes import concatenate, expand_dims, get_item, moveaxis, stack

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

__all__ = [
    "affine_transform",
    "elastic_transform",
    "map_coordinates",
    "perspective_transform",
    "scale_and_translate",
]

_ORDERS = {"nearest": 0, "bilinear": 1}
_FILL_MODES = ("constant", "nearest", "wrap", "mirror", "reflect")
_RESAMPLING = {
    **dict.fromkeys(("linear", "bilinear", "trilinear", "triangle"), "linear"),
    **dict.fromkeys(("cubic", "bicubic", "tricubic"), "cubic"),
    "lanczos3": "lanczos3",
    "lanczos5": "lanczos5",
}


def _inside(place: Any, size: int, fill_mode: str) -> Any:
    """Return where a whole place is read that may be outside of an axis."""
    if fill_mode == "wrap":
        place = place - size * OPERATIONS["floor"](place / size)
    elif fill_mode == "mirror" and size > 1:  # it is not: d c b | a b c d | c b a
        period = 2 * size - 2
        turned = place + (size - 1)
        turned = turned - period * OPERATIONS["floor"](turned / period)
        place = absolute(turned - (size - 1))
    elif fill_mode == "reflect":  # the border is repeated: c b a | a b c | c b a
        turned = place - 2 * size * OPERATIONS["floor"](place / (2 * size))
        place = minimum(turned, 2 * size - 1 - turned)
    return clip(place, 0, size - 1)


def _read(
    flat: Any, lengths: Sequence[int], places: Sequence[Any], how: tuple[str, Any]
) -> Any:
    """Return elements at whole places (batch, n) of flat axes (batch, channels, m)."""
    fill_mode, fill_value = how
    index: Any = 0.0
    outside: Any = 0.0
    for place, length in zip(places, lengths, strict=True):
        index = index * length + _inside(place, length, fill_mode)
        if fill_mode == "constant":
            outside = outside + (place < 0) + (place > length - 1)
    alike = zeros_like(get_item(flat, (slice(None), slice(None), slice(0, 1))))
    index = cast(expand_dims(index, 1) + alike, "int32")
    found = AlongLast("take_along")([flat, index])
    if fill_mode != "constant":
        return found
    return where(expand_dims(outside, 1) + alike > 0, fill_value, found)


def _sampled(
    flat: Any,
    lengths: Sequence[int],
    places: Sequence[Any],
    order: int,
    how: tuple[str, Any],
) -> Any:
    """Return what is at places between elements: of the nearest, or interpolated."""
    if order == 0:
        return _read(flat, lengths, [round(each) for each in places], how)
    lower = [OPERATIONS["floor"](each) for each in places]
    part = [place - low for place, low in zip(places, lower, strict=True)]
    total: Any = 0.0
    for corner in itertools.product((0, 1), repeat=len(places)):
        weight: Any = 1.0
        for up, share in zip(corner, part, strict=True):
            weight = weight * (share if up else 1.0 - share)
        at = [low + up for low, up in zip(lower, corner, strict=True)]
        total = total + expand_dims(weight, 1) * _read(flat, lengths, at, how)
    return total


def _images(images: Any, name: str, data_format: Any) -> tuple[Any, bool]:
    """Return float images with a batch, and whether it was there."""
    check_channels_last(data_format, name)
    x = as_float(tensor_of(images, name))
    if len(x.shape) == 3 and x.whole:
        return reshaped(x, [1, *lengths_of(x)]), False
    if len(x.shape) != 4:
        raise ValueError(
            f"{name} is of images (height, width, channels), or of a batch, got {x!r}"
        )
    return x, True


def _settings(name: str, interpolation: Any, fill_mode: Any, fill_value: Any) -> Any:
    """Return the order and how places outside are read."""
    if interpolation not in _ORDERS:
        raise unknown("interpolation", str(interpolation), _ORDERS, f"{name}: ")
    if fill_mode not in _FILL_MODES:
        raise unknown("fill_mode", str(fill_mode), _FILL_MODES, f"{name}: ")
    return _ORDERS[interpolation], (fill_mode, real(fill_value, f"{name}: fill_value"))


def _grid(height: int, width: int) -> tuple[Any, Any]:
    """Return the x and y of all pixels of an image, as constants."""
    y, x = np.mgrid[:height, :width].astype(np.float32).reshape(2, -1)
    return constant_tensor(x), constant_tensor(y)


def _warped(x: Any, down: Any, across: Any, order: int, how: Any) -> Any:
    """Return images whose pixels are read at places (batch, pixels)."""
    batch, height, width, channels = lengths_of(x)
    flat = reordered(reshaped(x, [batch, height * width, channels]), (0, 2, 1))
    found = _sampled(flat, (height, width), (down, across), order, how)
    return reshaped(reordered(found, (0, 2, 1)), [batch, height, width, channels])


def _projected(x: Any, numbers: Any, order: int, how: Any) -> Any:
    """Return images whose pixel (x, y) is read at a place of 8 numbers (batch, 8)."""
    _, height, width, _ = lengths_of(x)
    a0, a1, a2, b0, b1, b2, c0, c1 = (
        get_item(numbers, (slice(None), slice(i, i + 1))) for i in range(8)
    )
    right, down = _grid(height, width)
    alike = zeros_like(get_item(x, (slice(None), 0, 0, slice(0, 1))))  # (batch, 1)
    depth = c0 * right + c1 * down + 1.0
    across = (a0 * right + a1 * down + a2) / depth + alike
    return _warped(x, (b0 * right + b1 * down + b2) / depth + alike, across, order, how)


def _rows(value: Any, shape: tuple[int, ...], what: str) -> Any:
    """Return a tensor of a shape for each image, or of one for all images."""
    value = as_float(tensor_of(value, what))
    if value.whole and tuple(value.shape) == shape:
        return reshaped(value, [1, *shape])
    if len(value.shape) != len(shape) + 1 or tuple(value.shape[1:]) != shape:
        raise ValueError(
            f"{what} must have shape {shape}, or (batch, *{shape}), got "
            f"{tuple(value.shape)}"
        )
    return value


@documented
def affine_transform(
    images: Any,
    transform: Any,
    interpolation: str = "bilinear",
    fill_mode: str = "constant",
    fill_value: float = 0,
    data_format: str | None = None,
) -> Any:
    """Read pixel (x, y) of images at a place that 8 numbers of each image give.

    With a0, a1, a2, b0, b1, b2, c0, c1 it is (a0 x + a1 y + a2, b0 x + b1 y + b2) / (c0
    x + c1 y + 1).
    """
    name = "affine_transform"
    x, batched = _images(images, name, data_format)
    order, how = _settings(name, interpolation, fill_mode, fill_value)
    made = _projected(x, _rows(transform, (8,), f"{name}: transform"), order, how)
    return made if batched else reshaped(made, lengths_of(made)[1:])


@documented
def perspective_transform(
    images: Any,
    start_points: Any,
    end_points: Any,
    interpolation: str = "bilinear",
    fill_value: float = 0,
    data_format: str | None = None,
) -> Any:
    """Move the four points (x, y) of images that are given to others, as a lens does.

    Points have shape (4, 2), or (batch, 4, 2): the top left, top right, bottom left and
    bottom right one.
    """
    name = "perspective_transform"
    x, batched = _images(images, name, data_format)
    order, how = _settings(name, interpolation, "constant", fill_value)
    to = _rows(start_points, (4, 2), f"{name}: start_points")
    of = _rows(end_points, (4, 2), f"{name}: end_points")
    made = _projected(x, _projection(of, to), order, how)
    return made if batched else reshaped(made, lengths_of(made)[1:])


def _projection(of: Any, to: Any) -> Any:
    """Return the 8 numbers of the projection that takes four points to others."""
    x, y = (get_item(of, (..., slice(i, i + 1))) for i in (0, 1))  # (batch, 4, 1)
    one, none = zeros_like(x) + 1.0, zeros_like(x)
    rows, ends = [], []
    for i in (0, 1):
        end = get_item(to, (..., slice(i, i + 1)))
        mine = [x, y, one, none, none, none]
        terms = [*(mine if i == 0 else mine[3:] + mine[:3]), -end * x, -end * y]
        rows.append(concatenate(terms, -1))
        ends.append(end)
    found = solve(concatenate(rows, 1), concatenate(ends, 1))  # (batch, 8, 1)
    return get_item(found, (..., 0))


@documented
def elastic_transform(
    images: Any,
    alpha: float = 20.0,
    sigma: float = 5.0,
    interpolation: str = "bilinear",
    fill_mode: str = "reflect",
    fill_value: float = 0.0,
    seed: Any = None,
    data_format: str | None = None,
) -> Any:
    """Bend images: each pixel is read at a place that smooth noise moves.

    The noise has a deviation of sigma pixels before it is smoothed over as many, and is
    multiplied by alpha.
    """
    name = "elastic_transform"
    x, batched = _images(images, name, data_format)
    order, how = _settings(name, interpolation, fill_mode, fill_value)
    scale = real(alpha, f"{name}: alpha")
    width_of_bell = nonnegative(sigma, f"{name}: sigma")
    batch, height, width, _ = lengths_of(x)
    if batch is None:
        raise ValueError(
            f"{name} draws for each image: call it in a function, in Dataset.map or on "
            "arrays, where the size of the batch is known"
        )
    noise = OPERATIONS["normal"]((batch, height, width, 2), seed=seed) * width_of_bell
    bell = np.exp(
        -0.5
        * ((np.arange(size := int(6 * width_of_bell) | 1) - size // 2) / sigma) ** 2
    )
    kernel = np.outer(bell, bell) / bell.sum() ** 2
    wide = np.broadcast_to(kernel[:, :, None, None], (size, size, 2, 1))
    smooth = depthwise_conv(noise, constant_tensor(wide), padding="same") * scale
    right, down = _grid(height, width)
    moves = reshaped(smooth, [batch, height * width, 2])
    made = _warped(
        x,
        down + get_item(moves, (..., 1)),
        right + get_item(moves, (..., 0)),
        order,
        how,
    )
    return made if batched else reshaped(made, lengths_of(made)[1:])


@documented
def map_coordinates(
    inputs: Any,
    coordinates: Any,
    order: int,
    fill_mode: str = "constant",
    fill_value: float = 0,
) -> Any:
    """Return elements at places between those of an array: the nearest, or linear.

    Coordinates have an entry for each axis of the inputs, of one shape, which is that
    of the result; an order of 0 takes the nearest elements, one of 1 interpolates.
    """
    name = "map_coordinates"
    x = as_float(tensor_of(inputs, name))
    if isinstance(coordinates, list | tuple):
        coordinates = stack([as_float(tensor_of(c, name)) for c in coordinates], 0)
    places = as_float(tensor_of(coordinates, f"{name}: coordinates"))
    if not (x.whole and places.whole):
        raise ValueError(
            f"{name} takes tensors without a batch: in a model use affine_transform"
        )
    lengths, shape = list(x.shape), list(places.shape)
    if len(shape) < 2 or shape[0] != len(lengths):
        raise ValueError(
            f"{name}: coordinates must have shape ({len(lengths)}, ...), an entry for "
            f"each axis of the inputs, got {tuple(shape)}"
        )
    if order not in (0, 1):
        raise ValueError(f"{name}: order must be 0 or 1, got {order!r}")
    if fill_mode not in _FILL_MODES:
        raise unknown("fill_mode", str(fill_mode), _FILL_MODES, f"{name}: ")
    number = prod(shape[1:])
    rows = [reshaped(get_item(places, i), [1, number]) for i in range(shape[0])]
    how = fill_mode, real(fill_value, f"{name}: fill_value")
    flat = reshaped(x, [1, 1, prod(lengths)])
    return reshaped(_sampled(flat, lengths, rows, order, how), shape[1:])


def _linear(x: Any) -> Any:
    return maximum(1.0 - x, 0.0)


def _cubic(x: Any) -> Any:
    """Return Keys's weights with a = -1/2."""
    near, far = ((1.5 * x - 2.5) * x) * x + 1.0, ((-0.5 * x + 2.5) * x - 4.0) * x + 2.0
    return where(x >= 2.0, 0.0, where(x >= 1.0, far, near))


def _lanczos(radius: float) -> Callable[[Any], Any]:
    """Return the weights of a window of Lanczos."""

    def weight(x: Any) -> Any:
        sin = OPERATIONS["sin"]
        safe = maximum(x, 1e-3)
        wave = radius * sin(np.pi * safe) * sin(np.pi * safe / radius)
        wave = wave / (np.pi**2 * safe * safe)
        return where(x <= 1e-3, 1.0, where(x > radius, 0.0, wave))

    return weight


_WEIGHTS = {
    "linear": _linear,
    "cubic": _cubic,
    "lanczos3": _lanczos(3.0),
    "lanczos5": _lanczos(5.0),
}


@documented
def scale_and_translate(
    images: Any,
    output_shape: Any,
    scale: Any,
    translation: Any,
    spatial_dims: Any,
    method: str,
    antialias: bool = True,
) -> Any:
    """Resample axes: element i of the input is at scale * (i + 1/2) + translation.

    The output shape is that of the result, and `spatial_dims` has the axes to which the
    entries of scale and translation belong. The method is linear, cubic, lanczos3 or
    lanczos5.
    """
    name = "scale_and_translate"
    if method not in _RESAMPLING:
        raise unknown("method", str(method), _RESAMPLING, f"{name}: ")
    weight = _WEIGHTS[_RESAMPLING[method]]
    x = as_float(tensor_of(images, name))
    what = f"{name}: an axis of spatial_dims"
    axes = [integer(each, what, None) % len(x.shape) for each in spatial_dims]
    wanted = tuple(output_shape)
    if len(wanted) != len(x.shape) or (0 in axes and not x.whole):
        raise ValueError(
            f"{name}: output_shape {wanted} and spatial_dims {tuple(axes)} do not fit "
            f"{x!r}"
        )
    scale = as_float(tensor_of(scale, f"{name}: scale"))
    move = as_float(tensor_of(translation, f"{name}: translation"))
    for place, axis in enumerate(axes):
        length = lengths_of(x)[axis]
        new = integer(wanted[axis], f"{name}: output_shape")
        matrix = _resampling(
            length,
            new,
            get_item(scale, place),
            get_item(move, place),
            weight,
            antialias=antialias,
        )
        x = moveaxis(matmul(moveaxis(x, axis, -1), matrix), -1, axis)
    return x


def _resampling(
    length: int,
    new: int,
    scale: Any,
    move: Any,
    weight: Callable[[Any], Any],
    *,
    antialias: bool,
) -> Any:
    """Return the matrix (length, new) of the weights of an axis."""
    steps = constant_tensor(np.arange(new, dtype=np.float32)[None] + 0.5)
    at = (steps - move) / scale - 0.5  # of the new elements, in old ones
    spread: Any = maximum(1.0 / scale, 1.0) if antialias else 1.0
    old = constant_tensor(np.arange(length, dtype=np.float32)[:, None])
    made = weight(absolute(at - old) / spread)
    total = sum_of(made, axis=0, keepdims=True)
    least = 1000 * float(np.finfo(np.float32).eps)
    made = where(absolute(total) > least, made / where(total == 0, 1.0, total), 0.0)
    return made * (at >= -0.5) * (at <= length - 0.5)
