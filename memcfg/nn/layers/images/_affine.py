"""Images moved, turned or stretched: each pixel is read at another place."""

from __future__ import annotations

from typing import Any

import numpy as np

from memcfg._checks import unknown

FILL_MODES = ("constant", "nearest", "reflect", "wrap")
INTERPOLATIONS = ("nearest", "bilinear")


def check_modes(fill_mode: Any, interpolation: Any, layer: str) -> None:
    """Raise ValueError for an unknown fill mode or interpolation."""
    if fill_mode not in FILL_MODES:
        raise unknown("fill_mode", str(fill_mode), FILL_MODES, f"{layer}: ")
    if interpolation not in INTERPOLATIONS:
        raise unknown("interpolation", str(interpolation), INTERPOLATIONS, f"{layer}: ")


def transformed(
    images: np.ndarray,
    matrices: Any,
    interpolation: str,
    fill_mode: str,
    fill_value: float,
) -> np.ndarray:
    """Return images whose pixel (x, y) is that at a place of the given ones.

    A row of `matrices` has the numbers a0, a1, a2, b0, b1, b2, c0, c1; the place is
    (a0 x + a1 y + a2, b0 x + b1 y + b2) / (c0 x + c1 y + 1).
    """
    batch = images if images.ndim == 4 else images[None]
    rows = np.asarray(matrices, np.float32).reshape(-1, 8)
    result = np.empty_like(batch)
    height, width = batch.shape[1:3]
    y, x = np.mgrid[:height, :width].astype(np.float32)
    for image, row, target in zip(batch, rows, result, strict=True):
        a0, a1, a2, b0, b1, b2, c0, c1 = row
        place = (b0 * x + b1 * y + b2, a0 * x + a1 * y + a2)
        if c0 or c1:
            depth = c0 * x + c1 * y + 1
            place = (place[0] / depth, place[1] / depth)
        target[...] = sampled(image, place, interpolation, fill_mode, fill_value)
    return result if images.ndim == 4 else result[0]


def sampled(
    image: np.ndarray,
    place: tuple[np.ndarray, np.ndarray],
    interpolation: str,
    fill_mode: str,
    fill_value: float,
) -> np.ndarray:
    """Read an image at places between its pixels."""
    if interpolation == "nearest":
        at = [np.round(axis).astype(np.int64) for axis in place]
        return _read(image, at[0], at[1], fill_mode, fill_value)
    lower = [np.floor(axis) for axis in place]
    part = [axis - low for axis, low in zip(place, lower, strict=True)]
    first = [low.astype(np.int64) for low in lower]
    result = np.zeros(image.shape, np.float32)
    for row in (0, 1):
        for column in (0, 1):
            weight = (part[0] if row else 1 - part[0]) * (
                part[1] if column else 1 - part[1]
            )
            pixels = _read(
                image, first[0] + row, first[1] + column, fill_mode, fill_value
            )
            result += weight[..., None] * pixels
    return result


def _read(
    image: np.ndarray,
    rows: np.ndarray,
    columns: np.ndarray,
    fill_mode: str,
    fill_value: float,
) -> np.ndarray:
    height, width = image.shape[:2]
    places = _inside(rows, height, fill_mode), _inside(columns, width, fill_mode)
    pixels: np.ndarray = image[places]
    if fill_mode == "constant":
        outside = (rows < 0) | (rows >= height) | (columns < 0) | (columns >= width)
        pixels[outside] = fill_value
    return pixels


def _inside(index: np.ndarray, size: int, fill_mode: str) -> np.ndarray:
    result: np.ndarray = index
    if fill_mode == "wrap":
        result = index % size
    elif fill_mode == "mirror" and size > 1:  # it is not: d c b | a b c d | c b a
        result = np.abs((index + size - 1) % (2 * size - 2) - (size - 1))
    elif fill_mode == "reflect":  # the border is repeated: c b a | a b c | c b a
        turned = index % (2 * size)
        result = np.minimum(turned, 2 * size - 1 - turned)
    inside: np.ndarray = np.clip(result, 0, size - 1)
    return inside
