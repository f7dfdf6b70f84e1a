"""Reference pooling over windows with explicit padding.

Owns max and average pooling and their gradients. Refuses speed. The index of a
maximum is its place in the window, row by row; of equal maxima the first, and of any
NaN the first.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from memcfg.devices.cpu._reference_convolution import pad_image, place_slices, windows

if TYPE_CHECKING:
    from memcfg.devices.cpu._reference_types import Array, Attributes, ReferenceFunction

__all__ = ["POOLING"]


def _windows(a: Attributes, x: Array, value: float) -> Array:
    """Every window of x, padded by `value`, its places in one row: [..., KH * KW]."""
    padded = pad_image(x, a["padding"], value)
    view = windows(padded, a["pool_size"], a["strides"], (1, 1))
    return view.reshape(*view.shape[:4], -1)


def _in_image(a: Attributes, height: int, width: int) -> Array:
    """Which places of each window are not padding: [1, OH, OW, 1, KH * KW]."""
    return _windows(a, np.ones((1, height, width, 1)), 0) > 0


def _max_pool2d(a: Attributes, inputs: list[Array], outputs: list[Array]) -> None:
    (x,) = inputs
    view = _windows(a, x, -np.inf)
    index = view.argmax(axis=-1)
    outputs[0][...] = np.take_along_axis(view, index[..., None], axis=-1)[..., 0]
    if len(outputs) > 1:
        inside = np.broadcast_to(_in_image(a, *x.shape[1:3]), view.shape)
        hit = np.take_along_axis(inside, index[..., None], axis=-1)[..., 0]
        # a window of -inf alone: its first place that is not padding
        outputs[1][...] = np.where(hit, index, inside.argmax(axis=-1))


def _max_pool2d_gradient(
    a: Attributes, inputs: list[Array], outputs: list[Array]
) -> None:
    index, dy = inputs
    padded = pad_image(np.zeros_like(outputs[0]), a["padding"])
    for i, j, under in place_slices(dy.shape[1:3], a["pool_size"], a["strides"]):
        place = i * a["pool_size"][1] + j
        padded[under] += np.where(index == place, dy, 0)
    _crop(a, padded, outputs[0])


def _average_pool2d(a: Attributes, inputs: list[Array], outputs: list[Array]) -> None:
    (x,) = inputs
    places = _in_image(a, *x.shape[1:3]).sum(axis=-1)
    outputs[0][...] = _windows(a, x, 0).sum(axis=-1) / places


def _average_pool2d_gradient(
    a: Attributes, inputs: list[Array], outputs: list[Array]
) -> None:
    (dy,) = inputs
    share = dy / _in_image(a, *outputs[0].shape[1:3]).sum(axis=-1)
    padded = pad_image(np.zeros_like(outputs[0]), a["padding"])
    for _, _, under in place_slices(dy.shape[1:3], a["pool_size"], a["strides"]):
        padded[under] += share
    _crop(a, padded, outputs[0])


def _crop(a: Attributes, padded: Array, out: Array) -> None:
    (top, _), (left, _) = a["padding"]
    out[...] = padded[:, top : top + out.shape[1], left : left + out.shape[2]]


POOLING: dict[str, ReferenceFunction] = {
    "average_pool2d": _average_pool2d,
    "average_pool2d_gradient": _average_pool2d_gradient,
    "max_pool2d": _max_pool2d,
    "max_pool2d_gradient": _max_pool2d_gradient,
    "max_pool2d_inference": _max_pool2d,
}
