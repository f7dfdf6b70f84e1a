"""Sliding windows over images with explicit padding: output lengths, NumPy views."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from memcfg.ops._op_type import require

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from memcfg.ops._op_type import Array

__all__ = ["output_length", "pad_image", "place_slices", "windows"]


def output_length(
    size: int, window: int, stride: int, dilation: int, padding: Sequence[int]
) -> int:
    """Return the output length of a sliding window over one dimension."""
    reach = (window - 1) * dilation + 1
    padded = size + padding[0] + padding[1]
    require(padded >= reach, f"a window of {reach} does not fit into {padded} elements")
    return (padded - reach) // stride + 1


def pad_image(x: Array, padding: Sequence[Sequence[int]], value: float = 0) -> Array:
    """Pad the height and width of x [N, H, W, C] by `value`."""
    widths = ((0, 0), *(tuple(pair) for pair in padding), (0, 0))
    return np.pad(x, widths, constant_values=value)


def windows(
    padded: Array, size: Sequence[int], strides: Sequence[int], dilation: Sequence[int]
) -> Array:
    """Return a view of every window of a padded image: [N, OH, OW, C, KH, KW]."""
    reach = [
        (length - 1) * step + 1 for length, step in zip(size, dilation, strict=True)
    ]
    view = sliding_window_view(padded, reach, axis=(1, 2))
    return view[:, :: strides[0], :: strides[1], :, :: dilation[0], :: dilation[1]]


def place_slices(
    out: Sequence[int],
    size: Sequence[int],
    strides: Sequence[int],
    dilation: Sequence[int] = (1, 1),
) -> Iterator[tuple[int, int, tuple[slice, slice, slice]]]:
    """Yield each place (i, j) of a window and the slices of padded pixels there."""
    for i in range(size[0]):
        for j in range(size[1]):
            top, left = i * dilation[0], j * dilation[1]
            rows = slice(top, top + (out[0] - 1) * strides[0] + 1, strides[0])
            columns = slice(left, left + (out[1] - 1) * strides[1] + 1, strides[1])
            yield i, j, (slice(None), rows, columns)
