"""Attention with tiles of scores in shared memory, without a full matrix.

A block has a tile of queries of one head, or of keys for their gradients, and loops
over the tiles of keys, or queries, in order: no sum is shared by blocks.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from memcfg.devices.cuda._sources._movements import PHILOX, first_number
from memcfg.devices.cuda._sources._writer import Writer, f32, u32, u64

if TYPE_CHECKING:
    from collections.abc import Callable

    from memcfg.devices.cuda._sources._launch import Argument

__all__ = ["FAMILY"]

_TILE = 64  # tile of multiply_tile

# The tile of a block and its operands.
_BEGIN = """
  if (blockIdx.x >= blocks) return;  // of operands without elements
  constexpr Index kTile = 64;
  __shared__ float scores[kTile][kTile + 1];
  const Index tile = blockIdx.x % tiles, pair = blockIdx.x / tiles;
  const Index head = pair % heads, batch = pair / heads;
  const Index step = heads * depth, wide_step = heads * width;
  const float* own_q = q + batch * queries * step + head * depth;
  const float* own_k = k + batch * keys * step + head * depth;
  const float* own_v = v + batch * keys * wide_step + head * width;
  const auto least = [](Index a, Index b) -> Index { return a < b ? a : b; };
"""

_FORWARD = """
  float* own_y = y + batch * queries * wide_step + head * width;
  __shared__ float factors[kTile];
  const Index first = tile * kTile, rows = least(kTile, queries - first);
  const unsigned int row = threadIdx.x / 4, lane = threadIdx.x % 4;
  float most = lowest, total = 0.0f;
  const Index end = causal ? least(keys, first + rows) : keys;
  for (Index key = 0; key < end; key += kTile) {
    const Index count = least(kTile, end - key);
    memcfg::multiply_tile<Index>(
        0, 0, rows, count, 0, depth, true, true,
        [&](Index m, Index d) { return own_q[(first + m) * step + d]; },
        [&](Index d, Index n) { return own_k[(key + n) * step + d]; },
        [&](Index m, Index n, float sum) {
          scores[m][n] = score(first + m, key + n, sum);
        });
    __syncthreads();
    float next = most;
    if (row < rows) {
      for (Index n = lane; n < count; n += 4) {
        next = memcfg::maximum_of(next, scores[row][n]);
      }
    }
    next = memcfg::maximum_lanes(4u, next);
    float sum = 0.0f;
    if (row < rows) {
      for (Index n = lane; n < count; n += 4) {
        const float power = expf(scores[row][n] - next);
        scores[row][n] = kept(first + row, key + n, power);
        sum += power;
      }
    }
    sum = memcfg::join_lanes(
        4u, 1u, sum, [](float a, float b) { return a + b; });
    const float factor = expf(most - next);
    total = total * factor + sum;
    most = next;
    if (lane == 0) factors[row] = factor;
    __syncthreads();
    for (Index column = 0; column * kTile < width; ++column) {
      memcfg::multiply_tile<Index>(
          0, column, rows, width, 0, count, true, false,
          [&](Index m, Index n) { return scores[m][n]; },
          [&](Index n, Index c) { return own_v[(key + n) * wide_step + c]; },
          [&](Index m, Index c, float value) {
            float* place = own_y + (first + m) * wide_step + c;
            *place = key == 0 ? value : *place * factors[m] + value;
          });
    }
    __syncthreads();
  }
  if (lane == 0) {
    factors[row] = 1.0f / total;
    if (row < rows) {
      maxima[pair * queries + first + row] = most;
      totals[pair * queries + first + row] = total;
    }
  }
  __syncthreads();
  for (Index i = threadIdx.x; i < rows * width; i += memcfg::kThreads) {
    own_y[(first + i / width) * wide_step + i % width] *= factors[i / width];
  }
"""

# The weights of a tile, and in the second pass the gradients of its scores.
_TILE_OF_SLOPES = """
    memcfg::multiply_tile<Index>(
        0, 0, rows, count, 0, pass == 0 ? depth : width, true, true,
        [&](Index m, Index d) {
          return pass == 0 ? own_q[(first + m) * step + d]
                           : own_dy[(first + m) * wide_step + d];
        },
        [&](Index d, Index n) {
          return pass == 0 ? own_k[(key + n) * step + d]
                           : own_v[(key + n) * wide_step + d];
        },
        [&](Index m, Index n, float sum) {
          const Index i = pair * queries + first + m;
          if (pass == 0) {
            const float weight = expf(score(first + m, key + n, sum) - maxima[i]);
            scores[m][n] = weight / totals[i];
          } else {
            const float slope = kept(first + m, key + n, sum);
            scores[m][n] = scores[m][n] * (slope - means[i]) * scale;
          }
        });
    __syncthreads();
"""

_QUERY_GRADIENT = f"""
  const float* own_dy = dy + batch * queries * wide_step + head * width;
  float* own_dq = dq + batch * queries * step + head * depth;
  const Index first = tile * kTile, rows = least(kTile, queries - first);
  const Index end = causal ? least(keys, first + rows) : keys;
  for (Index key = 0; key < end; key += kTile) {{
    const Index count = least(kTile, end - key);
    for (unsigned int pass = 0; pass < 2; ++pass) {{{_TILE_OF_SLOPES}}}
    for (Index column = 0; column * kTile < depth; ++column) {{
      memcfg::multiply_tile<Index>(
          0, column, rows, depth, 0, count, true, false,
          [&](Index m, Index n) {{ return scores[m][n]; }},
          [&](Index n, Index d) {{ return own_k[(key + n) * step + d]; }},
          [&](Index m, Index d, float value) {{
            float* place = own_dq + (first + m) * step + d;
            *place = key == 0 ? value : *place + value;
          }});
    }}
    __syncthreads();
  }}
"""

_KEY_GRADIENT = f"""
  const float* own_dy = dy + batch * queries * wide_step + head * width;
  float* own_dk = dk + batch * keys * step + head * depth;
  float* own_dv = dv + batch * keys * wide_step + head * width;
  const Index key = tile * kTile, count = least(kTile, keys - key);
  const Index begin = causal ? key : 0;
  for (unsigned int pass = 0; pass < 2 && begin >= queries; ++pass) {{
    const Index size = pass == 0 ? width : depth;
    for (Index i = threadIdx.x; i < count * size; i += memcfg::kThreads) {{
      const Index place = (key + i / size) * heads * size + i % size;
      (pass == 0 ? own_dv : own_dk)[place] = 0.0f;
    }}
  }}
  for (Index first = begin; first < queries; first += kTile) {{
    const Index rows = least(kTile, queries - first);
    for (unsigned int pass = 0; pass < 2; ++pass) {{{_TILE_OF_SLOPES}
      const float* from = pass == 0 ? own_dy : own_q;
      float* to = pass == 0 ? own_dv : own_dk;
      const Index size = pass == 0 ? width : depth;
      for (Index column = 0; column * kTile < size; ++column) {{
        memcfg::multiply_tile<Index>(
            0, column, count, size, 0, rows, false, false,
            [&](Index n, Index m) {{
              const float value = scores[m][n];
              return pass == 0 ? kept(first + m, key + n, value) : value;
            }},
            [&](Index m, Index c) {{ return from[(first + m) * heads * size + c]; }},
            [&](Index n, Index c, float value) {{
              float* place = to + (key + n) * heads * size + c;
              *place = first == begin ? value : *place + value;
            }});
      }}
      __syncthreads();
    }}
  }}
"""


_KEPT_ALL = """
  const auto kept = [](Index, Index, float value) { return value; };
"""
# Dropout of element (i, j) of the weights.
_KEPT = f"""
  const auto kept = [&](Index i, Index j, float value) -> float {{
    const unsigned long long row = static_cast<unsigned long long>(pair) * queries + i;
    const unsigned long long element = first_number + row * keys + j;
    const unsigned long long block = element / 4;
    const unsigned long long step = static_cast<unsigned long long>(*steps);
    const unsigned long long key = key_of_dropout;
    {PHILOX}
    return word[element % 4] >= threshold ? value * kept_scale : 0.0f;
  }};
"""


class _Operands:
    """The operands and sizes that the launches of one op share."""

    def __init__(self, writer: Writer, saved: int) -> None:
        rate = writer.attributes.get("rate")
        end = len(writer.inputs) - (rate is not None)
        step = ["int64"] * (rate is not None)
        writer.need(["float32"] * end + step, ["float32"] * 3)
        q, k, v = (spec.shape for spec in writer.inputs[:3])
        self.batch, self.queries, *heads, self.depth = q
        self.keys, self.width = k[1], v[-1]
        self.heads = heads[0] if heads else 1
        sizes = {
            "queries": self.queries,
            "keys": self.keys,
            "heads": self.heads,
            "depth": self.depth,
            "width": self.width,
        }
        self.parameters: dict[str, Argument] = {
            "const float* q": writer.operand(0),
            "const float* k": writer.operand(1),
            "const float* v": writer.operand(2),
            **{f"Index {name}": writer.number(value) for name, value in sizes.items()},
            "float scale": f32(writer.attributes["scale"]),
            "unsigned int causal": u32(bool(writer.attributes.get("causal"))),
        }
        factors = []
        for i, place in enumerate(range(3 + saved, end)):
            _, rows, columns = writer.inputs[place].shape
            strides = (rows * columns, columns * (rows > 1), int(columns > 1))
            self.parameters[f"const float* mask{i}"] = writer.operand(place)
            for name, stride in zip("bqk", strides, strict=True):
                self.parameters[f"Index mask{i}{name}"] = writer.number(stride)
            factors.append(f"mask{i}[batch * mask{i}b + i * mask{i}q + j * mask{i}k]")
        bias = ""
        if factors:
            bias = f"sum = sum + ({' * '.join(factors)} * 1e9f + -1e9f);"
        self.score = f"""
  const auto score = [&](Index i, Index j, float sum) -> float {{
    if (causal && j > i) return __int_as_float(0xff800000);
    sum = sum * scale;
    {bias}
    return sum;
  }};
"""
        if rate is None:
            self.score += _KEPT_ALL
            return
        count = f"{self.batch * self.heads * self.queries * self.keys}ll"
        self.score += f"  {first_number(writer.inputs[end], count)}{_KEPT}"
        self.parameters |= {
            "const long long* steps": writer.operand(end),
            "unsigned long long key_of_dropout": u64(writer.attributes["key"]),
            "unsigned int threshold": u32(int(rate * 2**32)),
            "float kept_scale": f32(1 / (1 - rate)),
        }

    def launch(
        self, writer: Writer, body: str, more: dict[str, Argument], steps: int
    ) -> None:
        """Append a launch with a block for each tile of `steps` queries or keys."""
        tiles = -(-steps // _TILE)
        blocks = self.batch * self.heads * tiles
        numbers = {
            "Index tiles": writer.number(tiles),
            "Index blocks": writer.number(blocks),
        }
        writer.launch(
            _BEGIN + self.score + body,
            {**self.parameters, **more, **numbers},
            max(1, blocks),
        )


def _write_attention(writer: Writer) -> None:
    of = _Operands(writer, 0)
    outputs: dict[str, Argument] = {
        "float* y": writer.output(0),
        "float* maxima": writer.output(1),
        "float* totals": writer.output(2),
        "float lowest": f32(-3.4028234663852886e38),
    }
    of.launch(writer, _FORWARD, outputs, of.queries)


def _write_attention_gradient(writer: Writer) -> None:
    of = _Operands(writer, 4)
    rows = of.batch * of.heads * of.queries
    means = writer.scratch(4 * rows)
    writer.loop(
        """
        const Index at = i % queries, pair = i / queries;
        const Index place = (pair / heads * queries + at) * heads + pair % heads;
        double total = 0;
        for (Index c = 0; c < width; ++c) {
          total += y[place * width + c] * dy[place * width + c];
        }
        means[i] = static_cast<float>(total);
        """,
        {
            "const float* y": writer.operand(3),
            "const float* dy": writer.operand(6),
            "float* means": means,
            "Index queries": writer.number(of.queries),
            "Index heads": writer.number(of.heads),
            "Index width": writer.number(of.width),
        },
        rows,
    )
    saved: dict[str, Argument] = {
        "const float* maxima": writer.operand(4),
        "const float* totals": writer.operand(5),
        "const float* dy": writer.operand(6),
        "const float* means": means,
    }
    dq: dict[str, Argument] = {"float* dq": writer.output(0)}
    of.launch(writer, _QUERY_GRADIENT, {**saved, **dq}, of.queries)
    both: dict[str, Argument] = {
        "float* dk": writer.output(1),
        "float* dv": writer.output(2),
    }
    of.launch(writer, _KEY_GRADIENT, {**saved, **both}, of.keys)


FAMILY: dict[str, Callable[[Writer], None]] = {
    "scaled_dot_product_attention": _write_attention,
    "scaled_dot_product_attention_gradient": _write_attention_gradient,
}
