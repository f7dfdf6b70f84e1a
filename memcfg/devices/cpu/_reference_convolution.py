"""Reference convolutions: windows of the padded image times the kernel.

Owns conv2d and its two gradients, and the windows that pooling shares. Refuses
speed. Activations are [N, H, W, C], kernels [KH, KW, C / groups, O].
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

if TYPE_CHECKING:
    from memcfg.devices.cpu._reference_types import Array, Attributes, ReferenceFunction

__all__ = ["CONVOLUTION", "pad_image", "place_slices", "windows"]

Padding = Sequence[Sequence[int]]


def pad_image(x: Array, padding: Padding, value: float = 0) -> Array:
    """Surround the pixels of x [N, H, W, C] by `value`."""
    widths = ((0, 0), *(tuple(pair) for pair in padding), (0, 0))
    return np.pad(x, widths, constant_values=value)


def windows(
    padded: Array, size: Sequence[int], strides: Sequence[int], dilation: Sequence[int]
) -> Array:
    """View every window of a padded image: [N, OH, OW, C, KH, KW]."""
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
    """Yield each place (i, j) of a window and the padded pixels that lie under it."""
    for i in range(size[0]):
        for j in range(size[1]):
            top, left = i * dilation[0], j * dilation[1]
            rows = slice(top, top + (out[0] - 1) * strides[0] + 1, strides[0])
            columns = slice(left, left + (out[1] - 1) * strides[1] + 1, strides[1])
            yield i, j, (slice(None), rows, columns)


def _groups(a: Attributes, channels: int, units: int) -> Iterator[tuple[slice, slice]]:
    """Yield the input and the output channels of each group."""
    groups = a["groups"]
    for g in range(groups):
        ins = slice(g * channels // groups, (g + 1) * channels // groups)
        outs = slice(g * units // groups, (g + 1) * units // groups)
        yield ins, outs


def _conv2d(a: Attributes, inputs: list[Array], outputs: list[Array]) -> None:
    x, kernel = inputs
    view = windows(
        pad_image(x, a["padding"]), kernel.shape[:2], a["strides"], a["dilation"]
    )
    for ins, outs in _groups(a, x.shape[3], kernel.shape[3]):
        outputs[0][..., outs] = np.tensordot(
            view[:, :, :, ins], kernel[..., outs], axes=((3, 4, 5), (2, 0, 1))
        )


def _conv2d_gradient_kernel(
    a: Attributes, inputs: list[Array], outputs: list[Array]
) -> None:
    x, dy = inputs
    size = outputs[0].shape[:2]
    view = windows(pad_image(x, a["padding"]), size, a["strides"], a["dilation"])
    for ins, outs in _groups(a, x.shape[3], dy.shape[3]):
        product = np.tensordot(  # [C / groups, KH, KW, O / groups]
            view[:, :, :, ins], dy[..., outs], axes=((0, 1, 2), (0, 1, 2))
        )
        outputs[0][..., outs] = product.transpose(1, 2, 0, 3)


def _conv2d_gradient_input(
    a: Attributes, inputs: list[Array], outputs: list[Array]
) -> None:
    kernel, dy = inputs
    dx = outputs[0]
    padded = pad_image(np.zeros_like(dx), a["padding"])
    for i, j, under in place_slices(
        dy.shape[1:3], kernel.shape[:2], a["strides"], a["dilation"]
    ):
        for ins, outs in _groups(a, dx.shape[3], dy.shape[3]):
            padded[(*under, ins)] += dy[..., outs] @ kernel[i, j, :, outs].T
    (top, _), (left, _) = a["padding"]
    dx[...] = padded[:, top : top + dx.shape[1], left : left + dx.shape[2]]


CONVOLUTION: dict[str, ReferenceFunction] = {
    "conv2d": _conv2d,
    "conv2d_gradient_input": _conv2d_gradient_input,
    "conv2d_gradient_kernel": _conv2d_gradient_kernel,
}
