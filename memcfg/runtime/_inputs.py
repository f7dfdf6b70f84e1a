"""Inputs that a program reads in place instead of copying them into the arena.

Determines which inputs can be bound to a caller's array and which operands of a
compiled program read an input's bytes. A written operand is never redirected, except
for the output of an in-place copy, which writes nothing.

The input's own bytes stay reserved, so the peak is the same with and without binding;
only the copy is saved.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from memcfg.graph import Graph, Op

__all__ = ["Readers"]

# ops whose output equals the input byte for byte
_COPIES = frozenset({"flatten", "reshape"})


class Readers:
    """The operands of a program that refer to the bytes of its inputs.

    Instructions are visited in order. The output of a copying op that shares the
    input's place also refers to the input's bytes, until an op computes it again.
    """

    def __init__(self, graph: Graph) -> None:
        self._graph = graph
        self._operands: dict[int, list[tuple[int, int]]] = {
            i: []
            for i, tensor in enumerate(graph.tensors)
            if tensor.role == "input" and graph.producer[i] is None
        }
        self._input_of = {tensor: tensor for tensor in self._operands}
        self._fixed = {tensor for tensor in graph.keep if tensor in self._operands}

    def see(
        self,
        number: int,
        op: Op,
        places: Mapping[int, tuple[int, int]],
        *,
        native: bool,
    ) -> None:
        """Visit an instruction; a native in-place copy writes nothing."""
        copied = self._copied(op, places)
        movable = native or copied is None
        for position, tensor in enumerate(op.inputs):
            if tensor in self._input_of:
                self._note(self._input_of[tensor], (number, position), movable)
        for position, tensor in enumerate(op.outputs, len(op.inputs)):
            self._input_of.pop(tensor, None)
            if copied is not None:
                self._input_of[tensor] = copied
                self._note(copied, (number, position), movable)
                if tensor in self._graph.keep:  # fetched from its planned place
                    self._fixed.add(copied)

    def fix(self, tensor: int) -> None:
        """Record that a tensor is copied from its planned place: it cannot be bound."""
        if tensor in self._input_of:
            self._fixed.add(self._input_of[tensor])

    def movable(self) -> Iterator[tuple[int, list[tuple[int, int]]]]:
        """Yield the inputs that can be bound elsewhere, with their operands."""
        for tensor, operands in self._operands.items():
            if operands and tensor not in self._fixed:
                yield tensor, operands

    def _note(self, tensor: int, operand: tuple[int, int], movable: bool) -> None:
        self._operands[tensor].append(operand)
        if not movable:
            self._fixed.add(tensor)

    def _copied(self, op: Op, places: Mapping[int, tuple[int, int]]) -> int | None:
        """Return the input that an op copies onto itself, or None."""
        if op.type not in _COPIES or places[op.inputs[0]] != places[op.outputs[0]]:
            return None
        return self._input_of.get(op.inputs[0])
