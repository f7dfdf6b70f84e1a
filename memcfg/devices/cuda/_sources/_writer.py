"""The writer of the source and the launches of one op."""

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
    "int8": "signed char",
    "uint8": "unsigned char",
    "bool": "bool",
}
_ALIGNMENT = 256  # bytes
_MOST_OF_32_BITS = 1 << 31  # elements; one more step of a loop does not overflow
_MOST_BLOCKS = (
    1 << 14
)  # max. blocks of a loop over elements; threads then process several


def f32(value: float) -> Number:
    """Make a float32 argument."""
    return Number("float32", float(value))


def f64(value: float) -> Number:
    """Make a float64 argument."""
    return Number("float64", float(value))


def u32(value: int) -> Number:
    """Make a uint32 argument."""
    return Number("uint32", value)


def u64(value: int) -> Number:
    """Make a uint64 argument."""
    return Number("uint64", value)


def i64(value: int) -> Number:
    """Make an int64 argument."""
    return Number("int64", value)


class Writer:
    """Collects the kernels, launches and scratch of one op.

    Attributes
    ----------
    attributes : mapping
        The op's attributes for kernels.
    inputs, outputs : tuple of OperandSpec
        The op's operands.
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
        """Return a KernelError with the op type and a message."""
        return KernelError(f"kernel {self.op_type!r} for CUDA {message}")

    def need(self, inputs: Sequence[str], outputs: Sequence[str]) -> None:
        """Raise KernelError unless operands have these dtypes."""
        for what, wanted, specs in (
            ("inputs", inputs, self.inputs),
            ("outputs", outputs, self.outputs),
        ):
            actual = [spec.dtype for spec in specs]
            if actual != list(wanted):
                raise self.fail(f"has {what} of {', '.join(wanted)}, not {actual}")

    @property
    def index(self) -> str:
        """The C++ type for indices of any operand's elements."""
        most = max(spec.size for spec in (*self.inputs, *self.outputs))
        return "unsigned int" if most < _MOST_OF_32_BITS else "unsigned long long"

    def number(self, value: int) -> Number:
        """Make an argument of the type `index`; negative numbers wrap around."""
        if self.index == "unsigned int":
            return u32(value % (1 << 32))
        return u64(value % (1 << 64))

    def operand(self, index: int, byte_offset: int = 0) -> Operand:
        """Return the address argument of an operand, inputs before outputs."""
        return Operand(index, byte_offset)

    def output(self, index: int = 0) -> Operand:
        """Return the address argument of an output."""
        return Operand(len(self.inputs) + index)

    def scratch(self, nbytes: int) -> Scratch:
        """Reserve scratch and return its address argument."""
        place = Scratch(self._scratch)
        self._scratch += -(-nbytes // _ALIGNMENT) * _ALIGNMENT
        return place

    def launch(
        self,
        body: str,
        parameters: Mapping[str, Argument],
        blocks: int,
    ) -> None:
        """Append a launch, unless there are no blocks.

        `parameters` maps declarations to their arguments.
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
        """Append a launch that runs `body` for each i below `count`."""
        inner = dedent(body).strip()
        self.launch(
            f"memcfg::for_each<Index>(count, [&](Index i) {{\n{inner}\n}});",
            {**parameters, "Index count": self.number(count)},
            blocks_of(count),
        )

    def offset(
        self, variable: str, prefix: str, axes: Sequence[tuple[int, int]]
    ) -> tuple[str, dict[str, Argument]]:
        """Write the offset of the element number `variable` in a strided view.

        `axes` are lengths and strides in elements, from the outermost; contiguous axes
        are merged. Returns the body of a function, and its parameters.
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
        """Return the source with its launches."""
        text = PRELUDE + "".join(self._kernels.values())
        return CudaSource(text, tuple(self._launches), self._scratch)


def blocks_of(count: int) -> int:
    """Return the number of blocks of a loop over `count` elements."""
    return min(-(-count // THREADS), _MOST_BLOCKS)


def cut(count: int, blocks: int, least: int, enough: int) -> tuple[int, int]:
    """Return the number and the length of slices of sums over `count` values.

    One slice of all sums takes `blocks` blocks. There are at most `enough` blocks by
    slicing, and at least `least` values in a slice.
    """
    slices = max(1, min(count // least, enough // max(blocks, 1)))
    length = max(1, -(-count // slices))
    return max(1, -(-count // length)), length
