"""Which steps of a sequence count: masks, which go from layer to layer.

A mask is a float32 tensor ``[batch, steps]`` of zeros and ones. A call's `Scope` has
those of its inputs; a layer that supports masking passes the first one on, or says
another one for its result.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from memcfg.nn._argument_checks import real
from memcfg.nn.layers._layer import Layer, Scope, Shape, WeightSpec

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["Masking", "either", "spread"]


def spread(scope: Scope, mask: int, shape: Shape) -> int:
    """Append a mask's value for each element of a tensor of this shape."""
    steps = scope.builder.shape(mask)
    column = {"shape": (*steps, *(1 for _ in shape[2:]))}
    (wide,) = scope.apply("reshape", (mask,), column)
    return scope.apply("broadcast_to", (wide,), {"shape": shape})[0]


def either(scope: Scope, masks: Sequence[int | None]) -> int | None:
    """Append the steps that count in one tensor or another; None: all count."""
    known = [mask for mask in masks if mask is not None]
    if len(known) < len(masks):
        return None
    total, *others = known
    for each in others:
        (total,) = scope.apply("maximum", (total, each))
    return total


class Masking(Layer):
    """Leave out the steps whose values are all one number.

    Recurrent layers keep their state there, attention and losses do not look.

    Parameters
    ----------
    mask_value : float, default 0.0
        The number.
    name : str, optional
        Unique within a model.
    """

    __slots__ = ("mask_value",)

    supports_masking: ClassVar[bool] = True

    def __init__(self, mask_value: float = 0.0, *, name: str | None = None) -> None:
        self.mask_value = real(mask_value, "Masking: mask_value")
        super().__init__(name)

    def specs(self, shapes: Sequence[Shape]) -> tuple[WeightSpec, ...]:
        """Check the shape; there are no weights."""
        self.require_rank(shapes[0], 2, "sequences (None, steps, features)")
        return ()

    def trace(self, scope: Scope, inputs: Sequence[int]) -> int:
        """Append the mask, and zeros where it is none."""
        (x,) = inputs
        shape = scope.builder.shape(x)
        (unequal,) = scope.apply("unequal", (x,), {"to": self.mask_value})
        last = {"axes": (2,), "keepdims": True}
        (column,) = scope.apply("reduce_max", (unequal,), last)
        (mask,) = scope.apply("reshape", (column,), {"shape": shape[:2]})
        (wide,) = scope.apply("broadcast_to", (column,), {"shape": shape})
        scope.mask = mask
        return scope.apply("masked", (wide, x))[0]
