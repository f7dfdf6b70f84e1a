"""State that ranks divide among themselves, each with an equal part of a tensor.

A part is flat, and has zeros, or initial values, behind the end of the tensor.
Rajbhandari et al., "ZeRO: memory optimizations toward training trillion parameter
models", SC 2020.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from memcfg.nn._network import Weight
    from memcfg.nn.optimizers import Optimizer
    from memcfg.nn.optimizers._optimizer import Slot
    from memcfg.runtime import FirstValue

__all__ = [
    "SHARDINGS",
    "Parts",
    "Peers",
    "require_elementwise",
    "shardable",
    "share_of",
]

Array = npt.NDArray[Any]

SHARDINGS = ("optimizer", "gradients", "parameters")
_LEAST = 1024  # bytes of a weight; messages take longer than updates of smaller ones


R = TypeVar("R")


class Peers(Protocol):
    """The other ranks, and the parts of state that they have."""

    def read_parts(self, name: str) -> Sequence[Array]:
        """Return the parts of all ranks, in their order."""

    def write_all(self, name: str, value: Array) -> None:
        """Write a whole value to all ranks, each of which keeps what it holds."""

    def together(self, function: Callable[[Any], R]) -> R:
        """Call a function for the session of each rank; return this rank's result."""


@dataclass(frozen=True)
class Parts:
    """The state of which a rank has a part."""

    whole: Mapping[str, Weight | Slot]  # by names of tensors
    rank: int
    ranks: int

    def __contains__(self, name: str) -> bool:
        return name in self.whole

    def length(self, name: str) -> int:
        """Return the elements of each rank's part."""
        return -(-prod(self.whole[name].shape) // self.ranks)

    def shape_of(self, given: Weight | Slot) -> tuple[int, ...]:
        """Return the shape that a tensor has on this rank."""
        return (self.length(given.name),) if given.name in self else given.shape

    def of(self, name: str, value: Array) -> Array:
        """Return this rank's part of a whole value."""
        length = self.length(name)
        result = np.zeros(length, value.dtype)
        own = value.reshape(-1)[self.rank * length : (self.rank + 1) * length]
        result[: own.size] = own
        return result

    def join(self, name: str, parts: Sequence[Array]) -> Array:
        """Return the whole value that the parts of all ranks make."""
        shape = self.whole[name].shape
        return np.concatenate(parts)[: prod(shape)].reshape(shape)

    def first(self, name: str) -> FirstValue:
        """Return this rank's part of a value that is not drawn yet."""
        return _FirstPart(self, name)


class _FirstPart:
    """A part of a first value: a `FirstValue`."""

    draws_in_place = False

    def __init__(self, parts: Parts, name: str) -> None:
        self._parts = parts
        self._name = name

    def first_value(self) -> Array:
        whole = self._parts.whole[self._name].first_value()
        return self._parts.of(self._name, whole)

    def draw_into(self, values: Array, /) -> None:
        values[...] = self.first_value()


def share_of(samples: int, parts: int) -> list[tuple[int, int]]:
    """Return where each part of a batch begins and ends; lengths differ by 1."""
    least, more = divmod(samples, parts)
    ends = itertools.accumulate(least + (part < more) for part in range(parts))
    return list(itertools.pairwise([0, *ends]))


def shardable(weights: Iterable[Weight]) -> dict[str, Weight]:
    """Return the weights that are divided among ranks, by name."""
    return {
        weight.name: weight
        for weight in weights
        if weight.dtype == "float32" and weight.nbytes >= _LEAST
    }


def require_elementwise(optimizer: Optimizer) -> None:
    """Raise ValueError if parts of weights cannot be updated each on its own."""
    reason = optimizer.why_whole()
    if reason:
        raise ValueError(
            f"shard divides weights among the ranks, and {reason}: use shard=None, or "
            "an optimizer that updates each element by itself, such as Adam"
        )
