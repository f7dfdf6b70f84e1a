// softmax, log_softmax and their gradients along an axis.
//
// An array is seen as [outer, length, inner]; the axis is `length`. Where inner is 1 a
// row is summed in interleaved sums, elsewhere columns go side by side: in both
// the order of additions depends on the shape alone.
#include <cmath>

#include "kernels/function_kernel.hpp"
#include "kernels/functions.hpp"
#include "kernels/parallel.hpp"
#include "kernels/rows.hpp"

namespace memcfg {
namespace {

constexpr Count kColumns = 64;  // columns that go side by side
constexpr Count kCost = 16;     // one exponential in elements of a plain loop

struct Shape {
  Count outer = 1, length = 1, inner = 1, cost = 0;

  Shape(const SpecReader& reader, const OperandSpec& operand) {
    const Count rank = static_cast<Count>(operand.shape.size());
    Count axis = reader.has("axis") ? reader.integer("axis", -rank) : -1;
    axis = axis < 0 ? axis + rank : axis;
    if (axis >= rank) reader.fail("needs axis < " + std::to_string(rank));
    const Count all = reader.count(operand);
    length = operand.shape[static_cast<std::size_t>(axis)];
    for (Count i = 0; i < axis; ++i)
      outer *= operand.shape[static_cast<std::size_t>(i)];
    inner = all / outer / length;
    cost = reader.product({all, kCost});
  }
  Bytes bytes() const { return float_bytes(outer * length * inner); }
};

MEMCFG_VECTORIZED void softmax_row(const float* x, Count n, float* y) {
  const float most = greatest(x, n);
  MEMCFG_INDEPENDENT
  for (Count j = 0; j < n; ++j) y[j] = exp_of(x[j] - most);
  const float factor = 1.0F / sum<float>(n, [=](Count j) { return y[j]; });
  MEMCFG_INDEPENDENT
  for (Count j = 0; j < n; ++j) y[j] *= factor;
}

MEMCFG_VECTORIZED void log_softmax_row(const float* x, Count n, float* y) {
  const float most = greatest(x, n);
  const float total = sum<float>(n, [=](Count j) { return exp_of(x[j] - most); });
  const float shift = std::log(total);
  MEMCFG_INDEPENDENT
  for (Count j = 0; j < n; ++j) y[j] = (x[j] - most) - shift;
}

MEMCFG_VECTORIZED void softmax_gradient_row(const float* y,
                                            const float* dy,
                                            Count n,
                                            float* dx) {
  const float mean = sum<float>(n, [=](Count j) { return y[j] * dy[j]; });
  MEMCFG_INDEPENDENT
  for (Count j = 0; j < n; ++j) dx[j] = y[j] * (dy[j] - mean);
}

MEMCFG_VECTORIZED void log_softmax_gradient_row(const float* y,
                                                const float* dy,
                                                Count n,
                                                float* dx) {
  const float total = sum<float>(n, [=](Count j) { return dy[j]; });
  MEMCFG_INDEPENDENT
  for (Count j = 0; j < n; ++j) dx[j] = dy[j] - exp_of(y[j]) * total;
}

// The same for up to kColumns columns of `length` rows, `inner` floats apart.
MEMCFG_VECTORIZED void softmax_columns(
    const float* x, const Shape& s, Count columns, bool logarithm, float* y) {
  float most[kColumns], total[kColumns] = {};
  for (Count c = 0; c < columns; ++c) most[c] = x[c];
  for (Count j = 1; j < s.length; ++j) {
    const float* row = x + j * s.inner;
    MEMCFG_INDEPENDENT
    for (Count c = 0; c < columns; ++c) most[c] = maximum_of(most[c], row[c]);
  }
  for (Count j = 0; j < s.length; ++j) {
    const float* from = x + j * s.inner;
    float* to = y + j * s.inner;
    MEMCFG_INDEPENDENT
    for (Count c = 0; c < columns; ++c) {
      const float shifted = from[c] - most[c], power = exp_of(shifted);
      total[c] += power;
      to[c] = logarithm ? shifted : power;
    }
  }
  for (Count c = 0; c < columns; ++c) {
    total[c] = logarithm ? std::log(total[c]) : 1.0F / total[c];
  }
  for (Count j = 0; j < s.length; ++j) {
    float* to = y + j * s.inner;
    MEMCFG_INDEPENDENT
    for (Count c = 0; c < columns; ++c) {
      to[c] = logarithm ? to[c] - total[c] : to[c] * total[c];
    }
  }
}

MEMCFG_VECTORIZED void gradient_columns(const float* y,
                                        const float* dy,
                                        const Shape& s,
                                        Count columns,
                                        bool logarithm,
                                        float* dx) {
  float total[kColumns] = {};
  for (Count j = 0; j < s.length; ++j) {
    const Count at = j * s.inner;
    MEMCFG_INDEPENDENT
    for (Count c = 0; c < columns; ++c) {
      total[c] += logarithm ? dy[at + c] : y[at + c] * dy[at + c];
    }
  }
  for (Count j = 0; j < s.length; ++j) {
    const Count at = j * s.inner;
    MEMCFG_INDEPENDENT
    for (Count c = 0; c < columns; ++c) {
      const float value = y[at + c], slope = dy[at + c];
      dx[at + c] =
          logarithm ? slope - exp_of(value) * total[c] : value * (slope - total[c]);
    }
  }
}

// row(place) for each row, or columns(place, how many) for each block of columns.
template <class Row, class Columns>
void for_pieces(const Shape& s, const Row& row, const Columns& columns) {
  if (s.inner == 1) {
    parallel_for(s.outer, s.cost, [&](Count i) { row(i * s.length); });
    return;
  }
  const Count blocks = (s.inner + kColumns - 1) / kColumns;
  parallel_for(s.outer * blocks, s.cost, [&](Count i) {
    const Count first = i % blocks * kColumns;
    columns(i / blocks * s.length * s.inner + first,
            std::min(kColumns, s.inner - first));
  });
}

// Rows of which the i-th of a matrix has i + 1 elements that count; the others are 0.
KernelPtr make_causal_softmax(const SpecReader& reader, const OperandSpec& x) {
  const Shape s(reader, x);
  if (s.inner != 1 || x.shape.size() < 2) reader.fail("is causal along the last axis");
  const Count rows = x.shape[x.shape.size() - 2];
  return function_kernel(
      {{s.bytes()}, {s.bytes()}}, 0, [=](void* const* operands, void*) {
        const float* from = input(operands, 0);
        float* to = output(operands, 1);
        parallel_for(s.outer, s.cost, [=](Count i) {
          const Count length = std::min(i % rows + 1, s.length);
          softmax_row(from + i * s.length, length, to + i * s.length);
          std::fill(to + i * s.length + length, to + (i + 1) * s.length, 0.0F);
        });
      });
}

template <bool logarithm>
KernelPtr make_softmax(const KernelSpec& spec) {
  const SpecReader reader(spec, {kFloat32}, {kFloat32});
  if (!logarithm && reader.has("causal") && reader.integer("causal", 0) != 0) {
    return make_causal_softmax(reader, spec.inputs[0]);
  }
  const Shape s(reader, spec.inputs[0]);
  return function_kernel(
      {{s.bytes()}, {s.bytes()}}, 0, [=](void* const* operands, void*) {
        const float* x = input(operands, 0);
        float* y = output(operands, 1);
        const auto row = logarithm ? log_softmax_row : softmax_row;
        for_pieces(
            s,
            [=](Count i) { row(x + i, s.length, y + i); },
            [=, &s](Count i, Count columns) {
              softmax_columns(x + i, s, columns, logarithm, y + i);
            });
      });
}

template <bool logarithm>
KernelPtr make_softmax_gradient(const KernelSpec& spec) {
  const SpecReader reader(spec, {kFloat32, kFloat32}, {kFloat32});
  const Shape s(reader, spec.inputs[0]);
  const Bytes bytes = s.bytes();
  return function_kernel(
      {{bytes, bytes}, {bytes}}, 0, [=](void* const* operands, void*) {
        const float* y = input(operands, 0);
        const float* dy = input(operands, 1);
        float* dx = output(operands, 2);
        const auto row = logarithm ? log_softmax_gradient_row : softmax_gradient_row;
        for_pieces(
            s,
            [=](Count i) { row(y + i, dy + i, s.length, dx + i); },
            [=, &s](Count i, Count columns) {
              gradient_columns(y + i, dy + i, s, columns, logarithm, dx + i);
            });
      });
}

const KernelType kSoftmax{"softmax", make_softmax<false>};
const KernelType kLogSoftmax{"log_softmax", make_softmax<true>};
const KernelType kSoftmaxGradient{"softmax_gradient", make_softmax_gradient<false>};
const KernelType kLogSoftmaxGradient{"log_softmax_gradient",
                                     make_softmax_gradient<true>};

}  // namespace
}  // namespace memcfg
