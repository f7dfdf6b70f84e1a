"""Ops that move elements of any dtype, or fill arrays."""

from __future__ import annotations

from itertools import accumulate
from math import prod
from typing import TYPE_CHECKING

import numpy as np

from memcfg.devices.cuda._sources._writer import CTYPES, f32, u64

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from memcfg.devices._contract import OperandSpec
    from memcfg.devices.cuda._sources._launch import Argument, Number
    from memcfg.devices.cuda._sources._writer import Writer

__all__ = ["FAMILY", "PHILOX"]

_BY_BYTES = {
    1: "unsigned char",
    2: "unsigned short",
    4: "unsigned int",
    8: "unsigned long long",
}


def _unit(writer: Writer) -> str:
    """Return the C++ type of an element's size; KernelError if dtypes differ."""
    dtypes = {spec.dtype for spec in (*writer.inputs, *writer.outputs)}
    if len(dtypes) > 1:
        raise writer.fail(f"has operands of one dtype, not {', '.join(sorted(dtypes))}")
    size = np.dtype(dtypes.pop()).itemsize
    if size not in _BY_BYTES:
        raise writer.fail(f"has no elements of {size} bytes")
    return _BY_BYTES[size]


def _bits(value: float, dtype: str) -> Number:
    """Return the bits of an element as an integer."""
    data = np.asarray(value).astype(dtype).tobytes()
    return u64(int.from_bytes(data, "little"))


def _strides(shape: Sequence[int]) -> list[int]:
    return [prod(shape[axis + 1 :]) for axis in range(len(shape))]


def _write_copy(writer: Writer) -> None:
    unit = _unit(writer)
    writer.loop(
        "y[i] = x[i];",
        {f"const {unit}* x": writer.operand(0), f"{unit}* y": writer.output()},
        writer.inputs[0].size,
    )


def _view(writer: Writer, begin: int, strides: Sequence[int]) -> None:
    """Append the copy of a strided view of the input, of the output's shape."""
    unit = _unit(writer)
    axes = list(zip(writer.outputs[0].shape, strides, strict=True))
    where, parameters = writer.offset("i", "x", axes)
    writer.loop(
        f"y[i] = x[begin + [&]() -> Index {{ {where} }}()];",
        {
            f"const {unit}* x": writer.operand(0),
            f"{unit}* y": writer.output(),
            "Index begin": writer.number(begin),
            **parameters,
        },
        writer.outputs[0].size,
    )


def _write_transpose(writer: Writer) -> None:
    strides = _strides(writer.inputs[0].shape)
    _view(writer, 0, [strides[axis] for axis in writer.attributes["axes"]])


def _write_slice(writer: Writer) -> None:
    strides, begin = _strides(writer.inputs[0].shape), writer.attributes["begin"]
    steps = writer.attributes.get("strides") or [1] * len(strides)
    _view(
        writer,
        sum(first * stride for first, stride in zip(begin, strides, strict=True)),
        [step * stride for step, stride in zip(steps, strides, strict=True)],
    )


def _write_reverse(writer: Writer) -> None:
    shape = writer.inputs[0].shape
    strides, begin = _strides(shape), 0
    for axis in {axis % len(shape) for axis in writer.attributes["axes"]}:
        begin += (shape[axis] - 1) * strides[axis]
        strides[axis] = -strides[axis]
    _view(writer, begin, strides)


def _write_broadcast(writer: Writer) -> None:
    shape, wide = writer.inputs[0].shape, writer.outputs[0].shape
    strides = [
        0 if length == 1 else stride
        for length, stride in zip(shape, _strides(shape), strict=True)
    ]
    _view(writer, 0, [0] * (len(wide) - len(shape)) + strides)


def _write_pad(writer: Writer) -> None:
    """Write `pad`: each output element finds its input element, or is the value."""
    unit, a = _unit(writer), writer.attributes
    shape, wide = writer.inputs[0].shape, writer.outputs[0].shape
    steps = a.get("strides") or [1] * len(shape)
    axes: list[tuple[int, int, int, int]] = []
    for axis in zip(wide, shape, a["before"], steps, strict=True):
        if axes and axis[0] == axis[1] and axes[-1][0] == axes[-1][1]:
            axes[-1] = (axes[-1][0] * axis[0],) * 2 + (
                0,
                1,
            )  # merge axes without padding
        else:
            axes.append(axis)
    lines, parameters = ["Index rest = i, at = 0;", "bool inside = true;"], {}
    stride = 1
    for place, (whole, length, before, step) in reversed(list(enumerate(axes))):
        names = ("whole", "length", "before", "step", "stride")
        for name, value in zip(
            names, (whole, length, before, step, stride), strict=True
        ):
            parameters[f"Index {name}{place}"] = writer.number(value)
        lines += [
            f"const Index q{place} = rest % whole{place} - before{place};",
            f"rest /= whole{place};",
            f"inside = inside && q{place} < length{place} * step{place} && "
            f"q{place} % step{place} == 0;",
            f"at += q{place} / step{place} * stride{place};",
        ]
        stride *= length
    writer.loop(
        "\n".join([*lines, f"y[i] = inside ? x[at] : static_cast<{unit}>(value);"]),
        {
            f"const {unit}* x": writer.operand(0),
            f"{unit}* y": writer.output(),
            "unsigned long long value": _bits(a["value"], writer.outputs[0].dtype),
            **parameters,
        },
        writer.outputs[0].size,
    )


def _write_fill(writer: Writer) -> None:
    unit = _unit(writer)
    value = _bits(writer.attributes["value"], writer.outputs[0].dtype)
    writer.loop(
        f"y[i] = static_cast<{unit}>(value);",
        {f"{unit}* y": writer.output(), "unsigned long long value": value},
        writer.outputs[0].size,
    )


def _write_constant(writer: Writer) -> None:
    writer.need([], ["float32"])
    size, data = writer.outputs[0].size, writer.attributes["data"]
    if len(data) != 8 * size:
        raise writer.fail(f"has {len(data)} digits of {size} numbers")
    bits = ", ".join(f"0x{data[8 * i : 8 * i + 8]}u" for i in range(size))
    writer.loop(
        f"""
        static const unsigned int bits[] = {{{bits}}};
        y[i] = bits[i];
        """,
        {"unsigned int* y": writer.output()},
        size,
    )


def _parts(writer: Writer, shapes: Sequence[Sequence[int]], *, joins: bool) -> None:
    """Append a launch for each part, which joins the whole or is split off."""
    unit = _unit(writer)
    axis = writer.attributes["axis"] % len(shapes[0])
    inner = prod(shapes[0][axis + 1 :])
    lengths = [shape[axis] * inner for shape in shapes]
    whole = sum(lengths)
    for place, begin in enumerate(accumulate([0, *lengths[:-1]])):
        part = writer.operand(place) if joins else writer.output(place)
        other = writer.output() if joins else writer.operand(0)
        moved = "whole[at] = part[i];" if joins else "part[i] = whole[at];"
        constant = ("const ", "") if joins else ("", "const ")
        writer.loop(
            f"const Index at = i / length * step + begin + i % length;\n{moved}",
            {
                f"{constant[0]}{unit}* part": part,
                f"{constant[1]}{unit}* whole": other,
                "Index length": writer.number(lengths[place]),
                "Index step": writer.number(whole),
                "Index begin": writer.number(begin),
            },
            prod(shapes[place]),
        )


def _write_part(writer: Writer) -> None:
    unit, part = _unit(writer), writer.outputs[0].size
    writer.loop(
        f"y[i] = begin + i < size ? x[begin + i] : static_cast<{unit}>(0);",
        {
            f"const {unit}* x": writer.operand(0),
            f"{unit}* y": writer.output(),
            "Index begin": writer.number(writer.attributes["rank"] * part),
            "Index size": writer.number(writer.inputs[0].size),
        },
        part,
    )


def _write_concatenate(writer: Writer) -> None:
    _parts(writer, [spec.shape for spec in writer.inputs], joins=True)


def _write_split(writer: Writer) -> None:
    _parts(writer, [spec.shape for spec in writer.outputs], joins=False)


def _write_cast(writer: Writer) -> None:
    """Write `cast`; values undefined in C++, such as NaN, become the least integer."""
    (x,), (y,) = writer.inputs, writer.outputs
    for spec in (x, y):
        if spec.dtype not in CTYPES:
            raise writer.fail(f"has no operands of type {spec.dtype}")
    source, target = CTYPES[x.dtype], CTYPES[y.dtype]
    value = f"static_cast<{target}>(x[i])"
    if y.dtype == "bool":
        value = "x[i] != 0"
    elif "float" in x.dtype and "int" in y.dtype:
        limits = np.iinfo(y.dtype)
        least = f"(-{-(limits.min + 1)}LL - 1)" if limits.min else "0"
        above = f"{float(limits.max // 2 + 1) * 2!r}"
        inside = f"x[i] > {float(limits.min) - 1.0!r} && x[i] < {above}"
        value = (
            f"({inside}) || x[i] == {float(limits.min)!r} ? {value} : "
            f"static_cast<{target}>({least})"
        )
    writer.loop(
        f"y[i] = {value};",
        {f"const {source}* x": writer.operand(0), f"{target}* y": writer.output()},
        x.size,
    )


def _write_dequantize(writer: Writer) -> None:
    codes, scales = writer.inputs
    if codes.dtype not in ("int8", "uint8"):
        raise writer.fail(f"takes int8 and uint8, not {codes.dtype}")
    writer.need([codes.dtype, "float32"], ["float32"])
    halves = codes.dtype == "uint8"
    two_rows = """
        const unsigned int code = codes[row / 2 * columns + column];
        const int integer = static_cast<int>(code << (row % 2 ? 24 : 28)) >> 28;
        """
    plain = "const int integer = codes[i];"
    writer.loop(
        f"""
        const Index row = i / columns, column = i % columns;
        {two_rows if halves else plain}
        y[i] = static_cast<float>(integer) * scales[row / group * columns + column];
        """,
        {
            f"const {CTYPES[codes.dtype]}* codes": writer.operand(0),
            "const float* scales": writer.operand(1),
            "float* y": writer.output(),
            "Index columns": writer.number(scales.shape[-1]),
            "Index group": writer.number(writer.attributes["group"]),
        },
        writer.outputs[0].size,
    )


def _write_gather(writer: Writer) -> None:
    writer.need(["float32", "int32"], ["float32"])
    rows, *rest = writer.inputs[0].shape
    writer.loop(
        """
        const int row = indices[i / width];
        const bool known = row >= 0 && static_cast<Index>(row) < rows;
        y[i] = known ? table[row * width + i % width] : __int_as_float(0x7fc00000);
        """,
        {
            "const float* table": writer.operand(0),
            "const int* indices": writer.operand(1),
            "float* y": writer.output(),
            "Index rows": writer.number(rows),
            "Index width": writer.number(prod(rest)),
        },
        writer.outputs[0].size,
    )


def _write_scatter_add(writer: Writer) -> None:
    """Write `scatter_add`: a block finds the indices of its row, and adds in order."""
    writer.need(["int32", "float32"], ["float32"])
    rows, *rest = writer.outputs[0].shape
    width, tiles = prod(rest), -(-prod(rest) // 256)
    writer.launch(
        """
  __shared__ int all[memcfg::kThreads];
  __shared__ unsigned int some[2];  // of this turn, and of the next
  const Index row = blockIdx.x / tiles;
  const Index column = blockIdx.x % tiles * memcfg::kThreads + threadIdx.x;
  double total = 0;
  for (Index first = 0; first < count; first += memcfg::kThreads) {
    const unsigned int turn = first / memcfg::kThreads % 2;
    const Index i = first + threadIdx.x;
    if (threadIdx.x == 0) some[turn] = 0;
    __syncthreads();
    all[threadIdx.x] = i < count ? indices[i] : -1;
    if (all[threadIdx.x] == static_cast<long long>(row)) some[turn] = 1;
    __syncthreads();
    if (some[turn] != 0 && column < width) {
      for (unsigned int j = 0; j < memcfg::kThreads; ++j) {
        if (all[j] == static_cast<long long>(row)) {
          total += dy[(first + j) * width + column];
        }
      }
    }
  }
  if (column < width) table[row * width + column] = static_cast<float>(total);""",
        {
            "const int* indices": writer.operand(0),
            "const float* dy": writer.operand(1),
            "float* table": writer.output(),
            "Index count": writer.number(writer.inputs[0].size),
            "Index width": writer.number(width),
            "Index tiles": writer.number(tiles),
        },
        rows * tiles,
    )


def _write_one_hot(writer: Writer) -> None:
    writer.need(["int32"], ["float32"])
    depth = writer.attributes["depth"]
    writer.loop(
        "y[i] = static_cast<long long>(i % depth) == x[i / depth] ? 1.0f : 0.0f;",
        {
            "const int* x": writer.operand(0),
            "float* y": writer.output(),
            "Index depth": writer.number(depth),
        },
        writer.outputs[0].size,
    )


# Output element `place` is (1 - weight) * `first` + weight * `second`.
_LINE = """
  double inside = (place + 0.5) / factor - 0.5;
  inside = inside < 0 ? 0 : inside > length - 1.0 ? length - 1.0 : inside;
  const Index first = static_cast<Index>(inside);
  const Index second = first + 1 < length ? first + 1 : length - 1;
  const float weight = static_cast<float>(inside - floor(inside));"""


def _write_interpolate(writer: Writer) -> None:
    writer.need(["float32"], ["float32"])
    shape, axis = writer.inputs[0].shape, writer.attributes["axis"]
    writer.loop(
        f"""
        const Index column = i % columns, row = i / columns;
        const Index place = row % (length * factor), block = row / (length * factor);
        {_LINE}
        const float* from = x + block * length * columns + column;
        y[i] = from[first * columns] * (1.0f - weight) +
               from[second * columns] * weight;
        """,
        {
            "const float* x": writer.operand(0),
            "float* y": writer.output(),
            "Index columns": writer.number(prod(shape[axis + 1 :])),
            "Index length": writer.number(shape[axis]),
            "Index factor": writer.number(writer.attributes["factor"]),
        },
        writer.outputs[0].size,
    )


def _write_interpolate_gradient(writer: Writer) -> None:
    """Write the gradient of interpolation: each element sums its outputs in order."""
    writer.need(["float32"], ["float32"])
    shape, axis = writer.outputs[0].shape, writer.attributes["axis"]
    writer.loop(
        f"""
        const Index column = i % columns, row = i / columns;
        const Index mine = row % length, block = row / length;
        const float* from = dy + block * length * factor * columns + column;
        const Index end = (mine + 2 < length ? mine + 2 : length) * factor;
        float total = 0.0f;
        for (Index place = (mine > 0 ? mine - 1 : 0) * factor; place < end; ++place) {{
          {_LINE}
          if (first == mine) total += from[place * columns] * (1.0f - weight);
          if (second == mine) total += from[place * columns] * weight;
        }}
        dx[i] = total;
        """,
        {
            "const float* dy": writer.operand(0),
            "float* dx": writer.output(),
            "Index columns": writer.number(prod(shape[axis + 1 :])),
            "Index length": writer.number(shape[axis]),
            "Index factor": writer.number(writer.attributes["factor"]),
        },
        writer.outputs[0].size,
    )


# Philox4x32-10: the words of block `block`, one for each of four elements.
PHILOX = """
  unsigned int word[4] = {
      static_cast<unsigned int>(block), static_cast<unsigned int>(block >> 32),
      static_cast<unsigned int>(step), static_cast<unsigned int>(step >> 32)};
  unsigned int key_low = static_cast<unsigned int>(key);
  unsigned int key_high = static_cast<unsigned int>(key >> 32);
  for (int round = 0; round < 10; ++round) {
    const unsigned int high0 = __umulhi(0xD2511F53u, word[0]);
    const unsigned int low0 = 0xD2511F53u * word[0];
    const unsigned int high1 = __umulhi(0xCD9E8D57u, word[2]);
    const unsigned int low1 = 0xCD9E8D57u * word[2];
    word[0] = high1 ^ word[1] ^ key_low;
    word[1] = low1;
    word[2] = high0 ^ word[3] ^ key_high;
    word[3] = low0;
    key_low += 0x9E3779B9u;
    key_high += 0xBB67AE85u;
  }"""


def first_number(step: OperandSpec, size: str) -> str:
    """Return CUDA source for the place of an array's first number in its batch's."""
    if not step.shape:
        return "const unsigned long long first_number = 0;"
    return (  # a report runs steps of zeros, without samples
        "const unsigned long long first_number = steps[2] == 0 ? 0 : "
        f"static_cast<unsigned long long>(({size}) / steps[2] * steps[1]);"
    )


def _random(
    writer: Writer, result: str, operands: Mapping[str, Argument], step: int
) -> None:
    """Append a loop over blocks of four numbers; `result` is for element `at`."""
    size = writer.outputs[0].size
    is_part = bool(writer.inputs[step].shape)
    writer.loop(
        f"""
        {first_number(writer.inputs[step], "static_cast<long long>(size)")}
        const Index ahead = static_cast<Index>(first_number % 4);
        const unsigned long long block = first_number / 4 + i;
        const unsigned long long step = static_cast<unsigned long long>(*steps);
        {PHILOX}
        for (unsigned int j = 0; j < 4; ++j) {{
          const Index at = 4 * i + j - ahead;  // wraps around before the first one
          if (at >= size) continue;
          {result}
        }}
        """,
        {
            **operands,
            "const long long* steps": writer.operand(step),
            "unsigned long long key": u64(writer.attributes["key"]),
            "Index size": writer.number(size),
        },
        -(-size // 4) + is_part,
    )


def _write_dropout(writer: Writer) -> None:
    writer.need(["float32", "int64"], ["float32"])
    rate = writer.attributes["rate"]
    if not 0 <= rate <= 1:
        raise writer.fail("needs 0 <= rate <= 1")
    _random(
        writer,
        "y[at] = word[j] >= threshold ? x[at] * scale : 0.0f;",
        {
            "const float* x": writer.operand(0),
            "float* y": writer.output(),
            "unsigned long long threshold": u64(int(rate * 2**32)),
            "float scale": f32(1 / (1 - rate) if rate < 1 else 0),
        },
        1,
    )


def _write_random_uniform(writer: Writer) -> None:
    writer.need(["int64"], ["float32"])
    _random(
        writer,
        "y[at] = static_cast<float>(((word[j] >> 9) + 0.5) / 8388608.0);",
        {"float* y": writer.output()},
        0,
    )


FAMILY: dict[str, Callable[[Writer], None]] = {
    "flatten": _write_copy,
    "reshape": _write_copy,
    "transpose": _write_transpose,
    "slice": _write_slice,
    "reverse": _write_reverse,
    "broadcast_to": _write_broadcast,
    "pad": _write_pad,
    "part": _write_part,
    "fill": _write_fill,
    "constant": _write_constant,
    "concatenate": _write_concatenate,
    "split": _write_split,
    "cast": _write_cast,
    "dequantize": _write_dequantize,
    "gather": _write_gather,
    "scatter_add": _write_scatter_add,
    "one_hot": _write_one_hot,
    "interpolate": _write_interpolate,
    "interpolate_gradient": _write_interpolate_gradient,
    "dropout": _write_dropout,
    "random_uniform": _write_random_uniform,
}
