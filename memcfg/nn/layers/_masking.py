"""Which steps of a sequence count: masks, found in the graph that is being traced.

A mask is a float32 tensor ``[batch, steps]`` of zeros and ones. A layer notes one for
its result; what is computed from that result step by step has the same one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

from memcfg.nn._argument_checks import real
from memcfg.nn.layers._layer import Layer, Scope, Shape, WeightSpec

if TYPE_CHECKING:
    from collections.abc import Sequence

    from memcfg.graph import Builder

__all__ = ["Masking", "mask_of", "note_mask"]

_noted: WeakKeyDictionary[Builder, dict[int, int | None]] = WeakKeyDictionary()


def note_mask(builder: Builder, tensor: int, mask: int | None) -> None:
    """Say which steps of a tensor count; None: all, whatever it is computed from."""
    _noted.setdefault(builder, {})[tensor] = mask


def mask_of(builder: Builder, tensor: int) -> int | None:
    """Return the mask of a tensor: noted, or of what it is computed from step by step.

    An op passes the mask of its first input that has one, as long as batch and steps
    stay the two first axes.
    """
    noted = _noted.get(builder)
    if not noted:
        return None
    makers = {made: op.inputs for op in builder.ops for made in op.outputs}
    shape = builder.shape(tensor)[:2]
    found: dict[int, int | None] = {}
    stack = [tensor]
    while stack:
        each = stack.pop()
        if each in found or builder.shape(each)[:2] != shape:
            continue
        found[each] = noted.get(each)
        if each not in noted:
            stack += reversed(makers.get(each, ()))
        elif found[each] is not None:
            return found[each]
    return None


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
        (y,) = scope.apply("masked", (wide, x))
        note_mask(scope.builder, y, mask)
        return y
