"""Axes of samples: which a layer names, and their way to the end and back."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from memcfg.nn.layers._layer import show_shape

if TYPE_CHECKING:
    from collections.abc import Sequence

    from memcfg.nn.layers._layer import Scope, Shape

__all__ = ["axes_of_sample", "moved_back", "moved_last"]


def axes_of_sample(layer: Any, shape: Shape) -> tuple[int, ...]:
    """Return the axes, counted with the batch and in order; ValueError for others."""
    axes = layer.axis if isinstance(layer.axis, tuple) else (layer.axis,)
    rank = len(shape) + 1
    found = sorted({each % rank for each in axes if -rank <= each < rank})
    if len(found) < len(axes) or not axes or found[0] == 0:
        raise ValueError(
            f"layer {layer.name!r} ({type(layer).__name__}): axis={layer.axis} names "
            f"no axes of a sample of an input of shape {show_shape(shape)}"
        )
    return tuple(found)


def _order(rank: int, axes: Sequence[int]) -> tuple[int, ...]:
    return (*(i for i in range(rank) if i not in axes), *axes)


def moved_last(scope: Scope, x: int, axes: Sequence[int]) -> int:
    """Append a transpose of axes to the end, if they are not there."""
    order = _order(len(scope.builder.shape(x)), axes)
    if order == tuple(range(len(order))):
        return x
    return scope.apply("transpose", (x,), {"axes": order})[0]


def moved_back(scope: Scope, y: int, axes: Sequence[int]) -> int:
    """Append a transpose of the last axes to where they were."""
    order = _order(len(scope.builder.shape(y)), axes)
    if order == tuple(range(len(order))):
        return y
    back = tuple(map(order.index, range(len(order))))
    return scope.apply("transpose", (y,), {"axes": back})[0]
