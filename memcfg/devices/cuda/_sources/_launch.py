"""CUDA sources, and the launches of their kernels with arguments."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Sequence

_FORMATS: dict[str, str] = {
    "int32": "<i",
    "uint32": "<I",
    "int64": "<q",
    "uint64": "<Q",
    "float32": "<f",
    "float64": "<d",
}


@dataclass(frozen=True, slots=True)
class Operand:
    """An argument: the address of an operand, inputs before outputs, plus bytes."""

    index: int
    byte_offset: int = 0


@dataclass(frozen=True, slots=True)
class Scratch:
    """An argument: the address of the op's scratch, plus bytes."""

    byte_offset: int = 0


@dataclass(frozen=True, slots=True)
class Number:
    """An argument: a number that is known when the op is planned."""

    kind: Literal["int32", "uint32", "int64", "uint64", "float32", "float64"]
    value: float

    def packed(self) -> bytes:
        """Return the bytes of the number in its dtype."""
        if "int" in self.kind:
            return struct.pack(_FORMATS[self.kind], int(self.value))
        if self.kind == "float32" and abs(self.value) >= 3.4028235677973366e38:
            return struct.pack("<f", float("inf") if self.value > 0 else float("-inf"))
        return struct.pack(_FORMATS[self.kind], self.value)


Argument: TypeAlias = Operand | Scratch | Number


@dataclass(frozen=True, slots=True)
class Launch:
    """A launch of a kernel: its name, its grid, and its arguments in order."""

    function: str
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    shared_bytes: int
    arguments: tuple[Argument, ...]

    def pack(
        self, addresses: Sequence[int], scratch: int
    ) -> tuple[bytes, tuple[int, ...]]:
        """Pack the arguments into the kernel's parameter buffer.

        Parameters
        ----------
        addresses : sequence of int
            The addresses of the operands, inputs before outputs.
        scratch : int
            The address of the scratch.

        Returns
        -------
        bytes, tuple of int
            The buffer, and the offset of each argument.
        """
        packed, offsets = bytearray(), []
        for each in self.arguments:
            if isinstance(each, Number):
                data = each.packed()
            else:
                base = scratch if isinstance(each, Scratch) else addresses[each.index]
                data = struct.pack("<Q", base + each.byte_offset)
            packed += bytes(-len(packed) % len(data))
            offsets.append(len(packed))
            packed += data
        return bytes(packed), tuple(offsets)


@dataclass(frozen=True, slots=True)
class CudaSource:
    """CUDA C++, its launches in order, and the bytes of scratch that they need.

    Parameters
    ----------
    text : str
        The source. Texts may be joined and compiled at once: the common prelude has an
        include guard, and a kernel's name, a hash of its text, is defined once.
    launches : tuple of Launch
        The launches, each of which may read the results of those before it.
    scratch_bytes : int
        Scratch of any content, aligned to 16 bytes, as operands are.
    """

    text: str
    launches: tuple[Launch, ...]
    scratch_bytes: int
