"""Pooling: each output looks through its window, each gradient at the windows over it.

Nothing is added from several sides: no atomics, and the same bits in every run.
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
    a = writer.attributes
    if prod(a["pool_size"]) > 256:
        raise writer.fail("has windows of 256 places at most")
    numbers = {
        "height": x[1],
        "width": x[2],
        "channels": x[3],
        "out_height": y[1],
        "out_width": y[2],
        "pool_height": a["pool_size"][0],
        "pool_width": a["pool_size"][1],
        "stride_h": a["strides"][0],
        "stride_w": a["strides"][1],
        "top": a["padding"][0][0],
        "left": a["padding"][1][0],
    }
    return {f"Index {name}": writer.number(value) for name, value in numbers.items()}


# For each place (p, q) of the window of output i that is not padding.
_FORWARD = """
const Index c = i % channels, ow = i / channels % out_width;
const Index oh = i / channels / out_width % out_height;
const Index image = i / channels / out_width / out_height;
{before}
for (Index p = 0; p < pool_height; ++p) {{
  const Index h = oh * stride_h + p - top;
  if (h >= height) continue;
  for (Index q = 0; q < pool_width; ++q) {{
    const Index w = ow * stride_w + q - left;
    if (w >= width) continue;
    const float value = x[((image * height + h) * width + w) * channels + c];
    {each}
  }}
}}
{after}"""


def _forward(
    writer: Writer, before: str, each: str, after: str, more: dict[str, Argument]
) -> None:
    writer.loop(
        _FORWARD.format(before=before, each=each, after=after),
        {
            "const float* x": writer.operand(0),
            "float* y": writer.output(),
            **more,
            **_numbers(writer, writer.inputs[0].shape, writer.outputs[0].shape),
        },
        writer.outputs[0].size,
    )


def _write_max_pool(writer: Writer) -> None:
    keeps = len(writer.outputs) > 1
    writer.need(["float32"], ["float32", "uint8"][: 1 + keeps])
    _forward(
        writer,
        "float most = 0.0f; Index place = 0; bool none = true;",
        "const bool first_nan = value != value && most == most;\n"
        "if (none || value > most || first_nan) {\n"
        "  most = value; place = p * pool_width + q; none = false;\n}",
        "y[i] = most;" + " index[i] = static_cast<unsigned char>(place);" * keeps,
        {"unsigned char* index": writer.output(1)} if keeps else {},
    )


def _write_average_pool(writer: Writer) -> None:
    writer.need(["float32"], ["float32"])
    _forward(
        writer,
        "float total = 0.0f, places = 0.0f;",
        "total += value; places += 1.0f;",
        "y[i] = total / places;",
        {},
    )


# For each output o at (oh, ow) whose window has element i, at its place (p, q).
_BACKWARD = """
const Index c = i % channels, w = i / channels % width;
const Index h = i / channels / width % height;
const Index image = i / channels / width / height;
float total = 0.0f;
for (Index p = 0; p < pool_height; ++p) {{
  const Index down = h + top - p;
  if (down >= out_height * stride_h || down % stride_h != 0) continue;
  const Index oh = down / stride_h;
  for (Index q = 0; q < pool_width; ++q) {{
    const Index right = w + left - q;
    if (right >= out_width * stride_w || right % stride_w != 0) continue;
    const Index ow = right / stride_w;
    const Index o = ((image * out_height + oh) * out_width + ow) * channels + c;
    {each}
  }}
}}
dx[i] = total;"""


def _backward(writer: Writer, each: str, operands: dict[str, Argument]) -> None:
    writer.loop(
        _BACKWARD.format(each=each),
        {
            **operands,
            "float* dx": writer.output(),
            **_numbers(writer, writer.outputs[0].shape, writer.inputs[-1].shape),
        },
        writer.outputs[0].size,
    )


def _write_max_pool_gradient(writer: Writer) -> None:
    writer.need(["uint8", "float32"], ["float32"])
    _backward(
        writer,
        "if (index[o] == p * pool_width + q) total += dy[o];",
        {
            "const unsigned char* index": writer.operand(0),
            "const float* dy": writer.operand(1),
        },
    )


def _write_max_pool_at(writer: Writer) -> None:
    writer.need(["uint8", "float32"], ["float32"])
    writer.loop(
        """
const Index c = i % channels, ow = i / channels % out_width;
const Index oh = i / channels / out_width % out_height;
const Index image = i / channels / out_width / out_height;
const Index place = index[i];
const Index h = oh * stride_h + place / pool_width - top;
const Index w = ow * stride_w + place % pool_width - left;
y[i] = x[((image * height + h) * width + w) * channels + c];""",
        {
            "const unsigned char* index": writer.operand(0),
            "const float* x": writer.operand(1),
            "float* y": writer.output(),
            **_numbers(writer, writer.inputs[1].shape, writer.outputs[0].shape),
        },
        writer.outputs[0].size,
    )


def _write_average_pool_gradient(writer: Writer) -> None:
    writer.need(["float32"], ["float32"])
    _backward(
        writer,
        """
    Index high = 0, wide = 0;  // places of its window that are not padding
    for (Index k = 0; k < pool_height; ++k) high += oh * stride_h + k - top < height;
    for (Index k = 0; k < pool_width; ++k) wide += ow * stride_w + k - left < width;
    total += dy[o] / static_cast<float>(high * wide);""",
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
