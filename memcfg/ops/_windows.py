"""Sliding windows with explicit padding: output lengths, NumPy views."""

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
    """Pad the axes of x [N, ..., C] between batch and channels by `value`."""
    widths = ((0, 0), *(tuple(pair) for pair in padding), (0, 0))
    return np.pad(x, widths, constant_values=value)


def windows(
    padded: Array, size: Sequence[int], strides: Sequence[int], dilation: Sequence[int]
) -> Array:
    """Return a view of every window of padded images: [N, OH, OW, C, KH, KW].

    Volumes have one more axis of places and one more of the window.
    """
    reach = [
        (length - 1) * step + 1 for length, step in zip(size, dilation, strict=True)
    ]
    view = sliding_window_view(padded, reach, axis=tuple(range(1, len(reach) + 1)))
    places = (slice(None, None, step) for step in strides)
    taps = (slice(None, None, step) for step in dilation)
    return view[(slice(None), *places, slice(None), *taps)]


def place_slices(
    out: Sequence[int],
    size: Sequence[int],
    strides: Sequence[int],
    dilation: Sequence[int] | None = None,
) -> Iterator[tuple[tuple[int, ...], tuple[slice, ...]]]:
    """Yield each place of a window and the slices of padded pixels there."""
    dilation = (1,) * len(size) if dilation is None else dilation
    for place in np.ndindex(*size):
        yield (
            place,
            (
                slice(None),
                *(
                    slice(i * apart, i * apart + (count - 1) * step + 1, step)
                    for i, count, step, apart in zip(
                        place, out, strides, dilation, strict=True
                    )
                ),
            ),
        )
