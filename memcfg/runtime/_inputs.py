"""Inputs that are read where they lie instead of being copied into the arena.

Owns which arrays can stand for an input, and which operands of a compiled program read
an input's bytes. Refuses to change them: an operand that is written is never sent
elsewhere, but for the output of a copy in place, which writes nothing.

The input's room in the arena stays where the plan says, so a peak is the same with and
without: what is saved is the copy.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from memcfg.units import ALIGNMENT

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    import numpy.typing as npt

    from memcfg.graph import Graph, Op, Tensor
    from memcfg.runtime._ways import Room

__all__ = ["Elsewhere", "Readers", "fits"]

_COPIES = frozenset({"flatten", "reshape"})  # ops whose output has the input's bytes


def fits(tensor: Tensor, array: npt.NDArray[Any]) -> bool:
    """Tell whether an array can be read in place of a tensor's room."""
    return (
        array.shape == tensor.shape
        and array.dtype == tensor.dtype
        and array.flags.c_contiguous
    )


class Readers:
    """The operands of a program that stand for the bytes of its inputs.

    Follows the instructions of a plan in order. An output that a copying op leaves in
    the input's own room has the input's bytes too, until an op makes it anew.
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
        self, number: int, op: Op, rooms: Mapping[int, int], *, movable: bool
    ) -> None:
        """Follow an instruction."""
        copied = self._copied(op, rooms)
        for position, tensor in enumerate(op.inputs):
            self._note(self._input_of.get(tensor), (number, position), movable)
        for position, tensor in enumerate(op.outputs, len(op.inputs)):
            self._input_of.pop(tensor, None)
            if copied is not None:
                self._input_of[tensor] = copied
                self._note(copied, (number, position), movable)
                if tensor in self._graph.keep:  # it is fetched from its room
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

    def _copied(self, op: Op, rooms: Mapping[int, int]) -> int | None:
        """Return the input whose bytes an op leaves where they are."""
        if op.type not in _COPIES or rooms[op.inputs[0]] != rooms[op.outputs[0]]:
            return None
        return self._input_of.get(op.inputs[0])


class Elsewhere:
    """An array that is read in place of an input's room."""

    __slots__ = ("_array", "address")

    def __init__(self, array: npt.NDArray[Any]) -> None:
        self._array = array
        self.address: int = array.__array_interface__["data"][0]

    @staticmethod
    def of(
        graph: Graph, tensor: int, array: npt.NDArray[Any], written: Iterable[Room]
    ) -> Elsewhere | None:
        """Return what stands for a tensor's bytes; None if they must be copied."""
        if tensor in graph.keep or not fits(graph.tensors[tensor], array):
            return None
        found = Elsewhere(array)
        aligned = found.address % ALIGNMENT == 0
        return found if aligned and not any(map(found._overlaps, written)) else None

    def _overlaps(self, other: Room) -> bool:
        begin, end = self.address, self.address + self._array.nbytes
        return begin < other.address + other.nbytes and other.address < end
