"""Inputs that are read where they lie instead of being copied into the arena.

Owns which arrays can stand for an input, and which operands of a compiled program read
an input's bytes. Refuses to change them: an operand that is written is never sent
elsewhere, but for the output of a copy in place, which writes nothing.

The input's own bytes stay reserved, so a peak is the same with and without: what is
saved is the copy.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from memcfg.graph import Graph, Op

__all__ = ["Readers"]

_COPIES = frozenset({"flatten", "reshape"})  # ops whose output has the input's bytes


class Readers:
    """The operands of a program that stand for the bytes of its inputs.

    Follows instructions in order. An output that a copying op leaves in the input's own
    place has the input's bytes too, until an op makes it anew.
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
        """Follow an instruction; a copy in place writes nothing if it is native."""
        copied = self._copied(op, places)
        movable = native or copied is None
        for position, tensor in enumerate(op.inputs):
            self._note(self._input_of.get(tensor), (number, position), movable)
        for position, tensor in enumerate(op.outputs, len(op.inputs)):
            self._input_of.pop(tensor, None)
            if copied is not None:
                self._input_of[tensor] = copied
                self._note(copied, (number, position), movable)
                if tensor in self._graph.keep:  # it is fetched from there
                    self._fixed.add(copied)

    def fix(self, tensor: int) -> None:
        """Note that a tensor's bytes are copied from where the plan has them."""
        if tensor in self._input_of:
            self._fixed.add(self._input_of[tensor])

    def movable(self) -> Iterator[tuple[int, list[tuple[int, int]]]]:
        """Yield the inputs that may lie elsewhere."""
        for tensor, operands in self._operands.items():
            if operands and tensor not in self._fixed:
                yield tensor, operands

    def _note(
        self, tensor: int | None, operand: tuple[int, int], movable: bool
    ) -> None:
        if tensor is not None:
            self._operands[tensor].append(operand)
            if not movable:
                self._fixed.add(tensor)

    def _copied(self, op: Op, places: Mapping[int, tuple[int, int]]) -> int | None:
        """Return the input whose bytes an op leaves where they are."""
        if op.type not in _COPIES or places[op.inputs[0]] != places[op.outputs[0]]:
            return None
        return self._input_of.get(op.inputs[0])
