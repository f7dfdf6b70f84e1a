"""Recurrent layers: a block computes all steps of one sequence of the batch.

The gradient of the recurrent kernel is one product over all steps, afterwards.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from memcfg.devices.cuda._sources._products import multiply
from memcfg.devices.cuda._sources._reductions import sum_columns

if TYPE_CHECKING:
    from collections.abc import Callable

    from memcfg.devices.cuda._sources._launch import Argument
    from memcfg.devices.cuda._sources._writer import Writer

__all__ = ["FAMILY"]


@dataclass(frozen=True)
class _Cell:
    """A kind of step. `gates`: widths in units of the products and the kept values.

    `forward` computes h (and c) and fills keep[.], from z[.], p[.] (the products with
    the previous state), before0 and before1. `backward` computes dz[.], dp[.] and the
    gradients of the previous state, carried0 and carried1, from kept[.], dh, dc, now0,
    now1, before0 and before1.
    """

    gates: int
    keeps: int
    states: int
    bias: bool
    forward: str
    backward: str


_SQUASH = "const auto squash = [](float x) { return memcfg::sigmoid_of(x); };\n"

_LSTM = _Cell(
    4,
    4,
    2,
    False,
    _SQUASH
    + """
keep[0] = squash(z[0] + p[0]); keep[1] = squash(z[1] + p[1]);
keep[2] = tanhf(z[2] + p[2]); keep[3] = squash(z[3] + p[3]);
new1 = keep[1] * before1 + keep[0] * keep[2];
new0 = keep[3] * tanhf(new1);""",
    """
const float i = kept[0], f = kept[1], g = kept[2], o = kept[3];
const float squashed = tanhf(now1);
const float slope = d1 + d0 * o * (1.0f - squashed * squashed);
dz[0] = slope * g * (i * (1.0f - i)); dz[1] = slope * before1 * (f * (1.0f - f));
dz[2] = slope * i * (1.0f - g * g); dz[3] = d0 * squashed * (o * (1.0f - o));
for (int k = 0; k < 4; ++k) dp[k] = dz[k];
carried0 = 0.0f; carried1 = slope * f;""",
)
_GRU = _Cell(
    3,
    4,
    1,
    True,
    _SQUASH
    + """
const float update = squash(z[0] + p[0]), reset = squash(z[1] + p[1]);
const float candidate = tanhf(z[2] + reset * p[2]);
new0 = update * before0 + (1.0f - update) * candidate;
keep[0] = update; keep[1] = reset; keep[2] = candidate; keep[3] = p[2];""",
    """
const float update = kept[0], reset = kept[1], candidate = kept[2];
const float inner = d0 * (1.0f - update) * (1.0f - candidate * candidate);
dz[0] = d0 * (before0 - candidate) * update * (1.0f - update);
dz[1] = inner * kept[3] * reset * (1.0f - reset);
dz[2] = inner;
dp[0] = dz[0]; dp[1] = dz[1]; dp[2] = inner * reset;
carried0 = d0 * update;""",
)
_SIMPLE = _Cell(
    1,
    0,
    1,
    False,
    "new0 = tanhf(z[0] + p[0]);",
    "dz[0] = dp[0] = d0 * (1.0f - now0 * now0); carried0 = 0.0f;",
)


def _forward(writer: Writer, cell: _Cell) -> None:
    masked = bool(writer.attributes.get("masked"))
    count = 2 + cell.bias + cell.states + masked
    writer.need(["float32"] * count, ["float32"] * (cell.states + (cell.keeps > 0)))
    batch, steps, units = writer.outputs[0].shape
    places = iter(range(2, count))
    parameters: dict[str, Argument] = {
        "const float* products": writer.operand(0),
        "const float* kernel": writer.operand(1),
    }
    if cell.bias:
        parameters["const float* bias"] = writer.operand(next(places))
    for i in range(cell.states):
        parameters[f"const float* first{i}"] = writer.operand(next(places))
    if masked:
        parameters["const float* mask"] = writer.operand(next(places))
    for i in range(cell.states):
        parameters[f"float* state{i}"] = writer.output(i)
    if cell.keeps:
        parameters["float* kept"] = writer.output(cell.states)
    states = range(cell.states)
    keep = max(cell.keeps, 1)
    body = f"""
  const Index width = {cell.gates} * units;
  const Index sequence = blockIdx.x;
  for (Index t = 0; t < steps; ++t) {{
    const Index row = sequence * steps + t;
    const float* h = t == 0 ? first0 + sequence * units : state0 + (row - 1) * units;
    for (Index u = threadIdx.x; u < units; u += memcfg::kThreads) {{
      float z[{cell.gates}], p[{cell.gates}], keep[{keep}];
      for (int gate = 0; gate < {cell.gates}; ++gate) {{
        z[gate] = products[row * width + gate * units + u];
        p[gate] = 0.0f;
      }}
      for (Index k = 0; k < units; ++k) {{
        for (int gate = 0; gate < {cell.gates}; ++gate) {{
          p[gate] = fmaf(h[k], kernel[k * width + gate * units + u], p[gate]);
        }}
      }}
"""
    if cell.bias:
        body += (
            f"for (int gate = 0; gate < {cell.gates}; ++gate) "
            "p[gate] += bias[gate * units + u];\n"
        )
    for i in states:
        body += (
            f"const float before{i} = t == 0 ? first{i}[sequence * units + u]"
            f" : state{i}[(row - 1) * units + u];\nfloat new{i};\n"
        )
    body += f"{{ {cell.forward} }}\n"
    if masked:
        body += "if (mask[row] == 0.0f) {\n"
        body += "".join(f"new{i} = before{i};\n" for i in states)
        body += f"for (int k = 0; k < {cell.keeps}; ++k) keep[k] = 0.0f;\n}}\n"
    body += "".join(f"state{i}[row * units + u] = new{i};\n" for i in states)
    if cell.keeps:
        body += (
            f"for (int k = 0; k < {cell.keeps}; ++k)\n"
            f"  kept[row * {cell.keeps} * units + k * units + u] = keep[k];\n"
        )
    body += """
    }
    __syncthreads();  // the state is read by all
  }"""
    writer.launch(
        body,
        {
            **parameters,
            "Index steps": writer.number(steps),
            "Index units": writer.number(units),
        },
        batch,
    )


def _backward(writer: Writer, cell: _Cell) -> None:
    masked = bool(writer.attributes.get("masked"))
    given = 1 + bool(writer.attributes.get("cells"))
    count = 1 + (cell.keeps > 0) + 2 * cell.states + given + masked
    writer.need(["float32"] * count, ["float32"] * (2 + cell.bias + cell.states))
    units, width = writer.inputs[0].shape
    batch, steps, _ = writer.outputs[0].shape
    places = iter(range(1, count))
    states = range(cell.states)
    operands: dict[str, Argument] = {}
    if cell.keeps:
        operands["const float* keep"] = writer.operand(next(places))
    news = [writer.operand(next(places)) for _ in states]
    firsts = [writer.operand(next(places)) for _ in states]
    for i in states:
        operands[f"const float* state{i}"] = news[i]
        operands[f"const float* first{i}"] = firsts[i]
    for i in range(given):
        operands[f"const float* dy{i}"] = writer.operand(next(places))
    if masked:
        operands["const float* mask"] = writer.operand(next(places))
    own = cell.bias  # the gradient of the biased product differs from that of z
    slopes = writer.scratch(4 * batch * steps * width) if own else writer.output()
    for i in states:
        operands[f"float* slope{i}"] = writer.output(2 + cell.bias + i)
    turned = writer.scratch(4 * units * width)
    sizes: dict[str, Argument] = {
        "Index steps": writer.number(steps),
        "Index units": writer.number(units),
        "Index width": writer.number(width),
    }
    writer.loop(
        "turned[i % width * units + i / width] = kernel[i];",
        {
            "const float* kernel": writer.operand(0),
            "float* turned": turned,
            "Index units": writer.number(units),
            "Index width": writer.number(width),
        },
        units * width,
    )
    none = "".join(f"slope{i}[sequence * units + u] = 0.0f;\n" for i in states)
    body = f"""
  const Index sequence = blockIdx.x;
  for (Index u = threadIdx.x; steps == 0 && u < units; u += memcfg::kThreads) {{
    {none}
  }}
  for (Index back = 0; back < steps; ++back) {{
    const Index t = steps - 1 - back, row = sequence * steps + t;
    for (Index u = threadIdx.x; u < units; u += memcfg::kThreads) {{
      const Index at = sequence * units + u, here = row * units + u;
"""
    for i in states:
        body += (
            f"float d{i} = back == 0 ? 0.0f : slope{i}[at];\n"
            + (f"d{i} += dy{i}[here];\n" if i < given else "")
            + f"const float now{i} = state{i}[here];\n"
            f"const float before{i} = t == 0 ? first{i}[at] : state{i}[here - units];\n"
            f"float carried{i};\n"
        )
    if cell.keeps:
        body += (
            f"float kept[{cell.keeps}];\nfor (int k = 0; k < {cell.keeps}; ++k)\n"
            f"  kept[k] = keep[row * {cell.keeps} * units + k * units + u];\n"
        )
    body += f"float dz[{cell.gates}], dp[{cell.gates}];\n{{ {cell.backward} }}\n"
    if masked:
        body += "if (mask[row] == 0.0f) {\n"
        body += f"for (int k = 0; k < {cell.gates}; ++k) dz[k] = dp[k] = 0.0f;\n"
        body += "".join(f"carried{i} = d{i};\n" for i in states) + "}\n"
    body += (
        f"for (int k = 0; k < {cell.gates}; ++k) {{\n"
        "  dproducts[row * width + k * units + u] = dz[k];\n"
        + ("  dinner[row * width + k * units + u] = dp[k];\n" if own else "")
        + "}\n"
    )
    body += "".join(f"slope{i}[at] = carried{i};\n" for i in states)
    inner = "dinner" if own else "dproducts"
    body += f"""
    }}
    __syncthreads();  // the step's gradients are read by all
    for (Index u = threadIdx.x; u < units; u += memcfg::kThreads) {{
      float total = 0.0f;
      for (Index k = 0; k < width; ++k) {{
        total = fmaf({inner}[row * width + k], turned[k * units + u], total);
      }}
      slope0[sequence * units + u] += total;
    }}
  }}"""
    writer.launch(
        body,
        {
            **operands,
            "float* dproducts": writer.output(),
            **({"float* dinner": slopes} if own else {}),
            "const float* turned": turned,
            **sizes,
        },
        batch,
    )
    _sum_products(writer, cell, news[0], firsts[0], slopes)


def _sum_products(
    writer: Writer, cell: _Cell, states: Argument, first: Argument, slopes: Argument
) -> None:
    """Append the gradients of the recurrent kernel and bias, as sums over steps."""
    units, width = writer.inputs[0].shape
    batch, steps, _ = writer.outputs[0].shape
    multiply(
        writer,
        rows=units,
        columns=width,
        depth=batch * steps,
        a="""
        const Index t = k % steps;
        return t == 0 ? first[k / steps * rows + m] : states[(k - 1) * rows + m];""",
        b="return dinner[k * columns + n];",
        store="dkernel[m * columns + n] = sum;",
        parameters={
            "const float* states": states,
            "const float* first": first,
            "const float* dinner": slopes,
            "Index steps": writer.number(steps),
        },
        out_parameters={"float* dkernel": writer.output(1)},
        along_k=(False, False),
    )
    if cell.bias:
        sum_columns(
            writer,
            batch * steps,
            width,
            value="return dinner[i];",
            parameters={"const float* dinner": slopes},
            out="dbias[o] = static_cast<float>(total);",
            out_parameters={"float* dbias": writer.output(2)},
        )


FAMILY: dict[str, Callable[[Writer], None]] = {
    "lstm": lambda writer: _forward(writer, _LSTM),
    "lstm_gradient": lambda writer: _backward(writer, _LSTM),
    "gru": lambda writer: _forward(writer, _GRU),
    "gru_gradient": lambda writer: _backward(writer, _GRU),
    "simple_rnn": lambda writer: _forward(writer, _SIMPLE),
    "simple_rnn_gradient": lambda writer: _backward(writer, _SIMPLE),
}
