"""Matrix products and convolutions: tiles in shared memory, or sums if one is small.

The elements of matrices are functions of their indices: a convolution is a product
whose left matrix is read from the windows of the image.
"""

from __future__ import annotations

from functools import partial
from math import prod
from typing import TYPE_CHECKING

from memcfg.devices.cuda._sources._reductions import PRODUCTS, reduce
from memcfg.devices.cuda._sources._writer import Writer, cut, u32

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from memcfg.devices.cuda._sources._launch import Argument

__all__ = ["FAMILY", "multiply"]

_TILE = 64  # as in the prelude
_LEAST_SIDE = 8  # min. rows and columns of a product computed in tiles
_LEAST_SLICE = 128  # min. depth of a slice
_ENOUGH = 128  # tiles from which on the depth is not sliced


def multiply(
    writer: Writer,
    *,
    batch: int = 1,
    rows: int,
    columns: int,
    depth: int,
    a: str,
    b: str,
    store: str,
    parameters: Mapping[str, Argument],
    out_parameters: Mapping[str, Argument],
    along_k: tuple[bool, bool] = (True, False),
    batch_inside: bool = False,
) -> None:
    """Append the products of `batch` pairs of matrices.

    `a` is the body of a function of (g, m, k), `b` of (g, k, n), and `store` of (g, m,
    n, sum). `along_k` says for a and b whether neighbours in memory are along k, and
    `batch_inside` that the batches lie next to each other in each row.
    """
    sizes: dict[str, Argument] = {
        "Index rows": writer.number(rows),
        "Index columns": writer.number(columns),
        "Index batch": writer.number(batch),
    }
    if min(rows, columns) < _LEAST_SIDE:
        order = (
            "const Index n = o % columns, g = o / columns % batch, "
            "m = o / columns / batch;"
            if batch_inside
            else "const Index n = o % columns, m = o / columns % rows, "
            "g = o / columns / rows;"
        )
        reduce(
            writer,
            results=batch * rows * columns,
            each=depth,
            columns=columns * (batch if batch_inside else 1),
            value=f"""
            {order}
            const Index k = r;
            const float factor_a = [&]() -> float {{ {a} }}();
            const float factor_b = [&]() -> float {{ {b} }}();
            return factor_a * factor_b;""",
            parameters={**parameters, **sizes},
            out=f"{order} const float sum = total; {store}",
            out_parameters={**out_parameters, **sizes},
            kind=PRODUCTS,
        )
        return
    tiles = -(-rows // _TILE), -(-columns // _TILE)
    count = batch * tiles[0] * tiles[1]
    slices, length = cut(depth, count, _LEAST_SLICE, _ENOUGH)
    whole = batch * rows * columns
    part = writer.scratch(4 * slices * whole) if slices > 1 else None
    place = "part[((slice * batch + g) * rows + m) * columns + n] = sum;"
    out: Mapping[str, Argument] = {"float* part": part} if part else out_parameters
    writer.launch(
        f"""
  Index rest = blockIdx.x;
  const Index tile_column = rest % column_tiles; rest /= column_tiles;
  const Index tile_row = rest % row_tiles; rest /= row_tiles;
  const Index slice = rest % slices, g = rest / slices;
  const Index begin = slice * length;
  const Index end = depth - begin < length ? depth : begin + length;
  memcfg::multiply_tile<Index>(
      tile_row, tile_column, rows, columns, begin, end, a_along_k, b_along_k,
      [&](Index m, Index k) -> float {{ {a} }},
      [&](Index k, Index n) -> float {{ {b} }},
      [&](Index m, Index n, float sum) {{ {place if part else store} }});""",
        {
            **parameters,
            **out,
            **sizes,
            "Index depth": writer.number(depth),
            "Index row_tiles": writer.number(tiles[0]),
            "Index column_tiles": writer.number(tiles[1]),
            "Index slices": writer.number(slices),
            "Index length": writer.number(length),
            "unsigned int a_along_k": u32(along_k[0]),
            "unsigned int b_along_k": u32(along_k[1]),
        },
        count * slices,
    )
    if part is None:
        return
    writer.loop(
        f"""
        float sum = 0.0f;
        for (Index slice = 0; slice < slices; ++slice) sum += part[slice * whole + i];
        const Index n = i % columns, m = i / columns % rows, g = i / columns / rows;
        {store}
        """,
        {
            "const float* part": part,
            **out_parameters,
            **sizes,
            "Index slices": writer.number(slices),
            "Index whole": writer.number(whole),
        },
        whole,
    )


def _matrices(
    writer: Writer,
    batch: int,
    sizes: tuple[int, int, int],
    a: tuple[int, int, int, int],
    b: tuple[int, int, int, int],
    bias: int | None = None,
) -> None:
    """Append products of matrices, each given as (operand, batch, row, column stride).

    The operand `bias` is added to each row.
    """
    rows, columns, depth = sizes
    more, added = _bias(writer, bias, "n")
    multiply(
        writer,
        batch=batch,
        rows=rows,
        columns=columns,
        depth=depth,
        a="return a[g * ag + m * am + k * ak];",
        b="return b[g * bg + k * bk + n * bn];",
        store=f"c[(g * rows + m) * columns + n] = sum{added};",
        parameters={
            "const float* a": writer.operand(a[0]),
            "const float* b": writer.operand(b[0]),
            **{
                f"Index {name}": writer.number(value)
                for name, value in zip(("ag", "am", "ak"), a[1:], strict=True)
            },
            **{
                f"Index {name}": writer.number(value)
                for name, value in zip(("bg", "bk", "bn"), b[1:], strict=True)
            },
        },
        out_parameters={"float* c": writer.output(), **more},
        along_k=(a[3] == 1, b[2] == 1 and b[3] != 1),
    )


def _bias(
    writer: Writer, operand: int | None, place: str
) -> tuple[dict[str, Argument], str]:
    """Return the parameter of a bias, and the term that is added to a sum."""
    if operand is None:
        return {}, ""
    return {"const float* bias": writer.operand(operand)}, f" + bias[{place}]"


def _write_dense(writer: Writer, bias: int | None = None) -> None:
    writer.need(["float32"] * (2 if bias is None else 3), ["float32"])
    (*lead, depth), (_, columns) = (spec.shape for spec in writer.inputs[:2])
    _matrices(
        writer,
        1,
        (prod(lead), columns, depth),
        (0, 0, depth, 1),
        (1, 0, columns, 1),
        bias,
    )


def _write_dense_gradient_kernel(writer: Writer) -> None:
    writer.need(["float32"] * 2, ["float32"])
    (*lead, rows), (*_, columns) = (spec.shape for spec in writer.inputs)
    _matrices(
        writer, 1, (rows, columns, prod(lead)), (0, 0, 1, rows), (1, 0, columns, 1)
    )


def _write_dense_gradient_input(writer: Writer) -> None:
    writer.need(["float32"] * 2, ["float32"])
    (columns, depth), (*lead, _) = (spec.shape for spec in writer.inputs)
    _matrices(
        writer, 1, (prod(lead), columns, depth), (1, 0, depth, 1), (0, 0, 1, depth)
    )


def _write_matmul(writer: Writer) -> None:
    writer.need(["float32"] * 2, ["float32"])
    a, b = (spec.shape for spec in writer.inputs)
    ta = bool(writer.attributes.get("transpose_a"))
    tb = bool(writer.attributes.get("transpose_b"))
    *lead, rows, columns = writer.outputs[0].shape
    depth, batch = a[-2] if ta else a[-1], prod(lead)
    if len(b) == 2 and not ta:  # one matrix for all batches
        rows, batch = batch * rows, 1
    _matrices(
        writer,
        batch,
        (rows, columns, depth),
        (0, rows * depth, *((1, rows) if ta else (depth, 1))),
        (1, depth * columns, *((1, depth) if tb else (columns, 1))),
    )


# The element of x at place (i, j) of the window at (oh, ow).
_UNDER = """
const Index h = oh * stride_h + i * dilation_h - top;
const Index w = ow * stride_w + j * dilation_w - left;
if (h >= height || w >= width) return 0.0f;
return x[((image * height + h) * width + w) * channels + g * group_channels + c];"""

_PIXEL = """
const Index ow = {0} % out_width, oh = {0} / out_width % out_height;
const Index image = {0} / out_width / out_height;"""
_PLACE = """
const Index c = {0} % {1}, j = {0} / {1} % kernel_width;
const Index i = {0} / {1} / kernel_width;"""


def _window(
    writer: Writer, x: tuple[int, ...], kernel: tuple[int, ...], y: tuple[int, ...]
) -> dict[str, Argument]:
    """Return the parameters of a convolution."""
    a = writer.attributes
    numbers = {
        "height": x[1],
        "width": x[2],
        "channels": x[3],
        "group_channels": kernel[2],
        "kernel_width": kernel[1],
        "out_height": y[1],
        "out_width": y[2],
        "units": y[3],
        "group_units": y[3] // a["groups"],
        "stride_h": a["strides"][0],
        "stride_w": a["strides"][1],
        "dilation_h": a["dilation"][0],
        "dilation_w": a["dilation"][1],
        "top": a["padding"][0][0],
        "left": a["padding"][1][0],
    }
    return {f"Index {name}": writer.number(value) for name, value in numbers.items()}


def _write_convolution(writer: Writer, bias: int | None = None) -> None:
    writer.need(["float32"] * (2 if bias is None else 3), ["float32"])
    x, kernel = (spec.shape for spec in writer.inputs[:2])
    y, groups = writer.outputs[0].shape, writer.attributes["groups"]
    window = _window(writer, x, kernel, y)
    more, added = _bias(writer, bias, "g * group_units + n")
    multiply(
        writer,
        batch=groups,
        rows=prod(y[:3]),
        columns=y[3] // groups,
        depth=prod(kernel[:3]),
        a=_PIXEL.format("m") + _PLACE.format("k", "group_channels") + _UNDER,
        b="return kernel[k * units + g * group_units + n];",
        store=f"y[m * units + g * group_units + n] = sum{added};",
        parameters={
            "const float* x": writer.operand(0),
            "const float* kernel": writer.operand(1),
            **window,
        },
        out_parameters={"float* y": writer.output(), **more, **window},
        batch_inside=True,
    )


def _write_kernel_gradient(writer: Writer) -> None:
    writer.need(["float32"] * 2, ["float32"])
    x, y = (spec.shape for spec in writer.inputs)
    kernel, groups = writer.outputs[0].shape, writer.attributes["groups"]
    window = _window(writer, x, kernel, y)
    multiply(
        writer,
        batch=groups,
        rows=prod(kernel[:3]),
        columns=y[3] // groups,
        depth=prod(y[:3]),
        a=_PIXEL.format("k") + _PLACE.format("m", "group_channels") + _UNDER,
        b="return dy[k * units + g * group_units + n];",
        store="dkernel[m * units + g * group_units + n] = sum;",
        parameters={
            "const float* x": writer.operand(0),
            "const float* dy": writer.operand(1),
            **window,
        },
        out_parameters={"float* dkernel": writer.output(), **window},
        along_k=(False, False),
        batch_inside=True,
    )


def _write_input_gradient(writer: Writer) -> None:
    writer.need(["float32"] * 2, ["float32"])
    kernel, y = (spec.shape for spec in writer.inputs)
    x, groups = writer.outputs[0].shape, writer.attributes["groups"]
    window = _window(writer, x, kernel, y)
    multiply(
        writer,
        batch=groups,
        rows=prod(x[:3]),
        columns=x[3] // groups,
        depth=kernel[0] * kernel[1] * (y[3] // groups),
        a=_PLACE.format("k", "group_units")
        + """
        const Index w = m % width + left - j * dilation_w;
        const Index h = m / width % height + top - i * dilation_h;
        const Index image = m / width / height;
        if (h >= out_height * stride_h || h % stride_h != 0) return 0.0f;
        if (w >= out_width * stride_w || w % stride_w != 0) return 0.0f;
        const Index pixel = (image * out_height + h / stride_h) * out_width;
        return dy[(pixel + w / stride_w) * units + g * group_units + c];""",
        b=_PLACE.format("k", "group_units")
        + """
        const Index place = (i * kernel_width + j) * group_channels + n;
        return kernel[place * units + g * group_units + c];""",
        store="dx[m * channels + g * group_channels + n] = sum;",
        parameters={
            "const float* kernel": writer.operand(0),
            "const float* dy": writer.operand(1),
            **window,
        },
        out_parameters={"float* dx": writer.output(), **window},
        along_k=(True, True),
        batch_inside=True,
    )


# The element of x at place (i, j, l) of the window at (od, oh, ow).
_IN_VOLUME = """
const Index d = od * stride_d + i * dilation_d - front;
const Index h = oh * stride_h + j * dilation_h - top;
const Index w = ow * stride_w + l * dilation_w - left;
if (d >= planes || h >= height || w >= width) return 0.0f;
const Index pixel = ((image * planes + d) * height + h) * width + w;
return x[pixel * channels + g * group_channels + c];"""

_VOXEL = """
const Index ow = {0} % out_width, oh = {0} / out_width % out_height;
const Index od = {0} / out_width / out_height % out_depth;
const Index image = {0} / out_width / out_height / out_depth;"""
_TAP = """
const Index c = {0} % {1}, l = {0} / {1} % kernel_width;
const Index j = {0} / {1} / kernel_width % kernel_height;
const Index i = {0} / {1} / kernel_width / kernel_height;"""


def _volume_window(
    writer: Writer, x: Sequence[int], kernel: Sequence[int], y: Sequence[int]
) -> dict[str, Argument]:
    """Return the parameters of a convolution."""
    a = writer.attributes
    numbers = {
        **dict(zip(("planes", "height", "width", "channels"), x[1:], strict=True)),
        "group_channels": kernel[3],
        "kernel_height": kernel[1],
        "kernel_width": kernel[2],
        **dict(zip(("out_depth", "out_height", "out_width"), y[1:4], strict=True)),
        "units": y[4],
        "group_units": y[4] // a["groups"],
        **{
            f"{name}_{axis}": a[key][i]
            for name, key in (("stride", "strides"), ("dilation", "dilation"))
            for i, axis in enumerate("dhw")
        },
        **{name: a["padding"][i][0] for i, name in enumerate(("front", "top", "left"))},
    }
    return {f"Index {name}": writer.number(value) for name, value in numbers.items()}


def _write_volumes(writer: Writer) -> None:
    writer.need(["float32"] * 2, ["float32"])
    x, kernel = (spec.shape for spec in writer.inputs)
    y, groups = writer.outputs[0].shape, writer.attributes["groups"]
    window = _volume_window(writer, x, kernel, y)
    multiply(
        writer,
        batch=groups,
        rows=prod(y[:4]),
        columns=y[4] // groups,
        depth=prod(kernel[:4]),
        a=_VOXEL.format("m") + _TAP.format("k", "group_channels") + _IN_VOLUME,
        b="return kernel[k * units + g * group_units + n];",
        store="y[m * units + g * group_units + n] = sum;",
        parameters={
            "const float* x": writer.operand(0),
            "const float* kernel": writer.operand(1),
            **window,
        },
        out_parameters={"float* y": writer.output(), **window},
        batch_inside=True,
    )


def _write_volumes_kernel_gradient(writer: Writer) -> None:
    writer.need(["float32"] * 2, ["float32"])
    x, y = (spec.shape for spec in writer.inputs)
    kernel, groups = writer.outputs[0].shape, writer.attributes["groups"]
    window = _volume_window(writer, x, kernel, y)
    multiply(
        writer,
        batch=groups,
        rows=prod(kernel[:4]),
        columns=y[4] // groups,
        depth=prod(y[:4]),
        a=_VOXEL.format("k") + _TAP.format("m", "group_channels") + _IN_VOLUME,
        b="return dy[k * units + g * group_units + n];",
        store="dkernel[m * units + g * group_units + n] = sum;",
        parameters={
            "const float* x": writer.operand(0),
            "const float* dy": writer.operand(1),
            **window,
        },
        out_parameters={"float* dkernel": writer.output(), **window},
        along_k=(False, False),
        batch_inside=True,
    )


def _write_volumes_input_gradient(writer: Writer) -> None:
    writer.need(["float32"] * 2, ["float32"])
    kernel, y = (spec.shape for spec in writer.inputs)
    x, groups = writer.outputs[0].shape, writer.attributes["groups"]
    window = _volume_window(writer, x, kernel, y)
    multiply(
        writer,
        batch=groups,
        rows=prod(x[:4]),
        columns=x[4] // groups,
        depth=prod(kernel[:3]) * (y[4] // groups),
        a=_TAP.format("k", "group_units")
        + """
        const Index w = m % width + left - l * dilation_w;
        const Index h = m / width % height + top - j * dilation_h;
        const Index d = m / width / height % planes + front - i * dilation_d;
        const Index image = m / width / height / planes;
        if (d >= out_depth * stride_d || d % stride_d != 0) return 0.0f;
        if (h >= out_height * stride_h || h % stride_h != 0) return 0.0f;
        if (w >= out_width * stride_w || w % stride_w != 0) return 0.0f;
        const Index plane = (image * out_depth + d / stride_d) * out_height;
        const Index pixel = (plane + h / stride_h) * out_width + w / stride_w;
        return dy[pixel * units + g * group_units + c];""",
        b=_TAP.format("k", "group_units")
        + """
        const Index tap = (i * kernel_height + j) * kernel_width + l;
        const Index place = tap * group_channels + n;
        return kernel[place * units + g * group_units + c];""",
        store="dx[m * channels + g * group_channels + n] = sum;",
        parameters={
            "const float* kernel": writer.operand(0),
            "const float* dy": writer.operand(1),
            **window,
        },
        out_parameters={"float* dx": writer.output(), **window},
        along_k=(True, True),
        batch_inside=True,
    )


FAMILY: dict[str, Callable[[Writer], None]] = {
    "dense": _write_dense,
    "dense_bias": partial(_write_dense, bias=2),
    "dense_gradient_kernel": _write_dense_gradient_kernel,
    "dense_gradient_input": _write_dense_gradient_input,
    "matmul": _write_matmul,
    "conv2d": _write_convolution,
    "conv2d_bias": partial(_write_convolution, bias=2),
    "conv2d_gradient_kernel": _write_kernel_gradient,
    "conv2d_gradient_input": _write_input_gradient,
    "conv3d": _write_volumes,
    "conv3d_gradient_kernel": _write_volumes_kernel_gradient,
    "conv3d_gradient_input": _write_volumes_input_gradient,
}
