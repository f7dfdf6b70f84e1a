"""A node with its inputs, as the functions that make layers of it get it."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from memcfg.nn.exchange.imports._axis_views import (
    Known,
    Places,
    Rounded,
    UnsupportedError,
    View,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from memcfg.nn.layers import SymbolicTensor
    from memcfg.onnx import OnnxNode

__all__ = ["Node", "Rule", "Value"]

Value: TypeAlias = View | Known | Rounded | Places


@dataclass(frozen=True)
class Node:
    """A node of a graph, whose inputs are known."""

    importer: Any
    place: int
    of: OnnxNode
    inputs: Sequence[Value | None]

    @property
    def type(self) -> str:
        """The op type."""
        return self.of.type

    @property
    def opset(self) -> int:
        """The version of ONNX's ops."""
        return int(self.importer.graph.opset)

    @property
    def batch(self) -> int:
        """The length that stands for the batch."""
        return int(self.importer.batch)

    def has(self, place: int) -> bool:
        """Return whether there is an input at a place."""
        return place < len(self.inputs) and self.inputs[place] is not None

    def value(self, place: int) -> View | Known:
        """Return an input."""
        value = self.inputs[place] if self.has(place) else None
        if not isinstance(value, View | Known):
            raise UnsupportedError(f"has no numbers as input {place}")
        return value

    def view(self, place: int = 0) -> View:
        """Return an input that depends on those of the graph."""
        value = self.value(place)
        if isinstance(value, View):
            return value
        if not value.shape or value.shape[0] not in (1, self.batch):
            raise UnsupportedError(f"has a constant as input {place}")
        made: View = self.importer.repeated(value, self.operand(value))
        return made

    def known(self, place: int) -> Known:
        """Return an input that does not depend on those of the graph."""
        value = self.value(place)
        if isinstance(value, View):
            raise UnsupportedError(
                f"has an input {place} that is computed, and not a constant"
            )
        return value

    def all_known(self) -> bool:
        """Return whether no input depends on those of the graph."""
        return all(isinstance(each, Known) for each in self.inputs if each is not None)

    def arrays(self) -> list[np.ndarray[Any, Any]]:
        """Return the inputs as arrays."""
        return [self.known(i).array() for i in range(len(self.inputs))]

    def get(self, name: str, default: Any = None) -> Any:
        """Return an attribute."""
        return self.of.attributes.get(name, default)

    def setting(self, name: str, place: int, default: Any = None) -> Any:
        """Return what was an attribute and is an input now, as a tuple or a number."""
        if name in self.of.attributes:
            return self.of.attributes[name]
        if not self.has(place):
            return default
        array = self.known(place).array()
        return tuple(array.tolist()) if array.ndim else array.item()

    def axis(self, default: int, rank: int, name: str = "axis") -> int:
        """Return an attribute that is an axis, from 0 on."""
        return self.checked_axis(int(self.get(name, default)), rank)

    @staticmethod
    def checked_axis(axis: int, rank: int) -> int:
        """Return an axis from 0 on."""
        if not -rank <= axis < rank:
            raise ValueError(f"there is no axis {axis} of {rank}")
        return axis % rank

    def axes(self, given: Any, rank: int) -> list[int]:
        """Return axes from 0 on."""
        several = given if isinstance(given, list | tuple) else (given,)
        return [self.checked_axis(int(each), rank) for each in several]

    def label(self, weight: Known | None = None) -> str:
        """Return a name for the layer, that of its weight if programs chose it."""
        name = None if weight is None else weight.weight
        if name is None or "::" in name or not re.match(r"[A-Za-z]", name):
            return str(self.of.name or self.type)
        return re.split(r"[./](?=[^./]*$)", name)[0]

    def operand(self, value: Known) -> SymbolicTensor | float | np.ndarray[Any, Any]:
        """Return an array as an operand: a number, a constant or a weight."""
        if value.size == 1:
            return float(value.array().reshape(()))
        floats = np.dtype(value.dtype).kind == "f"
        is_weight = value.weight is not None and floats
        if is_weight and np.isfinite(value.read()).all():
            made: SymbolicTensor = self.importer.parameter(
                value, self.label(value), learns=True
            )
            return made
        if value.size > _CONSTANT:
            return self.importer.parameter(value, self.label(value), learns=False)  # type: ignore[no-any-return]
        array = value.array()
        return array.astype(np.float32 if floats or array.dtype == bool else np.int32)


_CONSTANT = 2**16  # elements of what becomes a part of the program
Rule: TypeAlias = Callable[[Node], Any]
