"""An inference graph without the numbers of one batch: what `export` reads."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from memcfg._cached import cached_property
from memcfg.errors import GraphError
from memcfg.onnx._symbolic_lengths import Length, fit

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from memcfg.graph import Graph
    from memcfg.onnx._symbolic_lengths import Number, Symbols

__all__ = ["TracedOp", "Traces", "Value"]


class TracedOp(NamedTuple):
    """An op whose attributes hold for every batch."""

    name: str
    type: str
    layer: str
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    attributes: Mapping[str, Any]


class Value(NamedTuple):
    """A tensor whose shape holds for every batch."""

    name: str
    shape: tuple[Number, ...]
    dtype: str
    role: str

    @property
    def lengths(self) -> tuple[int, ...] | None:
        """The shape, or None if a length depends on the batch."""
        known = tuple(each for each in self.shape if not isinstance(each, Length))
        return known if len(known) == len(self.shape) else None


@dataclass(frozen=True)
class Traces:
    """The inference of one network, traced at several sizes.

    Parameters
    ----------
    graphs : sequence of Graph
        The same ops in the same order, traced without rewrites.
    settings : sequence of mapping of str to int
        The value of each symbol, such as ``batch``, in each of the graphs. With one
        graph all lengths are fixed.
    inputs : mapping of int to str
        The ids of inputs, with the names that they get.
    outputs : sequence of (int, str)
        The ids of results, in order, with the names that they get.
    """

    graphs: Sequence[Graph]
    settings: Sequence[Symbols]
    inputs: Mapping[int, str]
    outputs: Sequence[tuple[int, str]]
    _known: dict[int, TracedOp] = field(default_factory=dict)

    def __post_init__(self) -> None:
        first, *others = self.graphs
        for other in others:
            pairs = zip(first.ops, other.ops, strict=False)
            alike = len(first.ops) == len(other.ops) and all(
                (a.type, a.inputs, a.outputs) == (b.type, b.inputs, b.outputs)
                for a, b in pairs
            )
            if not alike:
                raise GraphError(
                    f"{first.name!r} has other ops for {dict(self.settings[0])} than "
                    f"for {dict(self.settings[-1])}"
                )

    @property
    def _first(self) -> Graph:
        return self.graphs[0]

    @cached_property
    def needed(self) -> list[int]:
        """The indices of the ops on which the outputs depend, in order."""
        made = self._first.producer
        left = [tensor for tensor, _ in self.outputs]
        found: set[int] = set()
        while left:
            index = made[left.pop()]
            if index is not None and index not in found:
                found.add(index)
                left += self._first.ops[index].inputs
        return sorted(found)

    @cached_property
    def consumers(self) -> Mapping[int, Sequence[int]]:
        """For each tensor the needed ops that read it."""
        found: dict[int, list[int]] = {}
        for index in self.needed:
            for tensor in dict.fromkeys(self._first.ops[index].inputs):
                found.setdefault(tensor, []).append(index)
        return found

    def op(self, index: int) -> TracedOp:
        """Return an op; GraphError if its attributes depend on sizes as no length."""
        if index not in self._known:
            op = self._first.ops[index]
            given = [dict(graph.ops[index].attributes) for graph in self.graphs]
            try:
                attributes = fit(given, self.settings)
            except GraphError as error:
                raise GraphError(
                    f"op {op.name!r} ({op.type}) of layer {op.group!r} {error}: it "
                    "depends on the size in a way that ONNX cannot be told. Export for "
                    "fixed sizes: batch_size=1, and lengths=... of axes of any length"
                ) from None
            self._known[index] = TracedOp(
                op.name, op.type, op.group, op.inputs, op.outputs, attributes
            )
        return self._known[index]

    def maker(self, tensor: int) -> TracedOp | None:
        """Return the op that makes a tensor, or None."""
        index = self._first.producer[tensor]
        return None if index is None else self.op(index)

    def value(self, tensor: int) -> Value:
        """Return a tensor's shape and dtype."""
        first = self._first.tensors[tensor]
        shapes = [graph.tensors[tensor].shape for graph in self.graphs]
        shape = fit(shapes, self.settings)
        return Value(first.name, tuple(shape), str(first.dtype), first.role)

    def is_read_once(self, tensor: int) -> bool:
        """Return whether one op reads a tensor, and it is no result."""
        kept = any(tensor == other for other, _ in self.outputs)
        return len(self.consumers.get(tensor, ())) == 1 and not kept
