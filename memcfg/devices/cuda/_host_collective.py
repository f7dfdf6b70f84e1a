"""Collectives of a GPU: operands are copied to the host, where the ranks meet.

A GPU has no communicator of its own here. Operands of a collective go to page-locked
memory on the lanes of the host's tier, the communicator computes there, and results
come back.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from memcfg import ops
from memcfg.errors import KernelError
from memcfg.units import align_up

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from memcfg.devices._contract import OperandSpec

__all__ = ["HostCollective", "Staged"]


class Staged(NamedTuple):
    """An operand, by its position, and where it lies in the memory on the host."""

    operand: int
    offset: int
    nbytes: int


@dataclass(frozen=True)
class HostCollective:
    """A collective of ranks, in memory of the host.

    Operands are the inputs, then the outputs. The tokens, which come first in both,
    give an order and have no content, so they are not copied. Where a result may take
    the bytes of an input, it does so on the host.
    """

    op_type: str
    attributes: Mapping[str, Any]
    inputs: tuple[OperandSpec, ...]
    outputs: tuple[OperandSpec, ...]

    algorithm = "host"
    scratch_bytes = 0
    kernel = None

    def instruction(self) -> HostCollective:
        """Return the argument for `compute` of programs."""
        return self

    def run(self, addresses: Sequence[int], scratch: int) -> None:
        """Raise KernelError: only programs have memory of the host for it."""
        del addresses, scratch
        raise KernelError(f"{self.op_type!r} runs in programs only")

    @property
    def sizes(self) -> tuple[tuple[int, bool], ...]:
        """The bytes of each operand, and whether it is written."""
        read = [(spec.nbytes, False) for spec in self.inputs]
        return (*read, *((spec.nbytes, True) for spec in self.outputs))

    @property
    def down(self) -> list[Staged]:
        """The operands that are copied to the host."""
        return self._places()[: len(self._read)]

    @property
    def up(self) -> list[Staged]:
        """The operands that are copied back."""
        places, count = self._places(), len(self.inputs)
        if self._is_in_place:
            return [each._replace(operand=each.operand + count) for each in places]
        return places[len(self._read) :]

    @property
    def staged_bytes(self) -> int:
        """Bytes on the host, with those that the communicator needs."""
        return self._end + align_up(self._work_bytes)

    def call(self, base: int) -> None:
        """Compute with operands on the host, from an address on."""
        token = np.zeros(1, np.float32)
        places = self._places()
        arrays = [self._array(base, each) for each in places]
        read, written = arrays[: len(self._read)], arrays[len(self._read) :]
        if self._is_in_place:
            written = read
        attributes, outputs = dict(self.attributes), [token, *written]
        attributes["work_bytes"] = self._work_bytes
        if self._work_bytes:
            outputs.append(_bytes(base + self._end, self._work_bytes))
        ops.op_type(self.op_type).numpy(attributes, [token, *read], outputs)

    @property
    def _is_in_place(self) -> bool:
        return self.op_type in ("all_reduce", "broadcast")

    @property
    def _read(self) -> range:
        """The inputs that are read: without the token, and bytes that are taken."""
        return range(1, len(self.inputs) if self._is_in_place else 2)

    @property
    def _work_bytes(self) -> int:
        nbytes: int = self.attributes.get("staged_bytes", 0)
        return nbytes

    def _places(self) -> list[Staged]:
        operands = [*self._read]
        if not self._is_in_place:
            operands.append(len(self.inputs) + 1)
        places, end = [], 0
        for operand in operands:
            nbytes, _ = self.sizes[operand]
            places.append(Staged(operand, end, nbytes))
            end += align_up(nbytes)
        return places

    @property
    def _end(self) -> int:
        last = self._places()[-1]
        return last.offset + align_up(last.nbytes)

    def _array(self, base: int, place: Staged) -> np.ndarray[Any, Any]:
        spec = (*self.inputs, *self.outputs)[place.operand]
        cells = _bytes(base + place.offset, place.nbytes)
        return cells.view(spec.dtype).reshape(spec.shape)


def _bytes(address: int, nbytes: int) -> np.ndarray[Any, Any]:
    """Return a view of memory, which it does not keep."""
    cells: Any = (ctypes.c_uint8 * nbytes).from_address(address)
    return np.frombuffer(cells, np.uint8)
