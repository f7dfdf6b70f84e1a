"""Fourier transforms, and windows of signals and images.

Complex numbers are two tensors, their real and imaginary parts.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from memcfg.nn._argument_checks import integer
from memcfg.nn.initializers import window_of
from memcfg.nn.layers import SymbolicTensor
from memcfg.nn.layers._operators import Filled, Function, Outputs, as_tensor
from memcfg.nn.ops._declaring import (
    aligned,
    axis_of,
    documented,
    lengths_of,
    reordered,
    reshaped,
    tensor_of,
)
from memcfg.nn.ops._of_elements import multiply, negative
from memcfg.nn.ops._shapes import concatenate, flip, pad, part, swapaxes

__all__ = [
    "extract_sequences",
    "fft",
    "fft2",
    "fold",
    "ifft2",
    "irfft",
    "istft",
    "rfft",
    "stft",
    "unfold",
]


def _parts(x: Any, name: str, axes: int = 1) -> tuple[Any, Any]:
    """Return both parts; ValueError unless these are two tensors of one shape."""
    if not isinstance(x, tuple | list) or len(x) != 2:
        raise ValueError(
            f"{name}: x must be a tuple of two tensors, its real and imaginary parts"
        )
    given = [as_tensor(each, name, floats=True) for each in x]
    real, imaginary = aligned(given[0], given[1]), aligned(given[1], given[0])
    if real.shape != imaginary.shape:
        raise ValueError(
            f"{name}: the parts must have one shape, got {real.shape} and "
            f"{imaginary.shape}"
        )
    if len(real.shape) < axes + (not real.whole):
        raise ValueError(
            f"{name}: {real!r} has no {axes} axes to transform"
            + ("" if real.whole else " after the batch")
        )
    return real, imaginary


def _transformed(parts: Any, inverse: bool = False) -> Any:
    """Return the parts of the transform along the last axis."""
    real, imaginary = Outputs("fourier", {"inverse": int(inverse)})(list(parts))
    if not inverse:
        return real, imaginary
    share = 1 / real.shape[-1]
    return multiply(real, share), multiply(imaginary, share)


def _along_both(parts: Any, inverse: bool) -> Any:
    turned = [swapaxes(x, -1, -2) for x in _transformed(parts, inverse)]
    return tuple(swapaxes(x, -1, -2) for x in _transformed(turned, inverse))


@documented
def fft(x: Any) -> Any:
    """Return the parts of the Fourier transform along the last axis."""
    return _transformed(_parts(x, "fft"))


@documented
def fft2(x: Any) -> Any:
    """Return the parts of the Fourier transform along the last two axes."""
    return _along_both(_parts(x, "fft2", 2), False)


@documented
def ifft2(x: Any) -> Any:
    """Return the parts of the inverse Fourier transform along the last two axes."""
    return _along_both(_parts(x, "ifft2", 2), True)


def _of_length(x: Any, length: int) -> Any:
    """Return x cut along the last axis, or with zeros after it."""
    last, known = len(x.shape) - 1, x.shape[-1]
    if length <= known:
        return part(x, last, 0, length)
    return pad(x, [*[(0, 0)] * last, (0, length - known)])


@documented
def rfft(x: Any, fft_length: int | None = None) -> Any:
    """Return the parts of the transform of real numbers, up to half of the length."""
    x = tensor_of(x, "rfft")
    last = axis_of(x, -1)
    if fft_length is not None:
        x = _of_length(x, integer(fft_length, "rfft: fft_length"))
    made = _transformed((x, Filled(0.0)(x)))
    return tuple(part(each, last, 0, x.shape[-1] // 2 + 1) for each in made)


@documented
def irfft(x: Any, fft_length: int | None = None) -> Any:
    """Return the real numbers of which x is the transform up to half of the length."""
    real, imaginary = _parts(x, "irfft")
    length = 2 * (real.shape[-1] - 1)
    if fft_length is not None:
        length = integer(fft_length, "irfft: fft_length")
    if length < 1:
        raise ValueError("irfft: one number has a length of 0: pass fft_length")
    half, last = length // 2 + 1, len(real.shape) - 1
    whole = []
    for each, sign in ((real, 1), (imaginary, -1)):
        each = _of_length(each, half)
        if length > 2:  # the second half is the conjugate of the first, reversed
            mirrored = flip(part(each, last, 1, (length + 1) // 2), last)
            mirrored = negative(mirrored) if sign < 0 else mirrored
            each = concatenate([each, mirrored], last)
        whole.append(each)
    return _transformed(whole, inverse=True)[0]


@documented
def extract_sequences(x: Any, sequence_length: int, sequence_stride: int) -> Any:
    """Return windows of the last axis along a new one before it."""
    x = tensor_of(x, "extract_sequences")
    axis_of(x, -1)
    given = {
        "length": integer(sequence_length, "extract_sequences: sequence_length"),
        "step": integer(sequence_stride, "extract_sequences: sequence_stride"),
        "dilation": 1,
    }
    return Function("frames", given)(x)


def _lengths(name: str, **given: Any) -> tuple[int, ...]:
    length, stride, size = (
        integer(value, f"{name}: {key}") for key, value in given.items()
    )
    if size < length:
        raise ValueError(
            f"{name}: fft_length is {size}, less than sequence_length, {length}"
        )
    return length, stride, size


def _window(window: Any, length: int, size: int, name: str) -> Any:
    """Return the numbers of a window with zeros around it, or None."""
    if window is None:
        return None
    if isinstance(window, str) and window not in ("hann", "hamming"):
        raise ValueError(
            f"{name}: window must be 'hann', 'hamming', None or an array, got "
            f"{window!r}"
        )
    if isinstance(window, SymbolicTensor):
        raise TypeError(
            f"{name}: a window is numbers, not a tensor: with arrays pass a list, "
            "window.tolist()"
        )
    numbers = window_of(window, length, name, periodic=True).astype(np.float32)
    before = (size - length) // 2
    return np.pad(numbers, (before, size - length - before))


@documented
def stft(
    x: Any,
    sequence_length: int,
    sequence_stride: int,
    fft_length: int,
    window: Any = "hann",
    center: bool = True,
) -> Any:
    """Return the parts of the transforms of windows, up to half of their length."""
    x = tensor_of(x, "stft")
    last = axis_of(x, -1)
    length, stride, size = _lengths(
        "stft",
        sequence_length=sequence_length,
        sequence_stride=sequence_stride,
        fft_length=fft_length,
    )
    numbers = _window(window, length, size, "stft")
    if center:
        x = pad(x, [*[(0, 0)] * last, (size // 2, size // 2)], mode="reflect")
    if numbers is None:
        numbers = _window(np.ones(length), length, size, "stft")
    sequences = Function("frames", {"length": size, "step": stride, "dilation": 1})(x)
    return rfft(multiply(sequences, numbers))


def _envelope(numbers: Any, count: int, stride: int) -> np.ndarray:
    """Return the sums of the squares of windows that overlap."""
    total = np.zeros((count - 1) * stride + len(numbers))
    for first in range(0, count * stride, stride):
        total[first : first + len(numbers)] += numbers.astype(np.float64) ** 2
    return total


def _periodic_envelope(numbers: Any, stride: int) -> np.ndarray:
    """Return the sums of the squares of windows of which there is no first or last."""
    overlaps = -(-len(numbers) // stride)
    squares = np.zeros(overlaps * stride)
    squares[: len(numbers)] = numbers.astype(np.float64) ** 2
    sums = squares.reshape(overlaps, stride).sum(0)
    return np.tile(sums, overlaps)[: len(numbers)]


@documented
def istft(
    x: Any,
    sequence_length: int,
    sequence_stride: int,
    fft_length: int,
    length: int | None = None,
    window: Any = "hann",
    center: bool = True,
) -> Any:
    """Return the signal of which x are the parts of the transforms of windows."""
    real, imaginary = _parts(x, "istft", 2)
    own, stride, size = _lengths(
        "istft",
        sequence_length=sequence_length,
        sequence_stride=sequence_stride,
        fft_length=fft_length,
    )
    numbers = _window(window, own, size, "istft")
    wanted = None if length is None else integer(length, "istft: length")
    rows, count, last = irfft((real, imaginary), size), real.shape[-2], len(real.shape)
    total = (count - 1) * stride + size
    overlap = {"size": total, "step": stride, "dilation": 1}
    begin = size // 2 if center else 0
    end = total - begin if wanted is None else min(begin + wanted, total)
    is_exact = center and own == size and numbers is not None
    if numbers is not None:
        by = numbers if is_exact else numbers / _periodic_envelope(numbers, stride)
        rows = multiply(rows, by.astype(np.float32))
    made = part(Function("overlap_add", overlap)(rows), last - 2, begin, end)
    if is_exact:
        envelope = _envelope(numbers, count, stride)[begin:end]
        if envelope.min() < 1e-11:
            raise ValueError(
                f"istft: windows {stride} apart leave elements at which they are 0: "
                "use a smaller sequence_stride"
            )
        made = multiply(made, (1 / envelope).astype(np.float32))
        if wanted is not None:
            made = _of_length(made, wanted)
    return made


def _two(value: Any, name: str, least: int = 1) -> tuple[int, int]:
    several = value if isinstance(value, list | tuple) else (value, value)
    if len(several) != 2:
        raise ValueError(f"{name} must be one or two integers, got {value!r}")
    first, second = (integer(each, name, least) for each in several)
    return first, second


def _image_windows(name: str, given: Any) -> list[dict[str, int]]:
    """Return the attributes of windows along both axes."""
    kernel, dilation, stride = (
        _two(value, f"{name}: {key}") for key, value in given.items()
    )
    return [
        {"length": k, "dilation": d, "step": s}
        for k, d, s in zip(kernel, dilation, stride, strict=True)
    ]


@documented
def unfold(
    x: Any, kernel_size: Any, dilation: Any = 1, padding: Any = 0, stride: Any = 1
) -> Any:
    """Return the windows of images (N, channels, height, width) as columns.

    The result has shape (N, channels * elements of a window, windows).
    """
    x = _images(x, "unfold", 4)
    rows, columns = _image_windows(
        "unfold", {"kernel_size": kernel_size, "dilation": dilation, "stride": stride}
    )
    around = _two(padding, "unfold: padding", 0)
    if any(around):
        x = pad(x, [(0, 0), (0, 0), *((each, each) for each in around)])
    x = Function("frames", columns)(x)  # (N, C, H, windows, places)
    x = Function("frames", rows)(reordered(x, [0, 1, 3, 4, 2]))
    batch, channels, wide, near, high, above = lengths_of(x)
    x = reordered(x, [0, 1, 5, 3, 4, 2])
    return reshaped(x, [batch, channels * above * near, high * wide])


@documented
def fold(
    x: Any,
    output_size: Any,
    kernel_size: Any,
    dilation: Any = 1,
    padding: Any = 0,
    stride: Any = 1,
) -> Any:
    """Add the windows of images, as `unfold` has them, where they were.

    The result has shape (N, channels, height, width).
    """
    x = _images(x, "fold", 3)
    rows, columns = _image_windows(
        "fold", {"kernel_size": kernel_size, "dilation": dilation, "stride": stride}
    )
    around = _two(padding, "fold: padding", 0)
    sizes = _two(output_size, "fold: output_size")
    wide = [size + 2 * each for size, each in zip(sizes, around, strict=True)]
    counts = [
        (size - (of["length"] - 1) * of["dilation"] - 1) // of["step"] + 1
        for size, of in zip(wide, (rows, columns), strict=True)
    ]
    above, near = rows.pop("length"), columns.pop("length")
    batch, elements, windows = lengths_of(x)
    if elements % (above * near) or windows != counts[0] * counts[1]:
        raise ValueError(
            f"fold: {x!r} has not {counts[0]} x {counts[1]} windows of {above} x {near}"
        )
    channels = elements // (above * near)
    x = reshaped(x, [batch, channels, above, near, *counts])
    x = reordered(x, [0, 1, 5, 3, 4, 2])
    x = Function("overlap_add", {"size": wide[0], **rows})(x)
    x = Function("overlap_add", {"size": wide[1], **columns})(
        reordered(x, [0, 1, 4, 2, 3])
    )
    for axis, (size, each) in enumerate(zip(sizes, around, strict=True), 2):
        x = part(x, axis, each, each + size)
    return x


def _images(x: Any, name: str, rank: int) -> Any:
    x = tensor_of(x, name)
    if len(x.shape) != rank:
        raise ValueError(f"{name}: x must have {rank} axes, got {x!r}")
    return x
