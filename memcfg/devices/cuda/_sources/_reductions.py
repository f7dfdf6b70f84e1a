"""Sums and maxima along axes: of whole blocks, and in slices where results are few.

Sums are in double precision. Lanes and slices are chosen by lengths alone.
"""

from __future__ import annotations

from functools import partial
from math import prod
from typing import TYPE_CHECKING

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
_SIDE_BY_SIDE = 32  # results, where they lie so
_FEW_SIDE_BY_SIDE = 8  # of slices, so that more threads join them: 64 bytes
_LEAST_STEPS = 16  # values that a thread joins, before results are cut into slices
_ENOUGH = 1024  # blocks: results are not cut into slices where there are as many


def power_of_two(count: int) -> int:
    """Return the least power of two that is not below."""
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
    """Append the launches that join `each` values to each of `results`.

    `value` is the body of a function of (o, r), the r-th value of result o; `out` says
    what is done with (o, total). `columns` are the results that lie side by side in
    memory; 1 where the values of one result do.
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
    """Return the attribute `axes`, counted from the first and in their order."""
    found = sorted({axis % rank for axis in writer.attributes["axes"]})
    return tuple(found)


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

    `value` is a function's body of (i, o), an element and its result.
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
    """Append the sum of each column; `value` is a function's body of (i, o)."""
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
    """Append the reduction of the input along axes; `out` says what y[o] is."""
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


# What follows a value, and the gradient before it, by names of their own.
_FORWARD = {
    "": "value",
    "relu": "value < 0.0f ? 0.0f : value",  # NaN stays NaN
    "relu6": "value < 0.0f ? 0.0f : value > 6.0f ? 6.0f : value",
}
_BACKWARD = {  # of what came out, or what went in, under the name value
    "": "dy[i]",
    "relu": "value > 0.0f ? dy[i] : 0.0f",
    "relu6": "value > 0.0f && value < 6.0f ? dy[i] : 0.0f",
    # half way from 6 to the bfloat16 below it, 5.96875
    "relu6, rounded": "value > 0.0f && value < 5.984375f ? dy[i] : 0.0f",
}


def _write_bias(writer: Writer, activation: str = "") -> None:
    writer.need(["float32"] * 2, ["float32"])
    writer.loop(
        f"""
        const float value = x[i] + bias[i % channels];
        y[i] = {_FORWARD[activation]};
        """,
        {
            "const float* x": writer.operand(0),
            "const float* bias": writer.operand(1),
            "float* y": writer.output(),
            "Index channels": writer.number(writer.inputs[1].size),
        },
        writer.inputs[0].size,
    )


def _write_bias_gradient(writer: Writer) -> None:
    writer.need(["float32"], ["float32"])
    _sum_channels(writer, writer.operand(0), writer.output())


def _write_bias_relu_gradient(writer: Writer) -> None:
    writer.need(["float32"] * 2, ["float32"] * 2)
    _write_slope(writer, "relu", writer.operand(0), writer.operand(1), writer.output())
    _sum_channels(writer, writer.output(), writer.output(1))


def _write_relu_gradient_at(writer: Writer) -> None:
    writer.need(["float32"] * 2, ["float32"])
    _write_slope(writer, "relu", writer.operand(0), writer.operand(1), writer.output())


def _write_slope(
    writer: Writer, activation: str, y: Argument, dy: Argument, dz: Argument
) -> None:
    """Append the gradient before an activation, of all elements of dy."""
    place, lengths = _place_of_wide(writer, writer.inputs[0].shape[-1])
    writer.loop(
        f"const float value = y[{place}]; dz[i] = {_BACKWARD[activation]};",
        {"const float* y": y, "const float* dy": dy, "float* dz": dz, **lengths},
        writer.inputs[1].size,
    )


def _place_of_wide(writer: Writer, wide: int) -> tuple[str, dict[str, Argument]]:
    """Say where element i of dy is in an array with rows of more channels."""
    channels = writer.inputs[1].shape[-1]
    if wide == channels:
        return "i", {}
    return "i / narrow * wide + first + i % narrow", {
        "Index narrow": writer.number(channels),
        "Index wide": writer.number(wide),
        "Index first": writer.number(writer.attributes["first"]),
    }


def _sum_channels(writer: Writer, x: Argument, out: Argument) -> None:
    """Append the sum of each channel of the last input's shape."""
    shape = writer.inputs[-1].shape
    sum_columns(
        writer,
        prod(shape[:-1]),
        shape[-1],
        value="return x[i];",
        parameters={"const float* x": x},
        out="sum[o] = static_cast<float>(total);",
        out_parameters={"float* sum": out},
    )


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


def _write_batch_moments(writer: Writer) -> None:
    writer.need(["float32"], ["float32"] * 2)
    shape = writer.inputs[0].shape
    rows, columns = prod(shape[:-1]), shape[-1]
    x: dict[str, Argument] = {"const float* x": writer.operand(0)}
    mean: dict[str, Argument] = {"const float* mean": writer.output()}
    count = f64(rows)
    sum_columns(
        writer,
        rows,
        columns,
        value="return x[i];",
        parameters=x,
        out="mean[o] = static_cast<float>(total / count);",
        out_parameters={"float* mean": writer.output(), "double count": count},
    )
    sum_columns(
        writer,
        rows,
        columns,
        value="const double away = x[i] - mean[o]; return away * away;",
        parameters={**x, **mean},
        out="variance[o] = static_cast<float>(total / count);",
        out_parameters={"float* variance": writer.output(1), "double count": count},
    )


def _write_batch_normalization(
    writer: Writer, activation: str = "", *, adds: bool = False
) -> None:
    writer.need(["float32"] * (6 if adds else 5), ["float32"])
    shape = writer.inputs[0].shape
    added: dict[str, Argument] = {}
    if adds:
        added["const float* other"] = writer.operand(5)
    writer.loop(
        f"""
        const Index c = i % channels;
        const float factor = gamma[c] / sqrtf(variance[c] + epsilon);
        const float normalized = (x[i] - mean[c]) * factor + beta[c];
        const float value = normalized{" + other[i]" if added else ""};
        y[i] = {_FORWARD[activation]};
        """,
        {
            "const float* x": writer.operand(0),
            "const float* gamma": writer.operand(1),
            "const float* beta": writer.operand(2),
            "const float* mean": writer.operand(3),
            "const float* variance": writer.operand(4),
            **added,
            "float* y": writer.output(),
            "float epsilon": f32(writer.attributes["epsilon"]),
            "Index channels": writer.number(shape[-1]),
        },
        writer.inputs[0].size,
    )


def _write_batch_gradient(
    writer: Writer, activation: str = "", *, keeps: bool = False
) -> None:
    """Write the gradient; see `_write_activated_gradient` for one that sees x alone.

    Operands are x, dy, y where there is an activation, gamma, mean, variance.
    """
    inputs = 6 if keeps else 5
    writer.need(["float32"] * inputs, ["float32"] * (4 if keeps else 3))
    dy = writer.operand(1)
    if keeps:
        dy = writer.output(3)
        _write_slope(writer, activation, writer.operand(2), writer.operand(1), dy)
    gamma, mean, variance = range(inputs - 3, inputs)
    _write_moments_gradient(writer, dy, (gamma, mean, variance), "dy[i]", {}, "i", {})


def _write_activated_gradient(writer: Writer, activation: str) -> None:
    """Operands are x, dy, gamma, beta, mean, variance; x may have more channels."""
    writer.need(["float32"] * 6, ["float32"] * 3)
    place, lengths = _place_of_wide(writer, writer.inputs[0].shape[-1])
    channels = writer.inputs[1].shape[-1]
    rounds = activation == "relu6" and writer.attributes.get("rounds", False)
    slope = _BACKWARD["relu6, rounded" if rounds else activation]
    let_through = f"""[&] {{
          const Index c = i % let_channels;
          const float factor = let_gamma[c] / sqrtf(variance[c] + epsilon);
          const float value = (x[{place}] - mean[c]) * factor + beta[c];
          return {slope};
        }}()"""
    _write_moments_gradient(
        writer,
        writer.operand(1),
        (2, 4, 5),
        let_through,
        {
            "const float* let_gamma": writer.operand(2),
            "const float* beta": writer.operand(3),
            "Index let_channels": writer.number(channels),
        },
        place,
        lengths,
    )


def _write_moments_gradient(
    writer: Writer,
    dy: Argument,
    weights: tuple[int, int, int],
    dz: str,
    more: dict[str, Argument],
    place: str,
    lengths: dict[str, Argument],
) -> None:
    """Append dx, dgamma and dbeta of dz, an expression; x lies at `place`."""
    gamma, mean, variance = weights
    shape = writer.inputs[1].shape
    rows, columns = prod(shape[:-1]), shape[-1]
    operands: dict[str, Argument] = {
        "const float* x": writer.operand(0),
        "const float* dy": dy,
        "const float* mean": writer.operand(mean),
        "const float* variance": writer.operand(variance),
        "float epsilon": f32(writer.attributes["epsilon"]),
        **more,
        **lengths,
    }
    slope = f"const float dz = {dz};"
    sum_columns(
        writer,
        rows,
        columns,
        value=f"""
        {slope}
        const float normalized =
            (x[{place}] - mean[o]) / sqrtf(variance[o] + epsilon);
        return dz * normalized;""",
        parameters=operands,
        out="dgamma[o] = static_cast<float>(total);",
        out_parameters={"float* dgamma": writer.output(1)},
    )
    sum_columns(
        writer,
        rows,
        columns,
        value=f"{slope} return dz;",
        parameters=operands if more else {"const float* dy": dy},
        out="dbeta[o] = static_cast<float>(total);",
        out_parameters={"float* dbeta": writer.output(2)},
    )
    writer.loop(
        f"""
        const Index c = i % channels;
        {slope}
        const float inverse = 1.0f / sqrtf(variance[c] + epsilon);
        const float normalized = (x[{place}] - mean[c]) * inverse;
        const float rest = dz - dbeta[c] / rows - normalized * (dgamma[c] / rows);
        dx[i] = gamma[c] * inverse * rest;
        """,
        {
            **operands,
            "const float* gamma": writer.operand(gamma),
            "const float* dgamma": writer.output(1),
            "const float* dbeta": writer.output(2),
            "float* dx": writer.output(),
            "float rows": f32(rows),
            "Index channels": writer.number(columns),
        },
        writer.inputs[1].size,
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
    "batch_normalization_add_relu_gradient": partial(
        _write_batch_gradient, activation="relu", keeps=True
    ),
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
