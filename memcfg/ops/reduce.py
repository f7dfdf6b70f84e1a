"""Sums, means and maxima along axes: {axes, keepdims}, as in NumPy.

Equal maxima share the gradient evenly, as in TensorFlow and in PyTorch's `amax`.
"""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np

from memcfg.ops._op_type import (
    Adjoint,
    Array,
    Arrays,
    Attributes,
    OpType,
    Spec,
    like,
    register,
    require,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

__all__: list[str] = []


def _axes(attributes: Attributes, rank: int) -> tuple[int, ...]:
    """Return the axes as sorted non-negative numbers; GraphError if invalid."""
    axes = tuple(attributes["axes"])
    for axis in axes:
        require(-rank <= axis < rank, f"there is no axis {axis} of {rank} dimensions")
    distinct = tuple(sorted({axis % rank for axis in axes}))
    require(len(distinct) == len(axes), f"an axis is named twice: {axes}")
    return distinct


def _kept(shape: Sequence[int], axes: Sequence[int]) -> tuple[int, ...]:
    """Return the shape of the result with `keepdims`."""
    return tuple(1 if i in axes else length for i, length in enumerate(shape))


def _infer(inputs: Sequence[Spec], attributes: Attributes) -> Sequence[Spec]:
    shape, dtype = inputs[0].shape, inputs[0].dtype
    require("float" in dtype, f"reductions are of floats, not {dtype}")
    axes = _axes(attributes, len(shape))
    if attributes.get("keepdims"):
        return [Spec(_kept(shape, axes), dtype)]
    return [Spec(tuple(n for i, n in enumerate(shape) if i not in axes), dtype)]


def _spread(adjoint: Adjoint, tensor: int) -> int:
    """Append the broadcast of a result, or its gradient, to the shape of the input."""
    shape = adjoint.shape_of(0)
    kept = _kept(shape, _axes(adjoint.attributes, len(shape)))
    if adjoint.emitter.shape(tensor) != kept:
        (tensor,) = adjoint.emit("reshape", (tensor,), {"shape": kept})
    if kept == shape:
        return tensor
    return adjoint.emit("broadcast_to", (tensor,), {"shape": shape})[0]


def _sum_rule(adjoint: Adjoint) -> Sequence[int | None]:
    return [_spread(adjoint, adjoint.dy)]


def _mean_rule(adjoint: Adjoint) -> Sequence[int | None]:
    count = prod(adjoint.shape_of(0)) // prod(adjoint.emitter.shape(adjoint.outputs[0]))
    dy = adjoint.dy
    if count > 1:
        (dy,) = adjoint.emit("affine", (dy,), {"factor": 1 / count, "term": 0.0})
    return [_spread(adjoint, dy)]


def _max_rule(adjoint: Adjoint) -> Sequence[int | None]:
    (x,), (y,) = adjoint.inputs, adjoint.outputs
    return adjoint.emit(
        "reduce_max_gradient", (x, y, adjoint.dy), {"axes": adjoint.attributes["axes"]}
    )


def _max_gradient_rule(adjoint: Adjoint) -> Sequence[int | None]:
    """Append the gradient by dy, which is linear; that by x and y is 0."""
    x, y, dy = adjoint.inputs
    shape, dtype = adjoint.shape_of(2), adjoint.emitter.dtype(dy)
    ones = adjoint.emit("fill", (), {"shape": shape, "value": 1.0, "dtype": dtype})
    shares = adjoint.emit("reduce_max_gradient", (x, y, *ones), adjoint.attributes)
    product = adjoint.emit("multiply", (*shares, adjoint.dy))
    axes = {"axes": adjoint.attributes["axes"], "keepdims": True}
    total = adjoint.emit("reduce_sum", product, axes)
    return None, None, *adjoint.emit("reshape", total, {"shape": shape})


def _meaning(
    reduce: Callable[..., Any],
) -> Callable[[Attributes, Arrays, Arrays], None]:
    def fill(a: Attributes, inputs: Arrays, outputs: Arrays) -> None:
        axes = _axes(a, inputs[0].ndim)
        outputs[0][...] = reduce(inputs[0], axes).reshape(outputs[0].shape)

    return fill


def _sum(x: Array, axes: tuple[int, ...]) -> Any:
    return np.sum(x, axis=axes, dtype=np.float64)


def _mean(x: Array, axes: tuple[int, ...]) -> Any:
    return np.mean(x, axis=axes, dtype=np.float64)


def _max(x: Array, axes: tuple[int, ...]) -> Any:
    return np.max(x, axis=axes)


def _max_gradient(a: Attributes, inputs: Arrays, outputs: Arrays) -> None:
    x, y, dy = inputs
    axes = _axes(a, x.ndim)
    kept = _kept(x.shape, axes)
    hits = x == y.reshape(kept)
    share = dy.reshape(kept) / hits.sum(axis=axes, keepdims=True)
    outputs[0][...] = np.where(hits, share, 0)


def _flops(inputs: Sequence[Spec], _o: Sequence[Spec], _a: Attributes) -> int:
    return inputs[0].size


register(
    OpType("reduce_sum", 1, _infer, _meaning(_sum), gradient=_sum_rule, flops=_flops),
    OpType(
        "reduce_mean", 1, _infer, _meaning(_mean), gradient=_mean_rule, flops=_flops
    ),
    OpType("reduce_max", 1, _infer, _meaning(_max), gradient=_max_rule, flops=_flops),
    OpType(
        "reduce_max_gradient",
        3,
        like(),
        _max_gradient,
        gradient=_max_gradient_rule,
        flops=_flops,
    ),
)
