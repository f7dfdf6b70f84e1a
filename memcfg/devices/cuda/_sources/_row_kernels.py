"""Ops that read whole rows: softmax, layer normalisation, cross-entropy, maxima.

A row is processed by as many adjacent threads as it has elements, up to a block.
"""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING

import numpy as np

from memcfg.devices.cuda._sources._prelude import THREADS
from memcfg.devices.cuda._sources._reductions import (
    power_of_two,
    reduce,
    sum_axes,
    sum_columns,
)
from memcfg.devices.cuda._sources._writer import Writer, f32, f64, i64, u32

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from memcfg.devices.cuda._sources._launch import Argument

__all__ = ["FAMILY"]

_MANY_ROWS = 1024  # interleaved rows from which on each has a single thread


def _rows(
    writer: Writer,
    rows: int,
    length: int,
    body: str,
    parameters: Mapping[str, Argument],
    *,
    inner: int = 1,
) -> None:
    """Append a launch over rows; element j of a row is at index at(j).

    All threads run the body: `mine(f)` calls f(j) for the thread's elements of its row,
    if it has one, and `leads` is true for one thread of each row.
    """
    lanes = min(power_of_two(length), THREADS)
    if inner > 1 and rows >= _MANY_ROWS:
        lanes = 1
    writer.launch(
        f"""
  const unsigned int lane = threadIdx.x % lanes;
  const Index row = blockIdx.x * static_cast<Index>(memcfg::kThreads / lanes) +
                    threadIdx.x / lanes;
  const bool leads = lane == 0 && row < rows;
  const Index first = row / inner * length * inner + row % inner;
  const auto at = [&](Index j) -> Index {{ return first + j * inner; }};
  const auto mine = [&](auto f) {{
    if (row >= rows) return;
    for (Index j = lane; j < length; j += lanes) f(j);
  }};
{body.strip()}""",
        {
            **parameters,
            "Index rows": writer.number(rows),
            "Index length": writer.number(length),
            "Index inner": writer.number(inner),
            "unsigned int lanes": u32(lanes),
        },
        -(-rows // (THREADS // lanes)),
    )


def _along(writer: Writer) -> tuple[int, int, int]:
    """Return the number of rows, their length, and the stride of their elements."""
    shape = writer.inputs[0].shape
    axis = writer.attributes.get("axis", -1) % len(shape)
    inner = prod(shape[axis + 1 :])
    return prod(shape[:axis]) * inner, shape[axis], inner


# The maximum over visible elements, and the sum of the exponentials.
_SHIFT = """
  float most = __int_as_float(0xff800000);
  mine([&](Index j) { if (j < seen) most = memcfg::maximum_of(most, x[at(j)]); });
  most = memcfg::maximum_lanes(lanes, most);
  double total = 0;
  mine([&](Index j) { if (j < seen) total += expf(x[at(j)] - most); });
  total = memcfg::sum_lanes(lanes, total);
"""


def _write_softmax(writer: Writer) -> None:
    writer.need(["float32"], ["float32"])
    rows, length, inner = _along(writer)
    causal = bool(writer.attributes.get("causal"))
    _rows(
        writer,
        rows,
        length,
        f"""
  const Index seen = row % matrix + 1;
  {_SHIFT}
  const float divisor = static_cast<float>(total);
  mine([&](Index j) {{
    y[at(j)] = j < seen ? expf(x[at(j)] - most) / divisor : 0.0f / divisor;
  }});"""
        if causal
        else f"""
  const Index seen = length;
  {_SHIFT}
  const float divisor = static_cast<float>(total);
  mine([&](Index j) {{ y[at(j)] = expf(x[at(j)] - most) / divisor; }});""",
        {
            "const float* x": writer.operand(0),
            "float* y": writer.output(),
            **(
                {"Index matrix": writer.number(writer.inputs[0].shape[-2])}
                if causal
                else {}
            ),
        },
        inner=inner,
    )


def _write_log_softmax(writer: Writer) -> None:
    writer.need(["float32"], ["float32"])
    rows, length, inner = _along(writer)
    _rows(
        writer,
        rows,
        length,
        f"""
  const Index seen = length;
  {_SHIFT}
  const float logarithm = static_cast<float>(log(total));
  mine([&](Index j) {{ y[at(j)] = x[at(j)] - most - logarithm; }});""",
        {"const float* x": writer.operand(0), "float* y": writer.output()},
        inner=inner,
    )


def _slopes(writer: Writer, value: str, result: str) -> None:
    writer.need(["float32"] * 2, ["float32"])
    rows, length, inner = _along(writer)
    _rows(
        writer,
        rows,
        length,
        f"""
  double total = 0;
  mine([&](Index j) {{ total += {value}; }});
  const float sum = static_cast<float>(memcfg::sum_lanes(lanes, total));
  mine([&](Index j) {{ dx[at(j)] = {result}; }});""",
        {
            "const float* y": writer.operand(0),
            "const float* dy": writer.operand(1),
            "float* dx": writer.output(),
        },
        inner=inner,
    )


def _write_softmax_gradient(writer: Writer) -> None:
    _slopes(writer, "y[at(j)] * dy[at(j)]", "y[at(j)] * (dy[at(j)] - sum)")


def _write_log_softmax_gradient(writer: Writer) -> None:
    _slopes(writer, "dy[at(j)]", "dy[at(j)] - expf(y[at(j)]) * sum")


def _write_layer_normalization(writer: Writer) -> None:
    writer.need(["float32"] * 3, ["float32"] * 3)
    *lead, length = writer.inputs[0].shape
    _rows(
        writer,
        prod(lead),
        length,
        """
  double total = 0;
  mine([&](Index j) { total += x[at(j)]; });
  const double mean = memcfg::sum_lanes(lanes, total) / length;
  total = 0;
  mine([&](Index j) { const double d = x[at(j)] - mean; total += d * d; });
  const double variance = memcfg::sum_lanes(lanes, total) / length;
  const float inverse = static_cast<float>(1 / sqrt(variance + epsilon));
  const float middle = static_cast<float>(mean);
  mine([&](Index j) {
    y[at(j)] = (x[at(j)] - middle) * inverse * gamma[j] + beta[j];
  });
  if (leads) {
    means[row] = middle;
    variances[row] = static_cast<float>(variance);
  }""",
        {
            "const float* x": writer.operand(0),
            "const float* gamma": writer.operand(1),
            "const float* beta": writer.operand(2),
            "float* y": writer.output(),
            "float* means": writer.output(1),
            "float* variances": writer.output(2),
            "double epsilon": f64(writer.attributes["epsilon"]),
        },
    )


def _write_layer_gradient(writer: Writer) -> None:
    writer.need(["float32"] * 5, ["float32"] * 3)
    *lead, length = writer.inputs[0].shape
    both: dict[str, Argument] = {
        "const float* x": writer.operand(0),
        "const float* dy": writer.operand(1),
    }
    statistics: dict[str, Argument] = {
        "const float* mean": writer.operand(3),
        "const float* variance": writer.operand(4),
        "float epsilon": f32(writer.attributes["epsilon"]),
    }
    sum_columns(  # before dx, which may overwrite dy
        writer,
        prod(lead),
        length,
        value="""
        const Index row = i / length_of_row;
        const float inverse = 1.0f / sqrtf(variance[row] + epsilon);
        return dy[i] * ((x[i] - mean[row]) * inverse);""",
        parameters={
            **both,
            **statistics,
            "Index length_of_row": writer.number(length),
        },
        out="dgamma[o] = static_cast<float>(total);",
        out_parameters={"float* dgamma": writer.output(1)},
    )
    sum_columns(
        writer,
        prod(lead),
        length,
        value="return dy[i];",
        parameters={"const float* dy": writer.operand(1)},
        out="dbeta[o] = static_cast<float>(total);",
        out_parameters={"float* dbeta": writer.output(2)},
    )
    _rows(
        writer,
        prod(lead),
        length,
        """
  const float middle = row < rows ? mean[row] : 0.0f;
  const float inverse = row < rows ? 1.0f / sqrtf(variance[row] + epsilon) : 0.0f;
  double shift = 0, tilt = 0;
  mine([&](Index j) {
    const float slope = dy[at(j)] * gamma[j];
    shift += slope;
    tilt += slope * ((x[at(j)] - middle) * inverse);
  });
  const float by = static_cast<float>(memcfg::sum_lanes(lanes, shift) / length);
  const float along = static_cast<float>(memcfg::sum_lanes(lanes, tilt) / length);
  mine([&](Index j) {
    const float normalized = (x[at(j)] - middle) * inverse;
    dx[at(j)] = inverse * (dy[at(j)] * gamma[j] - by - normalized * along);
  });""",
        {
            **both,
            "const float* gamma": writer.operand(2),
            **statistics,
            "float* dx": writer.output(),
        },
    )


# The loss of a row is NaN if its label is out of range.
_ROW_LOSS = f"""
  const Index seen = length;
  const int label = row < rows ? labels[row] : -1;
  {_SHIFT}
  double chosen = 0;
  mine([&](Index j) {{
    if (static_cast<i64>(j) == label) chosen = static_cast<double>(x[at(j)]) - most;
  }});
  chosen = memcfg::sum_lanes(lanes, chosen);
  const bool known = label >= 0 && static_cast<Index>(label) < length;
  const double loss = known ? log(total) - chosen : __longlong_as_double(~0LL);
""".replace("i64", "long long")
_PROBABILITIES = """
  const float divisor = static_cast<float>(total);
  mine([&](Index j) { kept[at(j)] = expf(x[at(j)] - most) / divisor; });"""


def _logits(writer: Writer) -> tuple[int, int, dict[str, Argument]]:
    *lead, length = writer.inputs[0].shape
    operands: dict[str, Argument] = {
        "const float* x": writer.operand(0),
        "const int* labels": writer.operand(1),
    }
    return prod(lead), length, operands


def _write_cross_entropy(writer: Writer) -> None:
    keeps = len(writer.outputs) > 1
    writer.need(["float32", "int32"], ["float32"] * (1 + keeps))
    rows, length, operands = _logits(writer)
    losses = writer.scratch(8 * rows)
    kept = {"float* kept": writer.output(1)} if keeps else {}
    _rows(
        writer,
        rows,
        length,
        _ROW_LOSS + _PROBABILITIES * keeps + "\n  if (leads) losses[row] = loss;",
        {**operands, **kept, "double* losses": losses},
    )
    sum_axes(
        writer,
        (rows,),
        (0,),
        value="return losses[i];",
        parameters={"const double* losses": losses},
        out="*y = static_cast<float>(total / count);",
        out_parameters={"float* y": writer.output(), "double count": f64(rows)},
    )


def _ignored(writer: Writer) -> dict[str, Argument]:
    """Return the ignored label; without one, a number out of int's range."""
    result = writer.attributes.get("ignored")
    return {"long long ignored": i64(1 << 40 if result is None else result)}


def _write_cross_entropy_rows(writer: Writer) -> None:
    writer.need(["float32", "int32"], ["float32"] * 2)
    rows, length, operands = _logits(writer)
    _rows(
        writer,
        rows,
        length,
        _ROW_LOSS
        + _PROBABILITIES
        + """
  if (leads) losses[row] = label == ignored ? 0.0f : static_cast<float>(loss);""",
        {
            **operands,
            "float* losses": writer.output(),
            "float* kept": writer.output(1),
            **_ignored(writer),
        },
    )


def _write_cross_entropy_gradient(writer: Writer) -> None:
    writer.need(["float32", "int32"], ["float32"])
    rows, length, operands = _logits(writer)
    writer.loop(
        """
        const bool hit = static_cast<long long>(i % classes) == labels[i / classes];
        dx[i] = (x[i] - (hit ? 1.0f : 0.0f)) / rows;
        """,
        {
            **operands,
            "float* dx": writer.output(),
            "float rows": f32(rows),
            "Index classes": writer.number(length),
        },
        rows * length,
    )


def _write_cross_entropy_rows_gradient(writer: Writer) -> None:
    writer.need(["float32", "int32", "float32"], ["float32"])
    rows, length, operands = _logits(writer)
    writer.loop(
        """
        const Index row = i / classes;
        const bool hit = static_cast<long long>(i % classes) == labels[row];
        const float factor = labels[row] == ignored ? 0.0f : dy[row];
        dx[i] = (x[i] - (hit ? 1.0f : 0.0f)) * factor;
        """,
        {
            **operands,
            "const float* dy": writer.operand(2),
            "float* dx": writer.output(),
            **_ignored(writer),
            "Index classes": writer.number(length),
        },
        rows * length,
    )


# The first maximum of a row, or its first NaN.
_BEST = """
  struct Best { float value; Index place; };
  const Index none = ~static_cast<Index>(0);
  const auto better = [=](Best a, Best b) -> Best {
    if (a.place == none || b.place == none) return a.place == none ? b : a;
    const bool first = a.place < b.place, nan_a = a.value != a.value;
    const bool nan_b = b.value != b.value;
    if (nan_a || nan_b) return nan_a && (first || !nan_b) ? a : b;
    return a.value > b.value || (a.value == b.value && first) ? a : b;
  };
  Best best = {0.0f, none};
  mine([&](Index j) { best = better(best, Best{x[at(j)], j}); });
  best = memcfg::join_lanes(lanes, 1u, best, better);
"""


def _write_argmax(writer: Writer) -> None:
    writer.need(["float32"], ["int32"])
    *lead, length = writer.inputs[0].shape
    _rows(
        writer,
        prod(lead),
        length,
        _BEST + "  if (leads) y[row] = static_cast<int>(best.place);",
        {"const float* x": writer.operand(0), "int* y": writer.output()},
    )


def _write_hits(writer: Writer) -> None:
    writer.need(["float32", "int32"], ["float32"])
    rows, length, operands = _logits(writer)
    k = writer.attributes["k"]
    if k == 0:
        body = _BEST + (
            "  if (leads) {\n"
            "    const long long place = best.place;\n"
            "    y[row] = place == labels[row] ? 1.0f : 0.0f;\n  }"
        )
        _rows(writer, rows, length, body, {**operands, "float* y": writer.output()})
        return
    _rows(
        writer,
        rows,
        length,
        """
  const int label = row < rows ? labels[row] : -1;
  const bool known = label >= 0 && static_cast<Index>(label) < length;
  const float value = known ? x[at(label)] : 0.0f;
  double greater = 0;
  mine([&](Index j) { greater += x[at(j)] > value ? 1 : 0; });
  greater = memcfg::sum_lanes(lanes, greater);
  if (leads) y[row] = known && value == value && greater < k ? 1.0f : 0.0f;""",
        {**operands, "float* y": writer.output(), "double k": f64(k)},
    )


def _write_correct_count(writer: Writer) -> None:
    writer.need(["float32", "int32"], ["float32"])
    rows, length, operands = _logits(writer)
    right = writer.scratch(8 * rows)
    _rows(
        writer,
        rows,
        length,
        _BEST
        + """
  if (leads) {
    const long long place = best.place;
    right[row] = place == labels[row] ? 1.0 : 0.0;
  }""",
        {**operands, "double* right": right},
    )
    sum_axes(
        writer,
        (rows,),
        (0,),
        value="return right[i];",
        parameters={"const double* right": right},
        out="*y = static_cast<float>(total);",
        out_parameters={"float* y": writer.output()},
    )


def _write_threshold_counts(writer: Writer) -> None:
    count = len(writer.inputs)
    writer.need(["float32"] * count, ["float32"] * 2)
    size = writer.inputs[0].size
    bits = np.asarray(writer.attributes["threshold_bits"], np.uint32)
    places = len(bits) + 1
    written = ", ".join(f"{int(each):#x}u" for each in bits) or "0"
    weight: dict[str, Argument] = {}
    if count > 2:
        weight = {
            "const float* weights": writer.operand(2),
            "Index part": writer.number(size // max(writer.inputs[2].size, 1)),
        }
    reduce(
        writer,
        results=2 * places,
        each=size,
        columns=1,
        value=f"""
        static const unsigned int bits[] = {{{written}}};
        const Index j = o % places;
        if ((truth[r] != 0.0f) != (o < places)) return 0.0;
        const float threshold = __int_as_float(static_cast<int>(bits[j ? j - 1 : 0]));
        if (j > 0 && !(x[r] > threshold)) return 0.0;
        return {"weights[r / part]" if count > 2 else "1.0"};""",
        parameters={
            "const float* truth": writer.operand(0),
            "const float* x": writer.operand(1),
            **weight,
            "Index places": writer.number(places),
        },
        out="(o < places ? yes : no)[o % places] = static_cast<float>(total);",
        out_parameters={
            "float* yes": writer.output(0),
            "float* no": writer.output(1),
            "Index places": writer.number(places),
        },
    )


FAMILY: dict[str, Callable[[Writer], None]] = {
    "softmax": _write_softmax,
    "softmax_gradient": _write_softmax_gradient,
    "log_softmax": _write_log_softmax,
    "log_softmax_gradient": _write_log_softmax_gradient,
    "layer_normalization": _write_layer_normalization,
    "layer_normalization_gradient": _write_layer_gradient,
    "softmax_cross_entropy": _write_cross_entropy,
    "softmax_cross_entropy_inference": _write_cross_entropy,
    "softmax_cross_entropy_gradient": _write_cross_entropy_gradient,
    "cross_entropy_rows": _write_cross_entropy_rows,
    "cross_entropy_rows_gradient": _write_cross_entropy_rows_gradient,
    "argmax": _write_argmax,
    "hits": _write_hits,
    "correct_count": _write_correct_count,
    "threshold_counts": _write_threshold_counts,
}
