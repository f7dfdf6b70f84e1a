"""Arrays of the caller in which a program works instead of its arena.

Determines which inputs can be bound to a caller's array and which operands of a
compiled program read an input's bytes. A written operand is never redirected, except
for the output of an in-place copy, which writes nothing. The input's own bytes stay
reserved, so the peak is the same with and without binding; only the copy is saved.

Results that lie outside of the arena have no bytes in the plan. Each run writes them
into arrays that are lent for it.
"""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np

from memcfg.ops._dtypes import array_dtype
from memcfg.units import ALIGNMENT

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    import numpy.typing as npt

    from memcfg._core import Program as Loop
    from memcfg.graph import Graph, Op
    from memcfg.memory import Pool

__all__ = ["Readers", "Results", "aligned_empty"]

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


def aligned_empty(
    shape: tuple[int, ...], dtype: np.dtype[Any]
) -> npt.NDArray[np.generic]:
    """Create an uninitialised array that begins at a multiple of 64 bytes.

    Parameters
    ----------
    shape : tuple of int
        The shape.
    dtype : numpy.dtype
        The type of the elements.

    Returns
    -------
    numpy.ndarray
        A view of an array of up to 64 bytes more.
    """
    raw = np.empty(prod(shape) * dtype.itemsize + ALIGNMENT, np.uint8)
    address: int = raw.__array_interface__["data"][0]
    return np.ndarray(shape, dtype, raw.data, -address % ALIGNMENT)


class Results:
    """The results of a program that lie outside of the arena, and their arrays.

    Each has a buffer that is never allocated, so that a run cannot begin without an
    array in its place.
    """

    def __init__(self, graph: Graph) -> None:
        self._graph = graph
        self._result_of = {each: _result_of(graph, each) for each in graph.outside}
        self._operands: dict[int, list[tuple[int, int]]] = {
            result: [] for result in sorted(set(self._result_of.values()))
        }
        # Of the results and of what lies in their bytes, by tensor.
        self.places: dict[int, tuple[int, int]] = {}  # space, offset
        self.sizes = {
            tensor: self._size(result) for tensor, result in self._result_of.items()
        }
        self._numbers: dict[str, int] = {}  # in the loop, by name
        self._lent: set[str] = set()
        self.tensors = {graph.tensors[i].name: i for i in self._operands}  # by name

    def _size(self, result: int) -> int:
        shape, dtype = self.form(result)
        return prod(shape) * dtype.itemsize

    def form(self, result: int) -> tuple[tuple[int, ...], np.dtype[Any]]:
        """Return the shape and dtype of a result."""
        tensor = self._graph.tensors[result]
        assert tensor.shape is not None  # checked when its kernel was made
        assert tensor.dtype is not None
        return tensor.shape, array_dtype(tensor.dtype)

    def add_buffers(self, loop: Loop, pool: Pool, tag: str) -> None:
        """Give each result a space of its own, which takes no memory."""
        spaces = {
            result: loop.add_buffer(pool, self.sizes[result], tag)
            for result in self._operands
        }
        for tensor, result in self._result_of.items():
            self.places[tensor] = spaces[result], 0

    def see(self, number: int, op: Op) -> None:
        """Visit an instruction."""
        for position, tensor in enumerate((*op.inputs, *op.outputs)):
            if tensor in self._result_of:
                self._operands[self._result_of[tensor]].append((number, position))

    def declare(self, loop: Loop) -> None:
        """Declare the operands of each result, when all have been seen."""
        for name, result in self.tensors.items():
            operands, nbytes = self._operands[result], self.sizes[result]
            self._numbers[name] = loop.input(operands, nbytes)

    def lend(self, loop: Loop, name: str, array: npt.NDArray[Any]) -> None:
        """Make runs write a result into an array; see `Program.lend`."""
        shape, dtype = self.form(self.tensors[name])
        self._lent.add(name)  # before binding, so that `end` can undo it
        if (
            array.shape != shape
            or array.dtype != dtype
            or not array.flags.c_contiguous
            or not array.flags.writeable
            or not loop.bind(self._numbers[name], array.data)
        ):
            self._lent.discard(name)
            raise ValueError(
                f"result {name!r} needs a writable, C-contiguous array of shape "
                f"{shape} and {dtype} that begins at a multiple of {ALIGNMENT} bytes "
                "outside of the arena"
            )

    def check(self) -> None:
        """Raise RuntimeError if a result has no array."""
        if len(self._lent) < len(self.tensors):
            names = ", ".join(map(repr, sorted(self.tensors.keys() - self._lent)))
            raise RuntimeError(f"results outside of the arena have no array: {names}")

    def end(self, loop: Loop) -> None:
        """Let go of all arrays; an interrupted call is repeated."""
        while self._lent:
            name = next(iter(self._lent))
            loop.unbind(self._numbers[name])
            self._lent.discard(name)


def _result_of(graph: Graph, tensor: int) -> int:
    """Return the result that reshapes turn a tensor outside of the arena into."""
    while graph.consumers[tensor]:
        (reader,) = graph.consumers[tensor]
        (tensor,) = graph.ops[reader].outputs
    return tensor
