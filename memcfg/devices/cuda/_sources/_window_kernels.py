"""Pooling: outputs loop over their windows, gradients over the windows they are in.

No element is written by several threads, so there are no atomics, and results are
deterministic.
"""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING

from memcfg.devices.cuda._sources._writer import Writer, f32

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from memcfg.devices.cuda._sources._launch import Argument

__all__ = ["FAMILY"]


def _numbers(writer: Writer, x: Sequence[int], y: Sequence[int]) -> dict[str, Argument]:
    numbers = {
        "height": x[1],
        "width": x[2],
        "groups": x[3] // _width(x),
        "out_height": y[1],
        "out_width": y[2],
        "top": writer.attributes["padding"][0][0],
        "left": writer.attributes["padding"][1][0],
    }
    return {f"Index {name}": writer.number(value) for name, value in numbers.items()}


def _width(x: Sequence[int]) -> int:
    """Return the number of channels of a thread."""
    return 1 if x[3] % 4 else 4


def _window(writer: Writer, x: Sequence[int]) -> str:
    """Write the window's constants, which are known at compile time."""
    a = writer.attributes
    if prod(a["pool_size"]) > 256:
        raise writer.fail("has windows of 256 places at most")
    (height, width), (down, right) = a["pool_size"], a["strides"]
    return (
        f"constexpr int W = {_width(x)};\n"
        f"constexpr Index pool_height = {int(height)}, pool_width = {int(width)};\n"
        f"constexpr Index stride_h = {int(down)}, stride_w = {int(right)};"
    )


# Loops over the places (p, q) of output group i's window that are not padding.
_FORWARD = """
{window}
const Index g = i % groups, ow = i / groups % out_width;
const Index oh = i / groups / out_width % out_height;
const Index image = i / groups / out_width / out_height;
bool none = true;
{before}
for (Index p = 0; p < pool_height; ++p) {{
  const Index h = oh * stride_h + p - top;
  if (h >= height) continue;
  for (Index q = 0; q < pool_width; ++q) {{
    const Index w = ow * stride_w + q - left;
    if (w >= width) continue;
    const memcfg::u64 at = ((image * height + h) * width + w) * groups + g;
    const memcfg::Pack<W> values = memcfg::load_pack<W>(x, at);
#pragma unroll
    for (int j = 0; j < W; ++j) {{
      const float value = values.of[j];
      {each}
    }}
    none = false;
  }}
}}
{after}"""


def _forward(
    writer: Writer, before: str, each: str, after: str, more: dict[str, Argument]
) -> None:
    x = writer.inputs[0].shape
    window = _window(writer, x)
    writer.loop(
        _FORWARD.format(window=window, before=before, each=each, after=after),
        {
            "const float* x": writer.operand(0),
            "float* y": writer.output(),
            **more,
            **_numbers(writer, x, writer.outputs[0].shape),
        },
        writer.outputs[0].size // _width(x),
    )


def _write_max_pool(writer: Writer) -> None:
    keeps = len(writer.outputs) > 1
    writer.need(["float32"], ["float32", "uint8"][: 1 + keeps])
    places = """
memcfg::Bytes<W> kept;
for (int j = 0; j < W; ++j) kept.of[j] = static_cast<unsigned char>(place[j]);
reinterpret_cast<memcfg::Bytes<W>*>(index)[i] = kept;"""
    _forward(
        writer,
        "memcfg::Pack<W> most = {}; Index place[W] = {};",
        "const float last = most.of[j];\n"
        "const bool first_nan = value != value && last == last;\n"
        "if (none || value > last || first_nan) {\n"
        "  most.of[j] = value; place[j] = p * pool_width + q;\n}",
        "memcfg::store_pack<W>(y, i, most);" + places * keeps,
        {"unsigned char* index": writer.output(1)} if keeps else {},
    )


def _write_average_pool(writer: Writer) -> None:
    writer.need(["float32"], ["float32"])
    _forward(
        writer,
        "memcfg::Pack<W> total = {}; float places[W] = {};",
        "total.of[j] += value; places[j] += 1.0f;",
        "for (int j = 0; j < W; ++j) total.of[j] /= places[j];\n"
        "memcfg::store_pack<W>(y, i, total);",
        {},
    )


# Loops over the output groups at (oh, ow) whose windows contain element group i, at
# place (p, q).
_BACKWARD = """
{window}
const Index g = i % groups, w = i / groups % width;
const Index h = i / groups / width % height;
const Index image = i / groups / width / height;
memcfg::Pack<W> total = {{}};
for (Index p = 0; p < pool_height; ++p) {{
  const Index down = h + top - p;
  if (down >= out_height * stride_h || down % stride_h != 0) continue;
  const Index oh = down / stride_h;
  for (Index q = 0; q < pool_width; ++q) {{
    const Index right = w + left - q;
    if (right >= out_width * stride_w || right % stride_w != 0) continue;
    const Index ow = right / stride_w;
    const Index o = ((image * out_height + oh) * out_width + ow) * groups + g;
    {each}
  }}
}}
memcfg::store_pack<W>(dx, i, total);"""


def _backward(writer: Writer, each: str, operands: dict[str, Argument]) -> None:
    x = writer.outputs[0].shape
    writer.loop(
        _BACKWARD.format(window=_window(writer, x), each=each),
        {
            **operands,
            "float* dx": writer.output(),
            **_numbers(writer, x, writer.inputs[-1].shape),
        },
        writer.outputs[0].size // _width(x),
    )


def _write_max_pool_gradient(writer: Writer) -> None:
    writer.need(["uint8", "float32"], ["float32"])
    _backward(
        writer,
        """
    const auto kept = reinterpret_cast<const memcfg::Bytes<W>*>(index)[o];
    const memcfg::Pack<W> slopes = memcfg::load_pack<W>(dy, o);
#pragma unroll
    for (int j = 0; j < W; ++j) {
      if (kept.of[j] == p * pool_width + q) total.of[j] += slopes.of[j];
    }""",
        {
            "const unsigned char* index": writer.operand(0),
            "const float* dy": writer.operand(1),
        },
    )


def _write_max_pool_at(writer: Writer) -> None:
    writer.need(["uint8", "float32"], ["float32"])
    x = writer.inputs[1].shape
    writer.loop(
        _window(writer, x)
        + """
const Index g = i % groups, ow = i / groups % out_width;
const Index oh = i / groups / out_width % out_height;
const Index image = i / groups / out_width / out_height;
for (int j = 0; j < W; ++j) {
  const Index place = index[i * W + j];
  const Index h = oh * stride_h + place / pool_width - top;
  const Index w = ow * stride_w + place % pool_width - left;
  y[i * W + j] = x[(((image * height + h) * width + w) * groups + g) * W + j];
}""",
        {
            "const unsigned char* index": writer.operand(0),
            "const float* x": writer.operand(1),
            "float* y": writer.output(),
            **_numbers(writer, x, writer.outputs[0].shape),
        },
        writer.outputs[0].size // _width(x),
    )


def _write_average_pool_gradient(writer: Writer) -> None:
    writer.need(["float32"], ["float32"])
    _backward(
        writer,
        """
    Index high = 0, wide = 0;  // places of its window that are not padding
    for (Index k = 0; k < pool_height; ++k) high += oh * stride_h + k - top < height;
    for (Index k = 0; k < pool_width; ++k) wide += ow * stride_w + k - left < width;
    const memcfg::Pack<W> slopes = memcfg::load_pack<W>(dy, o);
    const float places = static_cast<float>(high * wide);
#pragma unroll
    for (int j = 0; j < W; ++j) total.of[j] += slopes.of[j] / places;""",
        {"const float* dy": writer.operand(0)},
    )


def _write_global_average_gradient(writer: Writer) -> None:
    writer.need(["float32"], ["float32"])
    _, height, width, channels = writer.outputs[0].shape
    writer.loop(
        "dx[i] = dy[i / image * channels + i % channels] / pixels;",
        {
            "const float* dy": writer.operand(0),
            "float* dx": writer.output(),
            "float pixels": f32(height * width),
            "Index image": writer.number(height * width * channels),
            "Index channels": writer.number(channels),
        },
        writer.outputs[0].size,
    )


FAMILY: dict[str, Callable[[Writer], None]] = {
    "max_pool2d": _write_max_pool,
    "max_pool2d_inference": _write_max_pool,
    "max_pool2d_gradient": _write_max_pool_gradient,
    "max_pool2d_at": _write_max_pool_at,
    "average_pool2d": _write_average_pool,
    "average_pool2d_gradient": _write_average_pool_gradient,
    "global_average_pool2d_gradient": _write_global_average_gradient,
}
