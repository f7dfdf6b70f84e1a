"""Matrix products over the last axis, and their two gradients."""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING

from memcfg.graph._definition import Adjoint, Attributes, Definition, Spec, require

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["DEFINITIONS"]


def _infer(inputs: Sequence[Spec], _: Attributes) -> Sequence[Spec]:
    x, kernel = inputs[0].shape, inputs[1].shape
    require(
        len(x) >= 2 and len(kernel) == 2 and x[-1] == kernel[0],
        f"dense: cannot multiply {x} by {kernel}",
    )
    return [Spec((*x[:-1], kernel[1]))]


def _gradient(adjoint: Adjoint) -> Sequence[int | None]:
    x, kernel = adjoint.inputs
    dkernel = dx = None
    if adjoint.needs[1]:  # before dx, so that x can go
        (dkernel,) = adjoint.emit(
            "dense_gradient_kernel", (x, adjoint.dy), suffix="gradient_kernel"
        )
    if adjoint.needs[0]:
        (dx,) = adjoint.emit(
            "dense_gradient_input", (kernel, adjoint.dy), suffix="gradient_input"
        )
    return dx, dkernel


def _infer_kernel(inputs: Sequence[Spec], _: Attributes) -> Sequence[Spec]:
    return [Spec((inputs[0].shape[-1], inputs[1].shape[-1]), role="gradient")]


def _infer_input(inputs: Sequence[Spec], _: Attributes) -> Sequence[Spec]:
    return [Spec((*inputs[1].shape[:-1], inputs[0].shape[0]))]


def _flops(x: Spec, columns: int) -> int:
    return 2 * prod(x.shape) * columns


DEFINITIONS = (
    Definition(
        "dense",
        2,
        _infer,
        gradient=_gradient,
        flops=lambda i, _o, _a: _flops(i[0], i[1].shape[1]),
    ),
    Definition(
        "dense_gradient_kernel",
        2,
        _infer_kernel,
        flops=lambda i, _o, _a: _flops(i[0], i[1].shape[-1]),
    ),
    Definition(
        "dense_gradient_input",
        2,
        _infer_input,
        flops=lambda i, _o, _a: _flops(i[1], i[0].shape[0]),
    ),
)
