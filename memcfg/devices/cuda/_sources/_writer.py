"""Writes the source and the launches of one op."""

from __future__ import annotations

import re
from hashlib import sha256
from textwrap import dedent
from typing import TYPE_CHECKING, Any

from memcfg.devices.cuda._sources._launch import (
    CudaSource,
    Launch,
    Number,
    Operand,
    Scratch,
)
from memcfg.devices.cuda._sources._prelude import PRELUDE, THREADS
from memcfg.errors import KernelError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from memcfg.devices._contract import OperandSpec
    from memcfg.devices.cuda._sources._launch import Argument

__all__ = ["CTYPES", "Writer", "cut", "f32", "f64", "i64", "u32", "u64"]

CTYPES = {
    "float32": "float",
    "float64": "double",
    "int32": "int",
    "uint32": "unsigned int",
    "int64": "long long",
    "uint64": "unsigned long long",
    "uint8": "unsigned char",
    "bool": "bool",
}
_ALIGNMENT = 256  # bytes
_MOST_OF_32_BITS = 1 << 31  # elements; a step of a loop beyond them does not overflow
_MOST_BLOCKS = 1 << 14  # of a loop over elements; its threads take more than one then


def f32(value: float) -> Number:
    """Make an argument."""
    return Number("float32", float(value))


def f64(value: float) -> Number:
    """Make an argument."""
    return Number("float64", float(value))


def u32(value: int) -> Number:
    """Make an argument."""
    return Number("uint32", value)


def u64(value: int) -> Number:
    """Make an argument."""
    return Number("uint64", value)


def i64(value: int) -> Number:
    """Make an argument."""
    return Number("int64", value)


class Writer:
    """Collects the kernels, launches and scratch of one op.

    Attributes
    ----------
    attributes : mapping
        The op's, as kernels read them.
    inputs, outputs : tuple of OperandSpec
        Its operands.
    """

    def __init__(
        self,
        op_type: str,
        attributes: Mapping[str, Any],
        inputs: Sequence[OperandSpec],
        outputs: Sequence[OperandSpec],
    ) -> None:
        self.op_type = op_type
        self.attributes = attributes
        self.inputs = tuple(inputs)
        self.outputs = tuple(outputs)
        self._kernels: dict[str, str] = {}  # by name
        self._launches: list[Launch] = []
        self._scratch = 0

    def fail(self, message: str) -> KernelError:
        """Make the error to be raised."""
        return KernelError(f"kernel {self.op_type!r} for CUDA {message}")

    def need(self, inputs: Sequence[str], outputs: Sequence[str]) -> None:
        """Raise KernelError for operands of other dtypes."""
        for what, wanted, specs in (
            ("inputs", inputs, self.inputs),
            ("outputs", outputs, self.outputs),
        ):
            found = [spec.dtype for spec in specs]
            if found != list(wanted):
                raise self.fail(f"has {what} of {', '.join(wanted)}, not {found}")

    @property
    def index(self) -> str:
        """The C++ type that counts the elements of any operand."""
        most = max(spec.size for spec in (*self.inputs, *self.outputs))
        return "unsigned int" if most < _MOST_OF_32_BITS else "unsigned long long"

    def number(self, value: int) -> Number:
        """Make an argument of the type `index`; below 0 as what wraps around."""
        if self.index == "unsigned int":
            return u32(value % (1 << 32))
        return u64(value % (1 << 64))

    def operand(self, index: int, byte_offset: int = 0) -> Operand:
        """Name an operand, inputs before outputs."""
        return Operand(index, byte_offset)

    def output(self, index: int = 0) -> Operand:
        """Name an output."""
        return Operand(len(self.inputs) + index)

    def scratch(self, nbytes: int) -> Scratch:
        """Take scratch."""
        place = Scratch(self._scratch)
        self._scratch += -(-nbytes // _ALIGNMENT) * _ALIGNMENT
        return place

    def launch(
        self,
        body: str,
        parameters: Mapping[str, Argument],
        blocks: int,
    ) -> None:
        """Append a launch; `parameters` are declarations, each with what it is.

        Where there are no blocks there is nothing to be done, and no launch.
        """
        if not blocks:
            return
        declared = ",\n    ".join(parameters).replace("Index ", f"{self.index} ")
        text = (
            f"({declared}) {{\n  typedef {self.index} Index;\n"
            f"{dedent(body).strip()}\n}}\n"
        )
        mark = sha256(text.encode()).hexdigest()[:12]
        stem = re.sub(r"\W", "_", self.op_type, flags=re.ASCII)
        name = f"memcfg_{stem}_{mark}"
        self._kernels[name] = (
            f"#ifndef {name.upper()}\n#define {name.upper()}\n"
            f'extern "C" __global__ void __launch_bounds__({THREADS})\n{name}{text}'
            "#endif\n"
        )
        arguments = tuple(parameters.values())
        self._launches.append(
            Launch(name, (blocks, 1, 1), (THREADS, 1, 1), 0, arguments)
        )

    def loop(self, body: str, parameters: Mapping[str, Argument], count: int) -> None:
        """Append a launch that does `body` for each element i below `count`."""
        inner = dedent(body).strip()
        self.launch(
            f"memcfg::for_each<Index>(count, [&](Index i) {{\n{inner}\n}});",
            {**parameters, "Index count": self.number(count)},
            blocks_of(count),
        )

    def offset(
        self, variable: str, prefix: str, axes: Sequence[tuple[int, int]]
    ) -> tuple[str, dict[str, Argument]]:
        """Write where an element lies whose number is `variable`.

        `axes` are lengths and strides in elements, from the outermost; those that lie
        as one are one. Returns the text of a function's body, and its parameters.
        """
        merged: list[tuple[int, int]] = []
        for length, stride in axes:
            if length == 1:
                continue
            if merged and merged[-1][1] == length * stride:
                length *= merged.pop()[0]
            merged.append((length, stride))
        parameters: dict[str, Argument] = {}
        lines = [f"Index rest = {variable}, at = 0;"]
        for place in reversed(range(len(merged))):
            length, stride = merged[place]
            parameters[f"Index {prefix}s{place}"] = self.number(stride)
            if place == 0:
                lines.append(f"at += rest * {prefix}s0;")
                continue
            parameters[f"Index {prefix}n{place}"] = self.number(length)
            lines.append(f"at += rest % {prefix}n{place} * {prefix}s{place};")
            lines.append(f"rest /= {prefix}n{place};")
        return " ".join([*lines, "return at;"]), parameters

    def finish(self) -> CudaSource:
        """Return what was collected."""
        text = PRELUDE + "".join(self._kernels.values())
        return CudaSource(text, tuple(self._launches), self._scratch)


def blocks_of(count: int) -> int:
    """Return how many blocks loop over so many elements."""
    return min(-(-count // THREADS), _MOST_BLOCKS)


def cut(count: int, blocks: int, least: int, enough: int) -> tuple[int, int]:
    """Return into how many slices sums of `count` values are cut, and their length.

    One slice of all sums takes `blocks`; with `enough` of them nothing is cut, nor into
    less than `least` values.
    """
    slices = max(1, min(count // least, enough // max(blocks, 1)))
    length = max(1, -(-count // slices))
    return max(1, -(-count // length)), length
