"""Element-wise ops: CUDA written from the text of their expressions.

The text is the one that the C++ core evaluates. Uniform numbers are computed in double
precision and rounded where they are combined with an element. They are computed in
Python if they depend only on constants and attributes, and by one thread of each block
if they depend on operands of shape ().
"""

from __future__ import annotations

import math
import struct
from typing import TYPE_CHECKING

import numpy as np

from memcfg.devices.cuda._sources._writer import CTYPES, Writer, blocks_of, f32, f64
from memcfg.ops._nodes import CONDITIONS, NODES

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from memcfg.devices.cuda._sources._launch import Argument

__all__ = ["FAMILY", "write_elementwise"]

_LATE_BLOCKS = 1024  # max. blocks if each has to compute late numbers


class _Translator:
    """Translates the instructions of one expression."""

    def __init__(self, writer: Writer) -> None:
        self.writer = writer
        self.parameters: dict[str, Argument] = {}
        self.known: dict[int, float] = {}  # uniform numbers computed in Python
        self.literal: set[int] = set()  # those that depend only on constants
        self.late: dict[int, str] = {}  # statements of one thread, on doubles
        self.places: dict[int, int] = {}  # index in shared memory of late numbers
        self.operands: dict[int, int] = {}  # operand by node
        self.elements: dict[int, str] = {}  # statements for each element
        self.conditions: set[int] = set()
        self.outputs: list[int] = []
        for place, line in enumerate(writer.attributes["expression"].split(";")):
            kind, *words = line.split()
            self._read(place, kind, words)

    def _read(self, place: int, kind: str, words: Sequence[str]) -> None:
        if kind == "output":
            self.outputs = [int(each) for each in words]
        elif kind == "constant":
            (self.known[place],) = struct.unpack("<d", struct.pack("<Q", int(words[0])))
            self.literal.add(place)
        elif kind == "attribute":
            self.known[place] = float(self.writer.attributes[words[0]])
        elif kind == "operand":
            self._declare(int(words[0]), ("float32",), self.writer.outputs[0].size)
            self.operands[place] = int(words[0])
        elif kind == "scalar":
            self._declare(int(words[0]), ("float32", "int64"), 1)
            self.late[place] = f"const double u{place} = *x{words[0]};"
        else:
            self._calculate(place, kind, [int(each) for each in words])

    def _declare(self, operand: int, dtypes: Sequence[str], size: int) -> None:
        spec = self.writer.inputs[operand]
        if spec.dtype not in dtypes:
            raise self.writer.fail(f"reads float32, not {spec.dtype}")
        if spec.size != size:
            raise self.writer.fail("has operands of several sizes")
        declaration = f"const {CTYPES[spec.dtype]}* x{operand}"
        self.parameters[declaration] = self.writer.operand(operand)

    def _calculate(self, place: int, kind: str, arguments: Sequence[int]) -> None:
        if kind in CONDITIONS:
            self.conditions.add(place)
        if all(each in self.known for each in arguments):
            with np.errstate(all="ignore"):
                values = [np.float64(self.known[each]) for each in arguments]
                self.known[place] = float(NODES[kind].numpy(*values))
            if self.literal.issuperset(arguments):
                self.literal.add(place)
        elif any(map(self._is_element, arguments)):
            value = NODES[kind].code.format(*map(self._element, arguments))
            ctype = "bool" if kind in CONDITIONS else "float"
            self.elements[place] = f"const {ctype} v{place} = {value};"
        else:
            value = NODES[kind].code.format(*map(self._number, arguments))
            self.late[place] = f"const double u{place} = {value};"

    def _is_element(self, place: int) -> bool:
        return place in self.elements or place in self.operands

    def _element(self, place: int) -> str:
        """Return the name of a node in statements of elements."""
        if self._is_element(place):
            return f"v{place}"
        if place in self.late:
            self.places.setdefault(place, len(self.places))
            return f"w{place}"
        value = self.known[place]
        if place in self.literal:
            return _float(value)
        self.parameters[f"float a{place}"] = f32(value)
        return f"a{place}"

    def _number(self, place: int) -> str:
        """Return the name of a node in statements of doubles."""
        if place in self.late:
            return f"u{place}"
        value = self.known[place]
        if place in self.literal:
            return _double(value)
        self.parameters[f"double d{place}"] = f64(value)
        return f"d{place}"

    def write(self) -> None:
        """Append the launch."""
        writer, made = self.writer, [self._element(place) for place in self.outputs]
        outputs = range(len(made))
        operands = list(self.operands.values())
        for i in outputs:
            self.parameters[f"float* y{i}"] = writer.output(i)
        declared = [f"float v{place}" for place in self.operands]
        declared += [f"float& r{i}" for i in outputs]
        lines = ["using namespace memcfg;", *self._late_numbers()]
        lines += [f"const auto one = [&]({', '.join(declared)}) {{"]
        lines += [*self.elements.values()]
        lines += [f"r{i} = {value};" for i, value in enumerate(made)]
        fours = [f"f{k}.of[j]" for k in operands] + [f"g{i}.of[j]" for i in outputs]
        lines += ["};", "memcfg::for_each<Index>(count / 4, [&](Index q) {"]
        lines += [
            f"const memcfg::Four f{k} = memcfg::load_four(x{k}, q);" for k in operands
        ]
        lines += [f"memcfg::Four g{i};" for i in outputs]
        lines += [f"for (int j = 0; j < 4; ++j) one({', '.join(fours)});"]
        lines += [f"memcfg::store_four(y{i}, q, g{i});" for i in outputs]
        single = [f"x{k}[i]" for k in operands] + [f"r{i}" for i in outputs]
        lines += ["});", "const Index i = count / 4 * 4 + threadIdx.x;"]
        lines += ["if (blockIdx.x == 0 && i < count) {"]
        lines += [f"float r{i};" for i in outputs]
        lines += [f"one({', '.join(single)});"]
        lines += [f"y{i}[i] = r{i};" for i in outputs]
        lines += ["}"]
        count = writer.outputs[0].size
        blocks = blocks_of(-(-count // 4))
        writer.launch(
            "\n".join(lines),
            {**self.parameters, "Index count": writer.number(count)},
            min(blocks, _LATE_BLOCKS) if self.places else blocks,
        )

    def _late_numbers(self) -> list[str]:
        """Write the code by which one thread of each block computes late numbers."""
        if not self.places:
            return []
        rows = self.places.items()
        return [
            f"__shared__ float shared[{len(rows)}];",
            "if (threadIdx.x == 0) {",
            *self.late.values(),
            *(f"shared[{i}] = static_cast<float>(u{place});" for place, i in rows),
            "}",
            "__syncthreads();",
            *(f"const float w{place} = shared[{i}];" for place, i in rows),
        ]


def _float(value: float) -> str:
    """Write a float literal with the exact bits."""
    with np.errstate(over="ignore"):
        narrow = np.float32(value)
    if not np.isfinite(narrow):
        return f"__int_as_float({int(narrow.view(np.int32)):#x})"
    return f"({float(narrow)!r}f)"


def _double(value: float) -> str:
    """Write a double literal with the exact bits."""
    if not math.isfinite(value):
        return f"__longlong_as_double({int(np.float64(value).view(np.int64)):#x})"
    return f"({value!r})"


def write_elementwise(writer: Writer) -> None:
    """Write the kernel of an expression."""
    for spec in writer.outputs:
        if spec.dtype != "float32":
            raise writer.fail(f"writes float32, not {spec.dtype}")
        if spec.size != writer.outputs[0].size:
            raise writer.fail("has outputs of several sizes")
    _Translator(writer).write()


# Of two operands of one dtype, beside the formulas: what computes an element.
_OF_TWO = {
    "bitwise_and": "a & b",
    "bitwise_or": "a | b",
    "bitwise_xor": "a ^ b",
    "left_shift": "b >= 0 && b < 32 ? static_cast<int>(static_cast<u32>(a) << b) : 0",
    "right_shift": "a >> (b >= 0 && b < 32 ? b : 31)",
    "greatest_common_divisor": "static_cast<int>(divisor(a, b))",
    "least_common_multiple": "static_cast<int>(multiple(a, b))",
    "integer_add": "static_cast<int>(static_cast<u32>(a) + static_cast<u32>(b))",
    "integer_subtract": "static_cast<int>(static_cast<u32>(a) - static_cast<u32>(b))",
    "integer_multiply": "static_cast<int>(static_cast<u32>(a) * static_cast<u32>(b))",
    "integer_maximum": "a < b ? b : a",
    "integer_minimum": "b < a ? b : a",
    "integer_floor_divide": "static_cast<int>(quotient(a, b))",
    "integer_remainder": "static_cast<int>(remainder(a, b))",
    "integer_truncated_remainder": "b == 0 ? 0 : static_cast<int>(i64(a) % b)",
    "integer_power_of": "power(a, b)",
    "integer_assign": "b",
    "integer_less": "a < b",
    "integer_less_equal": "a <= b",
    "integer_equal": "a == b",
    "integer_not_equal": "a != b",
    "next_after": "nextafterf(a, b)",
}
_DIVISORS = """
typedef unsigned int u32;
typedef long long i64;
const auto divisor = [](i64 x, i64 y) -> i64 {
  x = x < 0 ? -x : x;
  y = y < 0 ? -y : y;
  while (y != 0) {
    const i64 rest = x % y;
    x = y;
    y = rest;
  }
  return x;
};
const auto multiple = [&](i64 x, i64 y) -> i64 {
  const i64 most = divisor(x, y);
  const i64 result = most == 0 ? 0 : x / most * y;
  return result < 0 ? -result : result;
};
const auto remainder = [](i64 x, i64 y) -> i64 {
  const i64 rest = y == 0 ? 0 : x % y;
  return rest != 0 && (rest < 0) != (y < 0) ? rest + y : rest;
};
const auto quotient = [&](i64 x, i64 y) -> i64 {
  return y == 0 ? 0 : (x - remainder(x, y)) / y;
};
const auto power = [](int x, int n) -> int {
  if (n < 0) return x == 1 || (x == -1 && n % 2 == 0) ? 1 : x == -1 ? -1 : 0;
  u32 result = 1, base = static_cast<u32>(x);
  for (; n > 0; n >>= 1, base *= base) {
    if (n & 1) result *= base;
  }
  return static_cast<int>(result);
};
"""


def _write_of_two(writer: Writer) -> None:
    dtype = writer.inputs[0].dtype
    writer.need([dtype] * 2, [dtype])
    kind = CTYPES[dtype]
    writer.loop(
        f"{_DIVISORS}const {kind} a = x1[i], b = x2[i];\n"
        f"y[i] = {_OF_TWO[writer.op_type]};",
        {
            f"const {kind}* x1": writer.operand(0),
            f"const {kind}* x2": writer.operand(1),
            f"{kind}* y": writer.output(),
        },
        writer.outputs[0].size,
    )


FAMILY: dict[str, Callable[[Writer], None]] = dict.fromkeys(_OF_TWO, _write_of_two)
