"""Two-dimensional convolution and its two gradients.

Activations are [N, H, W, C], kernels [KH, KW, C / groups, O].

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
    groups = attributes["groups"]
    require(len(x) == 4, f"conv2d reads [N, H, W, C], not {x}")
    require(len(kernel) == 4, f"a conv2d kernel is [KH, KW, C/groups, O], not {kernel}")
    require(
        x[3] == kernel[2] * groups and kernel[3] % groups == 0,
        f"conv2d: {x[3]} channels and kernel {kernel} with {groups} groups",
    )
    height, width = (
        output_length(
            x[1 + i],
            kernel[i],
            attributes["strides"][i],
            attributes["dilation"][i],
            attributes["padding"][i],
        )
        for i in (0, 1)
    )
    return [Spec((x[0], height, width, kernel[3]), common_dtype(inputs))]


def _infer_kernel(inputs: Sequence[Spec], attributes: Attributes) -> Sequence[Spec]:
    shape = tuple(attributes["kernel_shape"])
    return [Spec(shape, gradient_dtype(inputs), role="gradient")]


def _infer_input(inputs: Sequence[Spec], attributes: Attributes) -> Sequence[Spec]:
    return [Spec(tuple(attributes["input_shape"]), common_dtype(inputs))]


def _gradient(adjoint: Adjoint) -> Sequence[int | None]:
    x, kernel = adjoint.inputs
    dkernel = dx = None
    if adjoint.needs[1]:  # before dx, so that x can be freed
        (dkernel,) = adjoint.emit(
            "conv2d_gradient_kernel",
            (x, adjoint.dy),
            {**adjoint.attributes, "kernel_shape": adjoint.shape_of(1)},
            "gradient_kernel",
        )
    if adjoint.needs[0]:
        (dx,) = adjoint.emit(
            "conv2d_gradient_input",
            (kernel, adjoint.dy),
            {**adjoint.attributes, "input_shape": adjoint.shape_of(0)},
            "gradient_input",
        )
    return dx, dkernel


def _input_gradient(adjoint: Adjoint) -> Sequence[int | None]:
    """Append the gradients of a transposed convolution, linear in both operands."""
    kernel, x = adjoint.inputs
    attributes = {k: v for k, v in adjoint.attributes.items() if k != "input_shape"}
    dkernel = dx = None
    if adjoint.needs[0]:
        (dkernel,) = adjoint.emit(
            "conv2d_gradient_kernel",
            (adjoint.dy, x),
            {**attributes, "kernel_shape": adjoint.shape_of(0)},
            "gradient_kernel",
        )
    if adjoint.needs[1]:
        (dx,) = adjoint.emit(
            "conv2d", (adjoint.dy, kernel), attributes, "gradient_input"
        )
    return dkernel, dx


def _groups(a: Attributes, channels: int, units: int) -> Iterator[tuple[slice, slice]]:
    """Yield the input and the output channels of each group."""
    groups = a["groups"]
    for g in range(groups):
        ins = slice(g * channels // groups, (g + 1) * channels // groups)
        outs = slice(g * units // groups, (g + 1) * units // groups)
        yield ins, outs


def _conv2d(a: Attributes, inputs: Arrays, outputs: Arrays) -> None:
    x, kernel = inputs
    view = windows(
        pad_image(x, a["padding"]), kernel.shape[:2], a["strides"], a["dilation"]
    )
    for ins, outs in _groups(a, x.shape[3], kernel.shape[3]):
        outputs[0][..., outs] = np.tensordot(
            view[:, :, :, ins], kernel[..., outs], axes=((3, 4, 5), (2, 0, 1))
        )


def _conv2d_gradient_kernel(a: Attributes, inputs: Arrays, outputs: Arrays) -> None:
    x, dy = inputs
    size = outputs[0].shape[:2]
    view = windows(pad_image(x, a["padding"]), size, a["strides"], a["dilation"])
    for ins, outs in _groups(a, x.shape[3], dy.shape[3]):
        product = np.tensordot(  # [C / groups, KH, KW, O / groups]
            view[:, :, :, ins], dy[..., outs], axes=((0, 1, 2), (0, 1, 2))
        )
        outputs[0][..., outs] = product.transpose(1, 2, 0, 3)


def _conv2d_gradient_input(a: Attributes, inputs: Arrays, outputs: Arrays) -> None:
    kernel, dy = inputs
    dx = outputs[0]
    padded: Array = pad_image(np.zeros_like(dx), a["padding"])
    for i, j, under in place_slices(
        dy.shape[1:3], kernel.shape[:2], a["strides"], a["dilation"]
    ):
        for ins, outs in _groups(a, dx.shape[3], dy.shape[3]):
            padded[(*under, ins)] += dy[..., outs] @ kernel[i, j, :, outs].T
    (top, _), (left, _) = a["padding"]
    dx[...] = padded[:, top : top + dx.shape[1], left : left + dx.shape[2]]


def _flops(x: Spec, kernel: Spec, y: Spec) -> int:
    del x
    return 2 * y.size * kernel.size // max(kernel.shape[3], 1)


register(
    OpType(
        "conv2d",
        2,
        _infer,
        _conv2d,
        gradient=_gradient,
        flops=lambda i, o, _: _flops(i[0], i[1], o[0]),
        contraction=True,
    ),
    OpType(
        "conv2d_gradient_kernel",
        2,
        _infer_kernel,
        _conv2d_gradient_kernel,
        flops=lambda i, o, _: _flops(i[0], o[0], i[1]),
        contraction=True,
    ),
    OpType(
        "conv2d_gradient_input",
        2,
        _infer_input,
        _conv2d_gradient_input,
        gradient=_input_gradient,
        flops=lambda i, o, _: _flops(o[0], i[0], i[1]),
        contraction=True,
    ),
)
