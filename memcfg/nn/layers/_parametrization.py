"""How a weight is computed in each step from others, which a model holds instead."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np

    from memcfg.graph import Builder

__all__ = ["Parametrization", "Part"]


class Part(NamedTuple):
    """One of the weights that a weight is computed from."""

    name: str  # follows that of the weight, as in "kernel_values"
    shape: tuple[int, ...]
    dtype: str = "float32"
    trainable: bool = False  # if the weight itself is


class Parametrization(ABC):
    """How a weight of some shape is computed from its parts.

    A model of a layer with parametrizations holds the parts in place of the weight:
    they are its state, and have the gradients and the optimizer's state. The weight is
    an activation of the step.
    """

    __slots__ = ()

    @property
    @abstractmethod
    def parts(self) -> tuple[Part, ...]:
        """The parts, in the order in which the methods take them."""

    @abstractmethod
    def trace(
        self, builder: Builder, parts: Sequence[int], shape: tuple[int, ...], name: str
    ) -> int:
        """Append the ops that compute the weight; `name` is for the last one."""

    @abstractmethod
    def compute(
        self, parts: Sequence[np.ndarray], shape: tuple[int, ...]
    ) -> np.ndarray:
        """Return the weight as a new array, with the bits of the ops."""

    @abstractmethod
    def split(
        self, value: np.ndarray, parts: Sequence[np.ndarray]
    ) -> Sequence[np.ndarray]:
        """Return the parts for a new value; ValueError if it has none like `parts`."""
