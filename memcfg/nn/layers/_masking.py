"""Masks, which mark the steps of a sequence to ignore.

A mask is a float32 tensor ``[batch, steps]``, 0 for ignored steps and 1 for others. A
call's `Scope` holds the masks of its inputs. A layer that supports masking passes on
the first one, or sets a mask for its result.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from memcfg.nn._argument_checks import real
from memcfg.nn.layers._layer import Layer, Scope, Shape

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["Masking", "either", "spread"]


def spread(scope: Scope, mask: int, shape: Shape) -> int:
    """Append the broadcast of a mask to the shape of a tensor."""
    steps = scope.builder.shape(mask)
    column = {"shape": (*steps, *(1 for _ in shape[2:]))}
    (wide,) = scope.apply("reshape", (mask,), column)
    return scope.apply("broadcast_to", (wide,), {"shape": shape})[0]


def either(scope: Scope, masks: Sequence[int | None]) -> int | None:
    """Append the union of masks; None if a tensor has no mask."""
    known = [mask for mask in masks if mask is not None]
    if len(known) < len(masks):
        return None
    total, *others = known
    for each in others:
        (total,) = scope.apply("maximum", (total, each))
    return total


class Masking(Layer):
    """Mask the steps whose values all equal a number.

    Recurrent layers keep their state at masked steps; attention and losses ignore them.

    Parameters
    ----------
    mask_value : float, default 0.0
        The value of masked steps.
    name : str, optional
        The name, unique within a model.
    """

    __slots__ = ("mask_value",)

    supports_masking: ClassVar[bool] = True

    def __init__(self, mask_value: float = 0.0, *, name: str | None = None) -> None:
        self.mask_value = real(mask_value, "Masking: mask_value")
        super().__init__(name)

    def _check_shapes(self, shapes: Sequence[Shape]) -> None:
        """Check the shape."""
        self.require_rank(shapes[0], 2, "sequences (None, steps, features)")

    def trace(self, scope: Scope, inputs: Sequence[int]) -> int:
        """Append the mask, and set masked steps to zeros."""
        (x,) = inputs
        shape = scope.builder.shape(x)
        (unequal,) = scope.apply("unequal", (x,), {"to": self.mask_value})
        last = {"axes": (2,), "keepdims": True}
        (column,) = scope.apply("reduce_max", (unequal,), last)
        (mask,) = scope.apply("reshape", (column,), {"shape": shape[:2]})
        (wide,) = scope.apply("broadcast_to", (column,), {"shape": shape})
        scope.mask = mask
        return scope.apply("masked", (wide, x))[0]
