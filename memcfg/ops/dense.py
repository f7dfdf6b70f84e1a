"""Matrix products over the last axis, and their two gradients."""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING

from memcfg.ops._op_type import (
    Adjoint,
    Arrays,
    Attributes,
    OpType,
    Spec,
    common_dtype,
    gradient_dtype,
    register,
    require,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__: list[str] = []


def _infer(inputs: Sequence[Spec], _: Attributes) -> Sequence[Spec]:
    x, kernel = inputs[0].shape, inputs[1].shape
    require(
        len(x) >= 2 and len(kernel) == 2 and x[-1] == kernel[0],
        f"dense: cannot multiply {x} by {kernel}",
    )
    return [Spec((*x[:-1], kernel[1]), common_dtype(inputs))]


def _infer_kernel(inputs: Sequence[Spec], _: Attributes) -> Sequence[Spec]:
    x, dy = inputs[0].shape, inputs[1].shape
    require(
        len(x) >= 2 and len(dy) >= 2 and prod(x[:-1]) == prod(dy[:-1]),
        f"dense_gradient_kernel: cannot multiply {x} by {dy}",
    )
    return [Spec((x[-1], dy[-1]), gradient_dtype(inputs), role="gradient")]


def _infer_input(inputs: Sequence[Spec], _: Attributes) -> Sequence[Spec]:
    return [Spec((*inputs[1].shape[:-1], inputs[0].shape[0]), common_dtype(inputs))]


def _gradient(adjoint: Adjoint) -> Sequence[int | None]:
    x, kernel = adjoint.inputs
    dkernel = dx = None
    if adjoint.needs[1]:  # before dx, so that x can be freed
        (dkernel,) = adjoint.emit(
            "dense_gradient_kernel", (x, adjoint.dy), suffix="gradient_kernel"
        )
    if adjoint.needs[0]:
        (dx,) = adjoint.emit(
            "dense_gradient_input", (kernel, adjoint.dy), suffix="gradient_input"
        )
    return dx, dkernel


def _kernel_rule(adjoint: Adjoint) -> Sequence[int | None]:
    (x, dy), slope = adjoint.inputs, adjoint.dy_like(0)
    dx = adjoint.emit("dense_gradient_input", (slope, dy), suffix="gradient_x")
    return *dx, *adjoint.emit("dense", (x, slope), suffix="gradient_dy")


def _input_rule(adjoint: Adjoint) -> Sequence[int | None]:
    (kernel, dy), slope = adjoint.inputs, adjoint.dy
    dkernel = adjoint.emit("dense_gradient_kernel", (slope, dy), suffix="of_kernel")
    return *dkernel, *adjoint.emit("dense", (slope, kernel), suffix="gradient_dy")


def _dense(_: Attributes, inputs: Arrays, outputs: Arrays) -> None:
    x, kernel = inputs
    outputs[0][...] = x @ kernel


def _dense_gradient_kernel(_: Attributes, inputs: Arrays, outputs: Arrays) -> None:
    x, dy = (operand.reshape(-1, operand.shape[-1]) for operand in inputs)
    outputs[0][...] = x.T @ dy


def _dense_gradient_input(_: Attributes, inputs: Arrays, outputs: Arrays) -> None:
    kernel, dy = inputs
    outputs[0][...] = dy @ kernel.T


register(
    OpType(
        "dense",
        2,
        _infer,
        _dense,
        gradient=_gradient,
        flops=lambda i, _o, _a: 2 * i[0].size * i[1].shape[1],
        contraction=True,
    ),
    OpType(
        "dense_gradient_kernel",
        2,
        _infer_kernel,
        _dense_gradient_kernel,
        gradient=_kernel_rule,
        flops=lambda i, _o, _a: 2 * i[0].size * i[1].shape[-1],
        contraction=True,
    ),
    OpType(
        "dense_gradient_input",
        2,
        _infer_input,
        _dense_gradient_input,
        gradient=_input_rule,
        flops=lambda i, _o, _a: 2 * i[1].size * i[0].shape[0],
        contraction=True,
    ),
)
