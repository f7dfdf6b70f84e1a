"""What a source is, and the launches of its kernels."""

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
    """The address of an operand, inputs before outputs, and bytes from there."""

    index: int
    byte_offset: int = 0


@dataclass(frozen=True, slots=True)
class Scratch:
    """The address of the op's scratch, and bytes from there."""

    byte_offset: int = 0


@dataclass(frozen=True, slots=True)
class Number:
    """A number that is known when the op is planned."""

    kind: Literal["int32", "uint32", "int64", "uint64", "float32", "float64"]
    value: float

    def packed(self) -> bytes:
        """Return its bytes, as many as its kind has; it is aligned to that."""
        if "int" in self.kind:
            return struct.pack(_FORMATS[self.kind], int(self.value))
        if self.kind == "float32" and abs(self.value) >= 3.4028235677973366e38:
            return struct.pack("<f", float("inf") if self.value > 0 else float("-inf"))
        return struct.pack(_FORMATS[self.kind], self.value)


Argument: TypeAlias = Operand | Scratch | Number


@dataclass(frozen=True, slots=True)
class Launch:
    """One launch of a kernel: its name, its grid, and its parameters in their order."""

    function: str
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    shared_bytes: int
    arguments: tuple[Argument, ...]

    def pack(
        self, addresses: Sequence[int], scratch: int
    ) -> tuple[bytes, tuple[int, ...]]:
        """Lay the parameters out as the kernel has them; and where each begins.

        Parameters
        ----------
        addresses : sequence of int
            Where the operands lie, inputs before outputs.
        scratch : int
            Where the scratch lies.

        Returns
        -------
        bytes, tuple of int
            The parameters, and the offset of each.
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
    """CUDA C++, the launches in their order, and the bytes of scratch they need.

    Parameters
    ----------
    text : str
        The source. Texts may be joined and compiled at once: what they have in common
        is guarded, a kernel's name says all of what it is, and it is defined once.
    launches : tuple of Launch
        One behind the other, each reading what those before it wrote.
    scratch_bytes : int
        Scratch of any content, aligned to 16 bytes, as operands are.
    """

    text: str
    launches: tuple[Launch, ...]
    scratch_bytes: int
