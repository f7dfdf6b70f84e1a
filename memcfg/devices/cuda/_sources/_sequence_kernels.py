"""Labels of sequences, Fourier transforms, windows of signals.

Of the loss of connectionist temporal classification, a block has a sample, and its
threads share the states of a step. A search has one thread.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from memcfg.devices.cuda._sources._writer import f64, u64

if TYPE_CHECKING:
    from collections.abc import Callable

    from memcfg.devices.cuda._sources._launch import Argument
    from memcfg.devices.cuda._sources._writer import Writer

__all__ = ["FAMILY"]

_NUMBERS = """
  const double none = -static_cast<double>(__int_as_float(0x7f800000));
  const float unknown = __int_as_float(0x7fc00000);
  const auto add_logs = [&](double a, double b) -> double {
    const double most = a > b || a != a ? a : b;
    return most == none ? none : most + log1p(exp((a > b ? b : a) - most));
  };
"""

# Everything of the sample of a block. `row` and `next` are sums before and after a
# step; all threads know the same of lengths and shifts.
_LATTICE = f"""
{_NUMBERS}
  const unsigned int lanes = memcfg::kThreads, lane = threadIdx.x;
  const Index n = blockIdx.x;
  const float* x = logits + n * length * classes;
  const int* own = labels + n * width;
  const long long count = counts[n], steps = lengths[n];
  bool known = count >= 0 && count <= static_cast<long long>(width) && steps >= 0 &&
               steps <= static_cast<long long>(length);
  for (long long i = 0; known && i < count; ++i) {{
    known = own[i] >= 0 && own[i] < static_cast<long long>(classes);
  }}
  const Index states = known ? 2 * static_cast<Index>(count) + 1 : 1;
  const auto class_of = [&](Index s) -> Index {{
    return s % 2 == 0 ? blank : static_cast<Index>(own[s / 2]);
  }};
  const auto skips = [&](Index s) -> bool {{
    return s % 2 == 1 && s > 1 && own[s / 2] != own[s / 2 - 1];
  }};
  const auto shift_of = [&](Index step) -> double {{
    const float* of = x + step * classes;
    float most = -__int_as_float(0x7f800000);
    for (Index c = lane; c < classes; c += lanes) {{
      most = memcfg::maximum_of(most, of[c]);
    }}
    most = memcfg::maximum_lanes(lanes, most);
    double total = 0;
    for (Index c = lane; c < classes; c += lanes) {{
      total += exp(static_cast<double>(of[c]) - most);
    }}
    return most + log(memcfg::sum_lanes(lanes, total));
  }};
  double* row = rows + n * 2 * wide;
  double* next = row + wide;
  const auto swap = [&]() {{
    double* other = row;
    row = next;
    next = other;
    __syncthreads();
  }};
  const auto advance = [&](Index step, double shift) {{
    for (Index s = lane; s < states; s += lanes) {{
      double sum = step == 0 ? (s < 2 ? 0.0 : none) : row[s];
      if (step > 0 && s > 0) sum = add_logs(sum, row[s - 1]);
      if (step > 0 && skips(s)) sum = add_logs(sum, row[s - 2]);
      next[s] = sum + (x[step * classes + class_of(s)] - shift);
    }}
    swap();
  }};
  const auto total = [&]() -> double {{
    if (steps == 0) return states == 1 ? 0.0 : none;
    return states == 1 ? row[0] : add_logs(row[states - 1], row[states - 2]);
  }};
"""


def _operands(writer: Writer) -> dict[str, Argument]:
    """Return the parameters that the loss and its gradient share."""
    samples, length, classes = writer.inputs[0].shape
    width = writer.inputs[1].shape[-1]
    return {
        "const float* logits": writer.operand(0),
        "const int* labels": writer.operand(1),
        "const int* counts": writer.operand(2),
        "const int* lengths": writer.operand(3),
        "double* rows": writer.scratch(samples * 2 * (2 * width + 1) * 8),
        "Index length": writer.number(length),
        "Index classes": writer.number(classes),
        "Index width": writer.number(width),
        "Index wide": writer.number(2 * width + 1),
        "Index blank": writer.number(writer.attributes["blank"]),
    }


def _write_loss(writer: Writer) -> None:
    writer.need(["float32", "int32", "int32", "int32"], ["float32"])
    writer.launch(
        f"""
{_LATTICE}
  for (long long step = 0; known && step < steps; ++step) {{
    advance(static_cast<Index>(step), shift_of(static_cast<Index>(step)));
  }}
  if (lane == 0) losses[n] = known ? static_cast<float>(-total()) : unknown;
""",
        {**_operands(writer), "float* losses": writer.output()},
        writer.inputs[0].shape[0],
    )


# The sums after each step are kept for the way back.
_FORWARD = """
  double* kept = all + n * length * wide;
  double* shifts = of_steps + n * length;
  float* dx = gradients + n * length * classes;
  for (long long i = 0; known && i < steps; ++i) {
    const Index step = static_cast<Index>(i);
    const double shift = shift_of(step);
    advance(step, shift);
    for (Index s = lane; s < states; s += lanes) kept[step * wide + s] = row[s];
    if (lane == 0) shifts[step] = shift;
  }
  const double loss = known ? -total() : 0.0;
  const bool finite = known && loss == loss && loss != -none && loss != none;
  __syncthreads();
  for (Index i = lane; i < length * classes; i += lanes) {
    const bool after = known && static_cast<long long>(i / classes) >= steps;
    if (!finite || after) dx[i] = after ? 0.0f : unknown;
  }
  if (!finite) return;
"""
# What comes after a step, from the last one on.
_BACKWARD = """
  for (Index s = lane; s < states; s += lanes) row[s] = s + 2 < states ? none : 0.0;
  __syncthreads();
  for (long long i = steps - 1; i >= 0; --i) {
    const Index step = static_cast<Index>(i);
    const double shift = shifts[step];
    for (Index c = lane; c < classes; c += lanes) {
      double share = 0;
      for (Index s = c == blank ? 0 : 1; s < states; ++s) {
        if (class_of(s) != c) continue;
        share += exp(kept[step * wide + s] + row[s] + loss);
      }
      const double p = exp(x[step * classes + c] - shift);
      dx[step * classes + c] = static_cast<float>(p - share) * dy[n];
    }
    const auto after = [&](Index s) -> double {
      return row[s] + (x[step * classes + class_of(s)] - shift);
    };
    for (Index s = lane; s < states; s += lanes) {
      double sum = after(s);
      if (s + 1 < states) sum = add_logs(sum, after(s + 1));
      if (s + 2 < states && skips(s + 2)) sum = add_logs(sum, after(s + 2));
      next[s] = sum;
    }
    swap();
  }
"""


def _write_gradient(writer: Writer) -> None:
    writer.need(["float32", "int32", "int32", "int32", "float32"], ["float32"])
    samples, length, _ = writer.inputs[0].shape
    wide = 2 * writer.inputs[1].shape[-1] + 1
    writer.launch(
        _LATTICE + _FORWARD + _BACKWARD,
        {
            **_operands(writer),
            "const float* dy": writer.operand(4),
            "float* gradients": writer.output(),
            "double* all": writer.scratch(samples * length * wide * 8),
            "double* of_steps": writer.scratch(samples * length * 8),
        },
        samples,
    )


_SEARCH = """
  struct Node { int parent, label, child, sibling, beam; };
  struct Beam { int node; double of_blank, of_label; };
  struct Candidate { int beam, label; double total, of_blank, of_label; };
  const float* x = logits + i * length * classes;
  const long long most_steps = length;
  const bool known = lengths[i] >= 0 && lengths[i] <= most_steps;
  const Index steps = known ? static_cast<Index>(lengths[i]) : 0;
  unsigned char* memory = scratch + i * each;
  Beam* beams = reinterpret_cast<Beam*>(memory);
  Candidate* found = reinterpret_cast<Candidate*>(beams + width);
  Node* nodes = reinterpret_cast<Node*>(found + width + 1);
  Index beam_count = 1, found_count = 0;
  int node_count = 1;
  nodes[0] = Node{-1, -1, -1, -1, 0};
  beams[0] = Beam{0, 0.0, none};
  const auto find = [&](int node, int label) -> int {
    int child = nodes[node].child;
    while (child >= 0 && nodes[child].label != label) child = nodes[child].sibling;
    return child;
  };
  const auto total_of = [&](const Beam& beam) -> double {
    return add_logs(beam.of_blank, beam.of_label);
  };
  const auto longer = [&](const Beam& beam, int label, double value) -> double {
    return value + (nodes[beam.node].label == label ? beam.of_blank : total_of(beam));
  };
  const auto offer = [&](const Candidate& one) {
    if (one.total == none) return;
    Index place = found_count;
    if (place == width && !(one.total > found[place - 1].total)) return;
    while (place > 0 && one.total > found[place - 1].total) {
      found[place] = found[place - 1];
      --place;
    }
    found[place] = one;
    if (found_count < width) ++found_count;
  };
  for (Index step = 0; step < steps; ++step) {
    const float* of = x + step * classes;
    double most = none, sum = 0;
    for (Index c = 0; c < classes; ++c) most = most < of[c] ? of[c] : most;
    for (Index c = 0; c < classes; ++c) sum += exp(of[c] - most);
    const double shift = most + log(sum);
    found_count = 0;
    for (Index b = 0; b < beam_count; ++b) {
      const Beam& beam = beams[b];
      const Node& node = nodes[beam.node];
      const double of_blank = total_of(beam) + (of[blank] - shift);
      double of_label = none;
      if (node.label >= 0) {
        const double value = of[node.label] - shift;
        of_label = beam.of_label + value;
        const int before = nodes[node.parent].beam;
        if (before >= 0) {
          of_label = add_logs(of_label, longer(beams[before], node.label, value));
        }
      }
      const double total = add_logs(of_blank, of_label);
      offer(Candidate{static_cast<int>(b), -1, total, of_blank, of_label});
    }
    for (Index b = 0; b < beam_count; ++b) {
      for (Index c = 0; c < classes; ++c) {
        if (c == blank) continue;
        const int label = static_cast<int>(c), child = find(beams[b].node, label);
        if (child >= 0 && nodes[child].beam >= 0) continue;
        const double value = longer(beams[b], label, of[c] - shift);
        offer(Candidate{static_cast<int>(b), label, value, none, value});
      }
    }
    for (Index f = 0; f < found_count; ++f) {
      Candidate& one = found[f];
      int node = beams[one.beam].node;
      if (one.label >= 0) {
        int made = find(node, one.label);
        if (made < 0) {
          made = node_count++;
          nodes[made] = Node{node, one.label, -1, nodes[node].child, -1};
          nodes[node].child = made;
        }
        node = made;
      }
      one.label = node;
    }
    for (Index b = 0; b < beam_count; ++b) nodes[beams[b].node].beam = -1;
    for (Index f = 0; f < found_count; ++f) {
      beams[f] = Beam{found[f].label, found[f].of_blank, found[f].of_label};
      nodes[found[f].label].beam = static_cast<int>(f);
    }
    beam_count = found_count;
  }
  for (Index p = 0; p < top; ++p) {
    int* path = paths + (i * top + p) * length;
    for (Index t = 0; t < length; ++t) path[t] = -1;
    const bool there = p < beam_count;
    Index place = 0;
    for (int node = there ? beams[p].node : 0; node > 0; node = nodes[node].parent) {
      ++place;
    }
    for (int node = there ? beams[p].node : 0; node > 0; node = nodes[node].parent) {
      path[--place] = nodes[node].label;
    }
    const double score = there ? total_of(beams[p]) : none;
    scores[i * top + p] = known ? static_cast<float>(score) : unknown;
  }
"""


def _write_search(writer: Writer) -> None:
    writer.need(["float32", "int32"], ["int32", "float32"])
    samples, length, classes = writer.inputs[0].shape
    width, top = (writer.attributes[name] for name in ("beam_width", "top_paths"))
    if (1 + length * width) >= 1 << 31 or classes >= 1 << 31:
        raise writer.fail("has too many beams")
    each = width * 24 + (width + 1) * 32 + (1 + length * width) * 20
    each = -(-each // 64) * 64
    writer.loop(
        _NUMBERS + _SEARCH,
        {
            "const float* logits": writer.operand(0),
            "const int* lengths": writer.operand(1),
            "int* paths": writer.output(0),
            "float* scores": writer.output(1),
            "unsigned char* scratch": writer.scratch(samples * each),
            "unsigned long long each": u64(each),
            "Index length": writer.number(length),
            "Index classes": writer.number(classes),
            "Index blank": writer.number(writer.attributes["blank"]),
            "Index width": writer.number(width),
            "Index top": writer.number(top),
        },
        samples,
    )


_MOST_BLOCKS = 512  # of rows, each with scratch of its own

_ROOTS = """
  const double angle = 6.283185307179586 * i / length;
  roots[2 * i] = cos(angle);
  roots[2 * i + 1] = sign * sin(angle);
"""
# A block transforms a row of a power of two of elements, from one half of its scratch
# to the other and back (Stockham).
_FAST = """
  const Index each = 4 * length;
  double* from = work + blockIdx.x * each;
  double* to = from + 2 * length;
  for (Index row = blockIdx.x; row < rows; row += gridDim.x) {
    for (Index i = threadIdx.x; i < length; i += memcfg::kThreads) {
      from[2 * i] = real[row * length + i];
      from[2 * i + 1] = imaginary[row * length + i];
    }
    __syncthreads();
    for (Index done = 1; done < length; done *= 2) {
      for (Index i = threadIdx.x; i < length / 2; i += memcfg::kThreads) {
        const Index k = i % done, root = 2 * (k * (length / (2 * done)));
        const Index even = 2 * i, odd = 2 * (i + length / 2);
        const double c = roots[root], s = roots[root + 1];
        const double a = from[odd] * c - from[odd + 1] * s;
        const double b = from[odd] * s + from[odd + 1] * c;
        const Index at = 2 * (i / done * 2 * done + k), other = at + 2 * done;
        to[at] = from[even] + a;
        to[at + 1] = from[even + 1] + b;
        to[other] = from[even] - a;
        to[other + 1] = from[even + 1] - b;
      }
      double* before = from;
      from = to;
      to = before;
      __syncthreads();
    }
    for (Index i = threadIdx.x; i < length; i += memcfg::kThreads) {
      y[row * length + i] = static_cast<float>(from[2 * i]);
      z[row * length + i] = static_cast<float>(from[2 * i + 1]);
    }
    __syncthreads();
  }
"""
_PLAIN = """
  const Index k = i % length, first = i - k;
  double a = 0, b = 0;
  Index root = 0;
  for (Index j = 0; j < length; ++j) {
    const double c = roots[2 * root], s = roots[2 * root + 1];
    a += real[first + j] * c - imaginary[first + j] * s;
    b += real[first + j] * s + imaginary[first + j] * c;
    root += k;
    if (root >= length) root -= length;
  }
  y[i] = static_cast<float>(a);
  z[i] = static_cast<float>(b);
"""


def _write_fourier(writer: Writer) -> None:
    writer.need(["float32"] * 2, ["float32"] * 2)
    size, length = writer.inputs[0].size, writer.inputs[0].shape[-1]
    if not size:
        return
    roots = writer.scratch(16 * length)
    writer.loop(
        _ROOTS,
        {
            "double* roots": roots,
            "Index length": writer.number(length),
            "double sign": f64(1.0 if writer.attributes["inverse"] else -1.0),
        },
        length,
    )
    operands: dict[str, Argument] = {
        "const float* real": writer.operand(0),
        "const float* imaginary": writer.operand(1),
        "float* y": writer.output(0),
        "float* z": writer.output(1),
        "const double* roots": roots,
        "Index length": writer.number(length),
    }
    if length & (length - 1):
        writer.loop(_PLAIN, operands, size)
        return
    blocks = min(size // length, _MOST_BLOCKS)
    work: dict[str, Argument] = {"double* work": writer.scratch(32 * length * blocks)}
    rows: dict[str, Argument] = {"Index rows": writer.number(size // length)}
    writer.launch(_FAST, {**operands, **work, **rows}, blocks)


def _windows(writer: Writer, size: int, shape: tuple[int, ...]) -> dict[str, Argument]:
    """Return the parameters of windows, [..., window, place], of so many elements."""
    return {
        "const float* x": writer.operand(0),
        "float* y": writer.output(),
        "Index size": writer.number(size),
        "Index windows": writer.number(shape[-2]),
        "Index length": writer.number(shape[-1]),
        "Index step": writer.number(writer.attributes["step"]),
        "Index dilation": writer.number(writer.attributes["dilation"]),
    }


def _write_frames(writer: Writer) -> None:
    writer.need(["float32"], ["float32"])
    writer.loop(
        """
        const Index place = i % length, window = i / length % windows;
        const Index row = i / length / windows;
        y[i] = x[row * size + window * step + place * dilation];
        """,
        _windows(writer, writer.inputs[0].shape[-1], writer.outputs[0].shape),
        writer.outputs[0].size,
    )


def _write_overlap_add(writer: Writer) -> None:
    """Write `overlap_add`: a thread adds what belongs to its element, in order."""
    writer.need(["float32"], ["float32"])
    writer.loop(
        """
        const Index at = i % size;
        const float* row = x + i / size * windows * length;
        float total = 0;
        for (Index place = length; place-- > 0;) {
          if (place * dilation > at) continue;
          const Index from = at - place * dilation, window = from / step;
          if (from % step || window >= windows) continue;
          total += row[window * length + place];
        }
        y[i] = total;
        """,
        _windows(writer, writer.outputs[0].shape[-1], writer.inputs[0].shape),
        writer.outputs[0].size,
    )


FAMILY: dict[str, Callable[[Writer], None]] = {
    "ctc_loss": _write_loss,
    "ctc_loss_gradient": _write_gradient,
    "ctc_beam_search": _write_search,
    "fourier": _write_fourier,
    "frames": _write_frames,
    "overlap_add": _write_overlap_add,
}
