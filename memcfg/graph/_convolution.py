"""Two-dimensional convolution and its two gradients; NHWC, kernels HWIO."""

from __future__ import annotations

from typing import TYPE_CHECKING

from memcfg.graph._definition import Adjoint, Attributes, Definition, Spec, require

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["DEFINITIONS", "window_output"]


def window_output(
    size: int, window: int, stride: int, dilation: int, padding: tuple[int, int]
) -> int:
    """Length of the output of a sliding window over one dimension."""
    reach = (window - 1) * dilation + 1
    padded = size + padding[0] + padding[1]
    require(padded >= reach, f"a window of {reach} does not fit into {padded} elements")
    return (padded - reach) // stride + 1


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
        window_output(
            x[1 + i],
            kernel[i],
            attributes["strides"][i],
            attributes["dilation"][i],
            attributes["padding"][i],
        )
        for i in (0, 1)
    )
    return [Spec((x[0], height, width, kernel[3]))]


def _gradient(adjoint: Adjoint) -> Sequence[int | None]:
    x, kernel = adjoint.inputs
    dkernel = dx = None
    if adjoint.needs[1]:  # before dx, so that x can go
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


def _infer_kernel(_: Sequence[Spec], attributes: Attributes) -> Sequence[Spec]:
    return [Spec(tuple(attributes["kernel_shape"]), role="gradient")]


def _infer_input(_: Sequence[Spec], attributes: Attributes) -> Sequence[Spec]:
    return [Spec(tuple(attributes["input_shape"]))]


def _flops(x: Spec, kernel: Spec, y: Spec) -> int:
    del x
    return 2 * y.size * kernel.size // max(kernel.shape[3], 1)


DEFINITIONS = (
    Definition(
        "conv2d",
        2,
        _infer,
        gradient=_gradient,
        flops=lambda i, o, _: _flops(i[0], i[1], o[0]),
    ),
    Definition(
        "conv2d_gradient_kernel",
        2,
        _infer_kernel,
        flops=lambda i, o, _: _flops(i[0], o[0], i[1]),
    ),
    Definition(
        "conv2d_gradient_input",
        2,
        _infer_input,
        flops=lambda i, o, _: _flops(o[0], i[0], i[1]),
    ),
)
