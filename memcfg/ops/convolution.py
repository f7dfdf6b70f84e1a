"""Convolutions over images and volumes, and their two gradients.

Activations are [N, H, W, C], kernels [KH, KW, C / groups, O]; volumes have a depth
before the height.

See docs/decisions/0004-channels-last.md.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from memcfg.ops._op_type import (
    Adjoint,
    Array,
    Arrays,
    Attributes,
    OpType,
    Spec,
    common_dtype,
    gradient_dtype,
    register,
    require,
)
from memcfg.ops._windows import output_length, pad_image, place_slices, windows

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

__all__: list[str] = []


def _infer(inputs: Sequence[Spec], attributes: Attributes) -> Sequence[Spec]:
    x, kernel = inputs[0].shape, inputs[1].shape
    groups, rank = attributes["groups"], len(attributes["strides"])
    name, axes = f"conv{rank}d", "DHW"[3 - rank :]
    require(len(x) == rank + 2, f"{name} reads [N, {', '.join(axes)}, C], not {x}")
    taps = ", ".join(f"K{axis}" for axis in axes)
    require(
        len(kernel) == rank + 2,
        f"a {name} kernel is [{taps}, C/groups, O], not {kernel}",
    )
    require(
        x[-1] == kernel[-2] * groups and kernel[-1] % groups == 0,
        f"{name}: {x[-1]} channels and kernel {kernel} with {groups} groups",
    )
    how = (attributes[key] for key in ("strides", "dilation", "padding"))
    lengths = map(output_length, x[1:-1], kernel, *how)
    return [Spec((x[0], *lengths, kernel[-1]), common_dtype(inputs))]


def _infer_kernel(inputs: Sequence[Spec], attributes: Attributes) -> Sequence[Spec]:
    shape = tuple(attributes["kernel_shape"])
    return [Spec(shape, gradient_dtype(inputs), role="gradient")]


def _infer_input(inputs: Sequence[Spec], attributes: Attributes) -> Sequence[Spec]:
    return [Spec(tuple(attributes["input_shape"]), common_dtype(inputs))]


def _gradient(adjoint: Adjoint) -> Sequence[int | None]:
    x, kernel = adjoint.inputs
    name = f"conv{len(adjoint.attributes['strides'])}d"
    dkernel = dx = None
    if adjoint.needs[1]:  # before dx, so that x can be freed
        (dkernel,) = adjoint.emit(
            f"{name}_gradient_kernel",
            (x, adjoint.dy),
            {**adjoint.attributes, "kernel_shape": adjoint.shape_of(1)},
            "gradient_kernel",
        )
    if adjoint.needs[0]:
        (dx,) = adjoint.emit(
            f"{name}_gradient_input",
            (kernel, adjoint.dy),
            {**adjoint.attributes, "input_shape": adjoint.shape_of(0)},
            "gradient_input",
        )
    return dx, dkernel


def _input_gradient(adjoint: Adjoint) -> Sequence[int | None]:
    """Append the gradients of a transposed convolution, linear in both operands."""
    kernel, x = adjoint.inputs
    attributes = {k: v for k, v in adjoint.attributes.items() if k != "input_shape"}
    name = f"conv{len(attributes['strides'])}d"
    dkernel = dx = None
    if adjoint.needs[0]:
        (dkernel,) = adjoint.emit(
            f"{name}_gradient_kernel",
            (adjoint.dy, x),
            {**attributes, "kernel_shape": adjoint.shape_of(0)},
            "gradient_kernel",
        )
    if adjoint.needs[1]:
        (dx,) = adjoint.emit(name, (adjoint.dy, kernel), attributes, "gradient_input")
    return dkernel, dx


def _kernel_rule(adjoint: Adjoint) -> Sequence[int | None]:
    """Append the gradients of a kernel's gradient, linear in both operands."""
    (x, dy), slope = adjoint.inputs, adjoint.dy_like(0)
    attributes = {k: v for k, v in adjoint.attributes.items() if k != "kernel_shape"}
    name = f"conv{len(attributes['strides'])}d"
    ddy = dx = None
    if adjoint.needs[1]:
        (ddy,) = adjoint.emit(name, (x, slope), attributes, "gradient_dy")
    if adjoint.needs[0]:
        (dx,) = adjoint.emit(
            f"{name}_gradient_input",
            (slope, dy),
            {**attributes, "input_shape": adjoint.shape_of(0)},
            "gradient_input",
        )
    return dx, ddy


def _groups(a: Attributes, channels: int, units: int) -> Iterator[tuple[slice, slice]]:
    """Yield the input and the output channels of each group."""
    groups = a["groups"]
    for g in range(groups):
        ins = slice(g * channels // groups, (g + 1) * channels // groups)
        outs = slice(g * units // groups, (g + 1) * units // groups)
        yield ins, outs


def _convolution(a: Attributes, inputs: Arrays, outputs: Arrays) -> None:
    x, kernel = inputs
    rank = kernel.ndim - 2
    view = windows(
        pad_image(x, a["padding"]), kernel.shape[:-2], a["strides"], a["dilation"]
    )
    taps = tuple(range(rank + 2, 2 * rank + 2))
    for ins, outs in _groups(a, x.shape[-1], kernel.shape[-1]):
        part = view[(*(slice(None),) * (rank + 1), ins)]
        outputs[0][..., outs] = np.tensordot(
            part, kernel[..., outs], axes=((rank + 1, *taps), (rank, *range(rank)))
        )


def _gradient_kernel(a: Attributes, inputs: Arrays, outputs: Arrays) -> None:
    x, dy = inputs
    size = outputs[0].shape[:-2]
    places = tuple(range(len(size) + 1))
    view = windows(pad_image(x, a["padding"]), size, a["strides"], a["dilation"])
    for ins, outs in _groups(a, x.shape[-1], dy.shape[-1]):
        part = view[(*(slice(None),) * len(places), ins)]
        product = np.tensordot(part, dy[..., outs], axes=(places, places))
        outputs[0][..., outs] = np.moveaxis(product, 0, -2)


def _gradient_input(a: Attributes, inputs: Arrays, outputs: Arrays) -> None:
    kernel, dy = inputs
    dx = outputs[0]
    padded: Array = pad_image(np.zeros_like(dx), a["padding"])
    for place, under in place_slices(
        dy.shape[1:-1], kernel.shape[:-2], a["strides"], a["dilation"]
    ):
        for ins, outs in _groups(a, dx.shape[-1], dy.shape[-1]):
            padded[(*under, ins)] += dy[..., outs] @ kernel[place][:, outs].T
    inside = (
        slice(before, before + length)
        for (before, _), length in zip(a["padding"], dx.shape[1:-1], strict=True)
    )
    dx[...] = padded[(slice(None), *inside)]


def _flops(x: Spec, kernel: Spec, y: Spec) -> int:
    del x
    return 2 * y.size * kernel.size // max(kernel.shape[-1], 1)


for _name in ("conv2d", "conv3d"):
    register(
        OpType(
            _name,
            2,
            _infer,
            _convolution,
            gradient=_gradient,
            flops=lambda i, o, _: _flops(i[0], i[1], o[0]),
            contraction=True,
        ),
        OpType(
            f"{_name}_gradient_kernel",
            2,
            _infer_kernel,
            _gradient_kernel,
            gradient=_kernel_rule,
            flops=lambda i, o, _: _flops(i[0], o[0], i[1]),
            contraction=True,
        ),
        OpType(
            f"{_name}_gradient_input",
            2,
            _infer_input,
            _gradient_input,
            gradient=_input_gradient,
            flops=lambda i, o, _: _flops(o[0], i[0], i[1]),
            contraction=True,
        ),
    )
