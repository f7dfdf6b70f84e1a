"""Parallel branches of convolutions, described by tables.

A branch is a sequence of steps: a convolution, as its filters, its kernel size and, if
it has one, its stride, which goes with the padding "valid"; a pool; or a fork.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from memcfg.nn.applications._shared_layers import normalized
from memcfg.nn.layers import (
    Activation,
    AveragePooling2D,
    Concatenate,
    Conv2D,
    MaxPooling2D,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from memcfg.nn.layers import SymbolicTensor

__all__ = ["AVERAGE", "LARGEST", "Fork", "branched", "convolved", "stem"]

AVERAGE = "average"  # a pool of the input's size
LARGEST = "largest"  # a pool of half the size
# What both networks begin with: the strides of 1 are those without padding.
_STEM = (
    *((32, 3, 2), (32, 3, 1), (64, 3), LARGEST),
    *((80, 1, 1), (192, 3, 1), LARGEST),
)


class Fork(NamedTuple):
    """Branches of one convolution each, which are joined again."""

    branches: tuple[Any, ...]
    name: str | None = None  # of the layer that joins them


def convolved(
    x: SymbolicTensor,
    filters: int,
    size: int | tuple[int, int],
    strides: int | None = None,
    *,
    name: str | None = None,
) -> SymbolicTensor:
    """Append a convolution, normalisation and ReLU."""
    x = Conv2D(
        filters,
        size,
        strides or 1,
        "valid" if strides else "same",
        use_bias=False,
        name=name,
    )(x)
    x = normalized(x, name and f"{name}_bn", scale=False)
    result: SymbolicTensor = Activation("relu", name=name and f"{name}_ac")(x)
    return result


def branched(
    x: SymbolicTensor, branches: Sequence[Sequence[Any]], name: str | None
) -> SymbolicTensor:
    """Append branches, and join their channels."""
    result: SymbolicTensor = Concatenate(name=name)([_along(x, b) for b in branches])
    return result


def _along(x: SymbolicTensor, steps: Sequence[Any]) -> SymbolicTensor:
    """Append the steps of a branch."""
    for step in steps:
        if step == AVERAGE:
            x = AveragePooling2D(3, 1, "same")(x)
        elif step == LARGEST:
            x = MaxPooling2D(3, 2)(x)
        elif isinstance(step, Fork):
            x = branched(x, [(each,) for each in step.branches], step.name)
        else:
            x = convolved(x, *step)
    return x


def stem(x: SymbolicTensor) -> SymbolicTensor:
    """Append what both networks begin with."""
    return _along(x, _STEM)
