"""Sums and maxima along axes: by whole blocks, and in slices if results are few.

Sums are in double precision. Lanes and slices depend only on lengths.
"""

from __future__ import annotations

from functools import partial
from math import prod
from typing import TYPE_CHECKING

from memcfg.devices.cuda._sources._columns import (
    Columns,
    each_column,
    sum_each_column,
)
from memcfg.devices.cuda._sources._prelude import THREADS
from memcfg.devices.cuda._sources._writer import Writer, cut, f32, f64, u32

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from memcfg.devices.cuda._sources._launch import Argument

__all__ = [
    "FAMILY",
    "PRODUCTS",
    "axes_of",
    "power_of_two",
    "reduce",
    "sum_axes",
    "sum_columns",
]

_SUM = ("double", "0.0", "return a + b;")
PRODUCTS = ("float", "0.0f", "return a + b;")
_MAXIMUM = (
    "float",
    "__int_as_float(0xff800000)",
    "return memcfg::maximum_of(a, b);",
)
_SIDE_BY_SIDE = 32  # max. adjacent results of a block
_FEW_SIDE_BY_SIDE = 8  # the same when slices are joined, by more threads: 64 bytes
_LEAST_STEPS = 16  # min. values of a thread in a slice
_ENOUGH = 1024  # blocks from which on results are not sliced


def power_of_two(count: int) -> int:
    """Return the least power of two that is at least `count`."""
    return 1 << (max(count, 1) - 1).bit_length()


def reduce(
    writer: Writer,
    *,
    results: int,
    each: int,
    columns: int,
    value: str,
    parameters: Mapping[str, Argument],
    out: str,
    out_parameters: Mapping[str, Argument],
    kind: tuple[str, str, str] = _SUM,
) -> None:
    """Append the launches that reduce `each` values to each of `results`.

    `value` is the body of a function of (o, r), the r-th value of result o, and `out`
    of (o, total). `columns` is the number of results whose values are adjacent in
    memory; 1 if the values of one result are.
    """
    stride = min(power_of_two(columns), _SIDE_BY_SIDE)
    lanes = min(power_of_two(each), THREADS // stride)
    tiles = -(-results // (THREADS // lanes))
    slices, length = cut(each, tiles, _LEAST_STEPS * lanes, _ENOUGH)
    ctype, first, join = kind

    def append(
        value: str,
        parameters: Mapping[str, Argument],
        out: str,
        numbers: tuple[int, int, int, int],
        blocks: int,
    ) -> None:
        count, length, lanes, stride = numbers
        writer.launch(
            f"""
  memcfg::reduce(
      results, each, length, lanes, stride, static_cast<{ctype}>({first}),
      [&](Index o, Index r) -> {ctype} {{ {value} }},
      []({ctype} a, {ctype} b) -> {ctype} {{ {join} }},
      [&](Index o, Index slice, {ctype} total) {{ {out} }});""",
            {
                **parameters,
                "Index results": writer.number(results),
                "Index each": writer.number(count),
                "Index length": writer.number(length),
                "unsigned int lanes": u32(lanes),
                "unsigned int stride": u32(stride),
            },
            blocks,
        )

    if slices == 1:
        numbers = each, each, lanes, stride
        append(value, {**parameters, **out_parameters}, out, numbers, tiles)
        return
    size = 8 if ctype == "double" else 4
    part = writer.scratch(slices * results * size)
    append(
        value,
        {**parameters, f"{ctype}* part": part},
        "part[slice * results + o] = total;",
        (each, length, lanes, stride),
        tiles * slices,
    )
    stride = min(power_of_two(results), _FEW_SIDE_BY_SIDE)
    lanes = min(power_of_two(slices), THREADS // stride)
    append(
        "return part[r * results + o];",
        {f"const {ctype}* part": part, **out_parameters},
        out,
        (slices, slices, lanes, stride),
        -(-results // (THREADS // lanes)),
    )


def axes_of(writer: Writer, rank: int) -> tuple[int, ...]:
    """Return the attribute `axes` as sorted non-negative numbers."""
    result = sorted({axis % rank for axis in writer.attributes["axes"]})
    return tuple(result)


def sum_axes(
    writer: Writer,
    shape: Sequence[int],
    axes: Sequence[int],
    *,
    value: str,
    parameters: Mapping[str, Argument],
    out: str,
    out_parameters: Mapping[str, Argument],
    kind: tuple[str, str, str] = _SUM,
) -> None:
    """Append a reduction along axes.

    `value` is the body of a function of (i, o), an element and its result.
    """
    strides = [prod(shape[axis + 1 :]) for axis in range(len(shape))]
    rows = list(zip(shape, strides, strict=True))
    kept = [row for axis, row in enumerate(rows) if axis not in axes]
    gone = [row for axis, row in enumerate(rows) if axis in axes]
    columns = 1
    for axis in reversed(range(len(shape))):
        if axis in axes and shape[axis] > 1:
            break
        columns *= shape[axis]
    where_o, of_o = writer.offset("o", "k", kept)
    where_r, of_r = writer.offset("r", "g", gone)
    reduce(
        writer,
        results=prod(length for length, _ in kept),
        each=prod(length for length, _ in gone),
        columns=columns,
        value=f"""
        const auto of_o = [&]() -> Index {{ {where_o} }};
        const auto of_r = [&]() -> Index {{ {where_r} }};
        const Index i = of_o() + of_r();
        {value}""",
        parameters={**parameters, **of_o, **of_r},
        out=out,
        out_parameters=out_parameters,
        kind=kind,
    )


def sum_columns(
    writer: Writer,
    rows: int,
    columns: int,
    *,
    value: str,
    parameters: Mapping[str, Argument],
    out: str,
    out_parameters: Mapping[str, Argument],
) -> None:
    """Append the sum of each column; `value` is the body of a function of (i, o)."""
    sum_axes(
        writer,
        (rows, columns),
        (0,),
        value=value,
        parameters=parameters,
        out=out,
        out_parameters=out_parameters,
    )


def _join(
    writer: Writer,
    axes: Sequence[int],
    out: str,
    out_parameters: Mapping[str, Argument] | None = None,
    kind: tuple[str, str, str] = _SUM,
) -> None:
    """Append the reduction of the input along axes; `out` is the value of y[o]."""
    writer.need(["float32"], ["float32"])
    sum_axes(
        writer,
        writer.inputs[0].shape,
        axes,
        value="return x[i];",
        parameters={"const float* x": writer.operand(0)},
        out=out,
        out_parameters={"float* y": writer.output(), **(out_parameters or {})},
        kind=kind,
    )


def _own_axes(writer: Writer) -> tuple[int, ...]:
    return axes_of(writer, len(writer.inputs[0].shape))


def _mean(writer: Writer, axes: Sequence[int]) -> None:
    count = prod(writer.inputs[0].shape[axis] for axis in axes)
    out = "y[o] = static_cast<float>(total / count);"
    _join(writer, axes, out, {"double count": f64(count)})


def _write_sum(writer: Writer) -> None:
    _join(writer, _own_axes(writer), "y[o] = static_cast<float>(total);")


def _write_mean(writer: Writer) -> None:
    _mean(writer, _own_axes(writer))


def _write_global_average(writer: Writer) -> None:
    _mean(writer, (1, 2))


def _write_maximum(writer: Writer) -> None:
    _join(writer, _own_axes(writer), "y[o] = total;", kind=_MAXIMUM)


def _write_maximum_gradient(writer: Writer) -> None:
    writer.need(["float32"] * 3, ["float32"])
    shape, size = writer.inputs[0].shape, writer.inputs[0].size
    axes = axes_of(writer, len(shape))
    hits = writer.scratch(8 * writer.inputs[1].size)
    both: dict[str, Argument] = {
        "const float* x": writer.operand(0),
        "const float* y": writer.operand(1),
    }
    sum_axes(
        writer,
        shape,
        axes,
        value="return x[i] == y[o] ? 1.0 : 0.0;",
        parameters=both,
        out="hits[o] = total;",
        out_parameters={"double* hits": hits},
    )
    kept, steps = 1, []
    for axis in reversed(range(len(shape))):
        steps.append((shape[axis], 0 if axis in axes else kept))
        kept *= 1 if axis in axes else shape[axis]
    where, parameters = writer.offset("i", "o", steps[::-1])
    writer.loop(
        f"""
        const Index o = [&]() -> Index {{ {where} }}();
        dx[i] = x[i] == y[o] ? dy[o] / static_cast<float>(hits[o]) : 0.0f;
        """,
        {
            **both,
            "const float* dy": writer.operand(2),
            "const double* hits": hits,
            "float* dx": writer.output(),
            **parameters,
        },
        size,
    )


# Activations of `value`, and their gradients given `slope`.
_FORWARD = {
    "": "value",
    "relu": "value < 0.0f ? 0.0f : value",  # NaN stays NaN
    "relu6": "value < 0.0f ? 0.0f : value > 6.0f ? 6.0f : value",
}
_BACKWARD = {  # `value` is the output or the input
    "": "slope",
    "relu": "value > 0.0f ? slope : 0.0f",
    "relu6": "value > 0.0f && value < 6.0f ? slope : 0.0f",
    # midpoint of 6 and the next smaller bfloat16, 5.96875
    "relu6, rounded": "value > 0.0f && value < 5.984375f ? slope : 0.0f",
}


def _write_bias(writer: Writer, activation: str = "") -> None:
    writer.need(["float32"] * 2, ["float32"])
    each_column(
        writer,
        _channels(writer.inputs[0].shape),
        before="const memcfg::Pack<W> added = memcfg::load_pack<W>(bias, g);",
        each=f"""
          memcfg::Pack<W> all = memcfg::load_pack<W>(x, r * groups + g);
#pragma unroll
          for (int j = 0; j < W; ++j) {{
            const float value = all.of[j] + added.of[j];
            all.of[j] = {_FORWARD[activation]};
          }}
          memcfg::store_pack<W>(y, r * groups + g, all);""",
        parameters={
            "const float* x": writer.operand(0),
            "const float* bias": writer.operand(1),
            "float* y": writer.output(),
        },
    )


def _channels(shape: Sequence[int], *pitches: int) -> Columns:
    """Return the shape of an array as a matrix whose columns are its channels."""
    return Columns.of(prod(shape[:-1]), shape[-1], *pitches)


def _write_bias_gradient(writer: Writer) -> None:
    writer.need(["float32"], ["float32"])
    sum_each_column(
        writer,
        _channels(writer.inputs[0].shape),
        1,
        before="",
        each="""
          const memcfg::Pack<W> all = memcfg::load_pack<W>(x, r * groups + g);
#pragma unroll
          for (int j = 0; j < W; ++j) total[0][j] += all.of[j];""",
        parameters={"const float* x": writer.operand(0)},
        out="y[o] = static_cast<float>(sum[0]);",
        out_parameters={"float* y": writer.output()},
    )


def _write_bias_relu_gradient(writer: Writer) -> None:
    writer.need(["float32"] * 2, ["float32"] * 2)
    shape, place, lengths = _wide(writer)
    sum_each_column(
        writer,
        shape,
        1,
        before="",
        each=_SLOPES.format(place=place, slope=_BACKWARD["relu"])
        + """
#pragma unroll
          for (int j = 0; j < W; ++j) total[0][j] += slopes.of[j];""",
        parameters={
            "const float* y": writer.operand(0),
            "const float* dy": writer.operand(1),
            "float* dz": writer.output(),
            **lengths,
        },
        out="db[o] = static_cast<float>(sum[0]);",
        out_parameters={"float* db": writer.output(1)},
    )


def _write_relu_gradient_at(writer: Writer) -> None:
    writer.need(["float32"] * 2, ["float32"])
    shape, place, lengths = _wide(writer)
    each_column(
        writer,
        shape,
        before="",
        each=_SLOPES.format(place=place, slope=_BACKWARD["relu"]),
        parameters={
            "const float* y": writer.operand(0),
            "const float* dy": writer.operand(1),
            "float* dz": writer.output(),
            **lengths,
        },
    )


# Gradients of the activation's input, which are stored.
_SLOPES = """
          const memcfg::Pack<W> values = memcfg::load_pack<W>(y, {place});
          memcfg::Pack<W> slopes = memcfg::load_pack<W>(dy, r * groups + g);
#pragma unroll
          for (int j = 0; j < W; ++j) {{
            const float value = values.of[j], slope = slopes.of[j];
            slopes.of[j] = {slope};
          }}
          memcfg::store_pack<W>(dz, r * groups + g, slopes);"""


def _wide(writer: Writer) -> tuple[Columns, str, dict[str, Argument]]:
    """Return dy as a matrix, and the index of its row r in the first input.

    The first input may have more channels, of which those of dy begin at `first`.
    """
    shape, wide = writer.inputs[1].shape, writer.inputs[0].shape[-1]
    if wide == shape[-1]:
        return _channels(shape), "r * groups + g", {}
    first = writer.attributes["first"]
    made = _channels(shape, wide, first)
    lengths: dict[str, Argument] = {
        "Index pitch": writer.number(wide // made.width),
        "Index first": writer.number(first // made.width),
    }
    return made, "r * pitch + first + g", lengths


def _write_norm(writer: Writer) -> None:
    writer.need(["float32"] * len(writer.inputs), ["float32"])
    sums = [writer.scratch(8) for _ in writer.inputs]
    for i, spec in enumerate(writer.inputs):
        sum_axes(
            writer,
            (spec.size,),
            (0,),
            value="const double value = x[i]; return value * value;",
            parameters={"const float* x": writer.operand(i)},
            out="*sum = total;",
            out_parameters={"double* sum": sums[i]},
        )
    apart = sums[1].byte_offset - sums[0].byte_offset if len(sums) > 1 else 8
    writer.launch(
        """
        if (threadIdx.x != 0) return;
        double total = 0;
        for (unsigned int i = 0; i < count; ++i) total += sums[i * apart];
        total = sqrt(total);
        const double largest = 3.4028234663852886e38;  // of finite arrays
        *y = static_cast<float>(
            total > largest && total <= 1.7976931348623157e308 ? largest : total);
        """,
        {
            "const double* sums": sums[0],
            "float* y": writer.output(),
            "unsigned int count": u32(len(sums)),
            "unsigned int apart": u32(apart // 8),
        },
        1,
    )


def _write_factored_means(writer: Writer) -> None:
    writer.need(["float32"], ["float32"] * 2)
    shape = writer.inputs[0].shape
    for output, axis in ((0, len(shape) - 1), (1, len(shape) - 2)):
        sum_axes(
            writer,
            shape,
            (axis,),
            value="const double value = x[i]; return value * value + epsilon;",
            parameters={
                "const float* x": writer.operand(0),
                "double epsilon": f64(writer.attributes["epsilon"]),
            },
            out="y[o] = static_cast<float>(total / count);",
            out_parameters={
                "float* y": writer.output(output),
                "double count": f64(shape[axis]),
            },
        )


def _write_over_factored_root(writer: Writer) -> None:
    writer.need(["float32"] * 3, ["float32"])
    *lead, rows, columns = writer.inputs[0].shape
    means = writer.scratch(8 * prod(lead))
    sum_axes(
        writer,
        (prod(lead), rows),
        (1,),
        value="return rows[i];",
        parameters={"const float* rows": writer.operand(1)},
        out="means[o] = total / count;",
        out_parameters={"double* means": means, "double count": f64(rows)},
    )
    writer.loop(
        """
        const Index row = i / columns_each, matrix = row / rows_each;
        const float root = static_cast<float>(sqrt(rows[row] / means[matrix]));
        const float other = sqrtf(columns[matrix * columns_each + i % columns_each]);
        y[i] = g[i] / (root * other);
        """,
        {
            "const float* g": writer.operand(0),
            "const float* rows": writer.operand(1),
            "const float* columns": writer.operand(2),
            "const double* means": means,
            "float* y": writer.output(),
            "Index rows_each": writer.number(rows),
            "Index columns_each": writer.number(columns),
        },
        writer.inputs[0].size,
    )


# Sums of differences from a channel's first value: a large mean then cancels no digits
# of the variance.
_SHIFTED = """
        float origin[W];
#pragma unroll
        for (int j = 0; j < W; ++j) {
          const float first = rows ? x[g * W + j] : 0.0f;
          origin[j] = fabsf(first) <= 3.4028235e38f ? first : 0.0f;
        }"""


def _write_batch_moments(writer: Writer) -> None:
    writer.need(["float32"], ["float32"] * 2)
    shape = writer.inputs[0].shape
    sum_each_column(
        writer,
        _channels(shape),
        2,
        before=_SHIFTED,
        each="""
          const memcfg::Pack<W> all = memcfg::load_pack<W>(x, r * groups + g);
#pragma unroll
          for (int j = 0; j < W; ++j) {
            const double away = static_cast<double>(all.of[j]) - origin[j];
            total[0][j] += away;
            total[1][j] += away * away;
          }""",
        parameters={"const float* x": writer.operand(0)},
        out="""
          const float first = rows ? x[o] : 0.0f;
          const double origin = fabsf(first) <= 3.4028235e38f ? first : 0.0f;
          const double away = sum[0] / count;
          const double unclamped = (sum[1] - sum[0] * away) / count;
          mean[o] = static_cast<float>(origin + away);
          variance[o] = static_cast<float>(unclamped < 0 ? 0.0 : unclamped);""",
        out_parameters={
            "const float* x": writer.operand(0),
            "float* mean": writer.output(),
            "float* variance": writer.output(1),
            "double count": f64(prod(shape[:-1])),
        },
    )


def _write_batch_normalization(
    writer: Writer, activation: str = "", *, adds: bool = False
) -> None:
    writer.need(["float32"] * (6 if adds else 5), ["float32"])
    added: dict[str, Argument] = {}
    if adds:
        added["const float* other"] = writer.operand(5)
    more = "const memcfg::Pack<W> others = memcfg::load_pack<W>(other, r * groups + g);"
    each_column(
        writer,
        _channels(writer.inputs[0].shape),
        before="""
        float factor[W], middle[W], shift[W];
#pragma unroll
        for (int j = 0; j < W; ++j) {
          const Index c = g * W + j;
          factor[j] = gamma[c] / sqrtf(variance[c] + epsilon);
          middle[j] = mean[c];
          shift[j] = beta[c];
        }""",
        each=f"""
          memcfg::Pack<W> all = memcfg::load_pack<W>(x, r * groups + g);
          {more if adds else ""}
#pragma unroll
          for (int j = 0; j < W; ++j) {{
            const float normalized = (all.of[j] - middle[j]) * factor[j] + shift[j];
            const float value = normalized{" + others.of[j]" if adds else ""};
            all.of[j] = {_FORWARD[activation]};
          }}
          memcfg::store_pack<W>(y, r * groups + g, all);""",
        parameters={
            "const float* x": writer.operand(0),
            "const float* gamma": writer.operand(1),
            "const float* beta": writer.operand(2),
            "const float* mean": writer.operand(3),
            "const float* variance": writer.operand(4),
            **added,
            "float* y": writer.output(),
            "float epsilon": f32(writer.attributes["epsilon"]),
        },
    )


# Gradients of the normalisation's output: given, or computed by the gradient of an
# activation from x, or from y and then stored.
_GIVEN = """
          const memcfg::Pack<W> slopes = memcfg::load_pack<W>(dy, r * groups + g);"""
_LET_THROUGH = """
          memcfg::Pack<W> slopes = memcfg::load_pack<W>(dy, r * groups + g);
#pragma unroll
          for (int j = 0; j < W; ++j) {{
            const float value = (all.of[j] - middle[j]) * factor[j] + shift[j];
            const float slope = slopes.of[j];
            slopes.of[j] = {slope};
          }}"""
_OF_X = """
          factor[j] = gamma[g * W + j] / sqrtf(variance[g * W + j] + epsilon);
          shift[j] = beta[g * W + j];"""


def _write_batch_gradient(writer: Writer) -> None:
    """Write the gradient for operands x, dy, gamma, mean, variance."""
    writer.need(["float32"] * 5, ["float32"] * 3)
    _write_moments_gradient(writer, (2, 3, 4), _GIVEN, _GIVEN, {})


def _write_added_gradient(writer: Writer) -> None:
    """Write the gradients for x, dy, y, gamma, mean, variance; dz is an output, too."""
    writer.need(["float32"] * 6, ["float32"] * 4)
    keeps = _SLOPES.format(place="r * groups + g", slope=_BACKWARD["relu"])
    kept = _GIVEN.replace("dy", "dz")
    more: dict[str, Argument] = {
        "const float* y": writer.operand(2),
        "float* dz": writer.output(3),
    }
    _write_moments_gradient(writer, (3, 4, 5), keeps, kept, more)


def _write_activated_gradient(writer: Writer, activation: str) -> None:
    """Write the gradient for x, dy, gamma, beta, mean, variance; x may be wider."""
    writer.need(["float32"] * 6, ["float32"] * 3)
    rounds = activation == "relu6" and writer.attributes.get("rounds", False)
    slope = _BACKWARD["relu6, rounded" if rounds else activation]
    let_through = _LET_THROUGH.format(slope=slope)
    beta: dict[str, Argument] = {"const float* beta": writer.operand(3)}
    _write_moments_gradient(
        writer, (2, 4, 5), let_through, let_through, beta, of_x=True
    )


def _write_moments_gradient(
    writer: Writer,
    weights: tuple[int, int, int],
    slopes: str,
    again: str,
    more: dict[str, Argument],
    *,
    of_x: bool = False,
) -> None:
    """Append dx, dgamma and dbeta in two passes, whose statements are the arguments."""
    gamma, mean, variance = weights
    shape, place, lengths = _wide(writer)
    operands: dict[str, Argument] = {
        "const float* x": writer.operand(0),
        "const float* dy": writer.operand(1),
        "const float* gamma": writer.operand(gamma),
        "const float* mean": writer.operand(mean),
        "const float* variance": writer.operand(variance),
        "float epsilon": f32(writer.attributes["epsilon"]),
        **more,
        **lengths,
    }
    before = f"""
        float middle[W], inverse[W], factor[W], shift[W];
#pragma unroll
        for (int j = 0; j < W; ++j) {{
          middle[j] = mean[g * W + j];
          inverse[j] = 1.0f / sqrtf(variance[g * W + j] + epsilon);
          {_OF_X if of_x else ""}
        }}"""
    values = f"const memcfg::Pack<W> all = memcfg::load_pack<W>(x, {place});"
    sum_each_column(
        writer,
        shape,
        2,
        before=before,
        each=f"""
          {values}
          {slopes}
#pragma unroll
          for (int j = 0; j < W; ++j) {{
            total[0][j] += slopes.of[j];
            total[1][j] += slopes.of[j] * ((all.of[j] - middle[j]) * inverse[j]);
          }}""",
        parameters=operands,
        out="""
          dbeta[o] = static_cast<float>(sum[0]);
          dgamma[o] = static_cast<float>(sum[1]);""",
        out_parameters={
            "float* dgamma": writer.output(1),
            "float* dbeta": writer.output(2),
        },
    )
    each_column(
        writer,
        shape,
        before=f"""
        {before}
        float scale[W], by[W], along[W];
#pragma unroll
        for (int j = 0; j < W; ++j) {{
          scale[j] = gamma[g * W + j] * inverse[j];
          by[j] = dbeta[g * W + j] / count;
          along[j] = dgamma[g * W + j] / count;
        }}""",
        each=f"""
          {values}
          {again}
          memcfg::Pack<W> made;
#pragma unroll
          for (int j = 0; j < W; ++j) {{
            const float normalized = (all.of[j] - middle[j]) * inverse[j];
            const float rest = slopes.of[j] - by[j] - normalized * along[j];
            made.of[j] = scale[j] * rest;
          }}
          memcfg::store_pack<W>(dx, r * groups + g, made);""",
        parameters={
            **operands,
            "const float* dgamma": writer.output(1),
            "const float* dbeta": writer.output(2),
            "float* dx": writer.output(),
            "float count": f32(shape.rows),
        },
    )


FAMILY: dict[str, Callable[[Writer], None]] = {
    "reduce_sum": _write_sum,
    "reduce_mean": _write_mean,
    "reduce_max": _write_maximum,
    "reduce_max_gradient": _write_maximum_gradient,
    "global_average_pool2d": _write_global_average,
    "bias": _write_bias,
    "bias_relu": partial(_write_bias, activation="relu"),
    "bias_gradient": _write_bias_gradient,
    "bias_relu_gradient": _write_bias_relu_gradient,
    "bias_relu_gradient_at": _write_bias_relu_gradient,
    "relu_gradient_at": _write_relu_gradient_at,
    "norm": _write_norm,
    "factored_means": _write_factored_means,
    "over_factored_root": _write_over_factored_root,
    "batch_moments": _write_batch_moments,
    "batch_normalization_gradient": _write_batch_gradient,
    "batch_normalization_add_relu_gradient": _write_added_gradient,
}
for _kind in ("batch_normalization", "batch_normalization_inference"):
    _write = _write_batch_normalization
    FAMILY[_kind] = _write
    FAMILY[f"{_kind}_relu"] = partial(_write, activation="relu")
    FAMILY[f"{_kind}_relu6"] = partial(_write, activation="relu6")
    FAMILY[f"{_kind}_add"] = partial(_write, adds=True)
    FAMILY[f"{_kind}_add_relu"] = partial(_write, activation="relu", adds=True)
for _activation in ("relu", "relu6"):
    FAMILY[f"batch_normalization_{_activation}_gradient"] = partial(
        _write_activated_gradient, activation=_activation
    )
