"""Fourier transforms along the last axis, and the frames of a signal.

``fourier`` {inverse} transforms real and imaginary parts, which are two operands and
two results, and divides by nothing: its gradient is the other direction. ``frames``
{length, step, dilation} takes windows of the last axis, [..., window, place];
``overlap_add`` {size, step, dilation} adds windows where they were. Each is the other's
gradient.

Bluestein, IEEE Trans. Audio Electroacoust. 18, 1970, for lengths that are no powers of
two.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from memcfg.ops._op_type import (
    Adjoint,
    Arrays,
    Attributes,
    OpType,
    Spec,
    register,
    require,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__: list[str] = []


def _infer_fourier(inputs: Sequence[Spec], attributes: Attributes) -> Sequence[Spec]:
    real, imaginary = inputs
    require(
        real.shape == imaginary.shape and len(real.shape) > 0,
        f"fourier: parts of shapes {real.shape} and {imaginary.shape}: they have one "
        "shape, of an axis or more",
    )
    require(
        real.dtype == imaginary.dtype and "float" in real.dtype,
        f"fourier: parts are floats, not {real.dtype} and {imaginary.dtype}",
    )
    require(attributes.keys() == {"inverse"}, "fourier: needs inverse alone")
    return [Spec(real.shape, real.dtype), Spec(real.shape, real.dtype, "imaginary")]


def _fourier(a: Attributes, inputs: Arrays, outputs: Arrays) -> None:
    x = inputs[0] + 1j * inputs[1]
    y = np.fft.ifft(x, norm="forward") if a["inverse"] else np.fft.fft(x)
    outputs[0][...], outputs[1][...] = y.real, y.imag


def _fourier_gradient(adjoint: Adjoint) -> Sequence[int | None]:
    zeros = {
        "shape": adjoint.shape_of(0),
        "value": 0.0,
        "dtype": adjoint.emitter.dtype(adjoint.inputs[0]),
    }
    dys = [
        adjoint.emit("fill", (), zeros)[0] if dy is None else adjoint.tensor(dy)
        for dy in adjoint.dys
    ]
    other = {"inverse": int(not adjoint.attributes["inverse"])}
    return adjoint.emit("fourier", dys, other)


def _flops(inputs: Sequence[Spec], _: Sequence[Spec], __: Attributes) -> int:
    x = inputs[0]
    return 5 * x.size * max(x.shape[-1], 1).bit_length()


def _count(length: int, size: int, step: int, dilation: int) -> int:
    """Return how many windows of a length there are in so many elements."""
    reach = (size - 1) * dilation + 1
    return 1 + (length - reach) // step if length >= reach else 0


def _check(kind: str, x: Spec, a: Attributes, rank: int) -> None:
    require("float" in x.dtype, f"{kind}: of floats, not {x.dtype}")
    require(len(x.shape) >= rank, f"{kind}: {x.shape} has no {rank} axes")
    require(
        all(value >= 1 for value in a.values()),
        f"{kind}: {', '.join(a)} are 1 or more, got {dict(a)}",
    )


def _infer_frames(inputs: Sequence[Spec], a: Attributes) -> Sequence[Spec]:
    (x,) = inputs
    _check("frames", x, a, 1)
    count = _count(x.shape[-1], a["length"], a["step"], a["dilation"])
    require(
        count > 0 or not x.shape[-1],
        f"frames: {x.shape[-1]} elements are fewer than a window of {a['length']} in "
        f"steps of {a['dilation']}",
    )
    return [Spec((*x.shape[:-1], count, a["length"]), x.dtype)]


def _infer_overlap(inputs: Sequence[Spec], a: Attributes) -> Sequence[Spec]:
    (x,) = inputs
    _check("overlap_add", x, a, 2)
    count, length = x.shape[-2:]
    require(
        count == _count(a["size"], length, a["step"], a["dilation"]),
        f"overlap_add: {a['size']} elements do not have {count} windows of {length}",
    )
    return [Spec((*x.shape[:-2], a["size"]), x.dtype)]


def _places(count: int, length: int, a: Attributes) -> np.ndarray:
    windows = np.arange(count)[:, None] * a["step"]
    result: np.ndarray = windows + np.arange(length) * a["dilation"]
    return result


def _frames(a: Attributes, inputs: Arrays, outputs: Arrays) -> None:
    (y,) = outputs
    y[...] = inputs[0][..., _places(y.shape[-2], y.shape[-1], a)]


def _overlap_add(a: Attributes, inputs: Arrays, outputs: Arrays) -> None:
    (x,), (y,) = inputs, outputs
    total = np.zeros(y.shape)
    rows, windows = total.reshape(-1, y.shape[-1]), x.reshape(-1, *x.shape[-2:])
    places = _places(x.shape[-2], x.shape[-1], a)
    for row, own in zip(rows, windows, strict=True):
        np.add.at(row, places, own)
    y[...] = total


def _frames_gradient(adjoint: Adjoint) -> Sequence[int | None]:
    given = {name: adjoint.attributes[name] for name in ("step", "dilation")}
    return adjoint.emit(
        "overlap_add", (adjoint.dy,), {"size": adjoint.shape_of(0)[-1], **given}
    )


def _overlap_gradient(adjoint: Adjoint) -> Sequence[int | None]:
    given = {name: adjoint.attributes[name] for name in ("step", "dilation")}
    return adjoint.emit(
        "frames", (adjoint.dy,), {"length": adjoint.shape_of(0)[-1], **given}
    )


register(
    OpType(
        "fourier",
        2,
        _infer_fourier,
        _fourier,
        gradient=_fourier_gradient,
        flops=_flops,
        float32_inputs=None,
        contraction=True,
    ),
    OpType("frames", 1, _infer_frames, _frames, gradient=_frames_gradient),
    OpType("overlap_add", 1, _infer_overlap, _overlap_add, gradient=_overlap_gradient),
)
