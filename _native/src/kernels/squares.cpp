// norm, and Adafactor's factored_means and over_factored_root.
//
// Sums are in double precision, over pieces that depend on shapes alone, whose partial
// sums are added in order: the bits do not depend on the number of threads.
#include <array>
#include <cmath>
#include <limits>

#include "kernels/function_kernel.hpp"
#include "kernels/parallel.hpp"

namespace memcfg {
namespace {

constexpr Count kLanes = 16;  // partial sums of one piece
constexpr float kLargest = std::numeric_limits<float>::max();  // of finite arrays
constexpr Count kColumns = 256;  // columns that are summed at once

MEMCFG_VECTORIZED double sum_of_squares(const float* x, Count count) {
  double lanes[kLanes] = {};
  Count i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    MEMCFG_INDEPENDENT
    for (Count j = 0; j < kLanes; ++j) {
      const double value = x[i + j];
      lanes[j] += value * value;
    }
  }
  double total = 0;
  for (; i < count; ++i) total += double{x[i]} * double{x[i]};
  for (const double lane : lanes) total += lane;
  return total;
}

// sums[j] += x[i * width + j]^2 for `rows` rows and j in [0, count).
MEMCFG_VECTORIZED void add_squares_down(
    const float* x, Count rows, Count width, Count count, double* sums) {
  for (Count i = 0; i < rows; ++i) {
    const float* row = x + i * width;
    MEMCFG_INDEPENDENT
    for (Count j = 0; j < count; ++j) {
      const double value = row[j];
      sums[j] += value * value;
    }
  }
}

// out[j] = x[j] / (root * sqrt(columns[j])). In place: out = x. The product of the
// tiny moments of what has no gradient would be 0, that of their roots is not.
MEMCFG_VECTORIZED void divide_by_roots(
    const float* x, const float* columns, float root, Count count, float* out) {
  MEMCFG_INDEPENDENT
  for (Count j = 0; j < count; ++j) out[j] = x[j] / (root * std::sqrt(columns[j]));
}

KernelPtr make_norm(const KernelSpec& spec) {
  const SpecReader reader(spec);
  if (spec.inputs.empty() || spec.outputs.size() != 1 ||
      reader.count(spec.outputs[0]) != 1 || spec.outputs[0].dtype != kFloat32) {
    reader.fail("has inputs, and one float32 as its output");
  }
  Kernel::Sizes sizes{{}, {kFloat}};
  std::vector<Count> counts;
  Count pieces = 0;
  for (const OperandSpec& each : spec.inputs) {
    if (each.dtype != kFloat32) reader.fail("reads float32, not " + each.dtype);
    counts.push_back(reader.count(each));
    sizes.inputs.push_back(reader.bytes(each));
    pieces = std::max(pieces, (counts.back() + kChunk - 1) / kChunk);
  }
  const Bytes scratch = static_cast<Bytes>(pieces) * sizeof(double);
  return function_kernel(sizes, scratch, [=](void* const* operands, void* memory) {
    auto* const partial = static_cast<double*>(memory);
    double total = 0;
    for (std::size_t place = 0; place < counts.size(); ++place) {
      const float* x = input(operands, static_cast<int>(place));
      const Count count = counts[place];
      parallel_chunks(count, kChunk, [=](Count begin, Count length) {
        partial[begin / kChunk] = sum_of_squares(x + begin, length);
      });
      for (Count i = 0; i * kChunk < count; ++i) total += partial[i];
    }
    double norm = std::sqrt(total);
    if (std::isfinite(norm)) norm = std::min<double>(norm, kLargest);
    *output(operands, static_cast<int>(counts.size())) = static_cast<float>(norm);
  });
}

// A tensor as matrices of its last two axes, and the lengths of its factored moments.
struct Matrices {
  Count matrices, rows, columns, count;

  Matrices(const SpecReader& reader, const OperandSpec& x) {
    const SpecReader::Rows of = reader.rows(x);
    const auto& shape = x.shape;
    if (shape.size() < 2) reader.fail("needs two axes or more");
    columns = of.channels;
    rows = static_cast<Count>(shape[shape.size() - 2]);
    count = of.count;
    matrices = count / (rows * columns);
  }
  Bytes bytes() const { return float_bytes(count); }
  Bytes row_bytes() const { return float_bytes(matrices * rows); }
  Bytes column_bytes() const { return float_bytes(matrices * columns); }
};

KernelPtr make_factored_means(const KernelSpec& spec) {
  const SpecReader reader(spec, {kFloat32}, {kFloat32, kFloat32});
  const Matrices s(reader, spec.inputs[0]);
  const double epsilon = reader.real("epsilon");
  const Count pieces = (s.columns + kColumns - 1) / kColumns;
  return function_kernel(
      {{s.bytes()}, {s.row_bytes(), s.column_bytes()}},
      0,
      [=](void* const* operands, void*) {
        const float* x = input(operands, 0);
        float* by_row = output(operands, 1);
        float* by_column = output(operands, 2);
        parallel_for(s.matrices * s.rows, s.count, [=](Count i) {
          const double total = sum_of_squares(x + i * s.columns, s.columns);
          by_row[i] =
              static_cast<float>(total / static_cast<double>(s.columns) + epsilon);
        });
        parallel_for(s.matrices * pieces, s.count, [=](Count i) {
          const Count matrix = i / pieces, first = i % pieces * kColumns;
          const Count length = std::min(kColumns, s.columns - first);
          std::array<double, kColumns> sums{};
          const float* begin = x + matrix * s.rows * s.columns + first;
          add_squares_down(begin, s.rows, s.columns, length, sums.data());
          float* out = by_column + matrix * s.columns + first;
          for (Count j = 0; j < length; ++j) {
            out[j] = static_cast<float>(sums[static_cast<std::size_t>(j)] /
                                            static_cast<double>(s.rows) +
                                        epsilon);
          }
        });
      });
}

KernelPtr make_over_factored_root(const KernelSpec& spec) {
  const SpecReader reader(spec, {kFloat32, kFloat32, kFloat32}, {kFloat32});
  const Matrices s(reader, spec.inputs[0]);
  const Bytes scratch = static_cast<Bytes>(s.matrices) * sizeof(double);
  return function_kernel(
      {{s.bytes(), s.row_bytes(), s.column_bytes()}, {s.bytes()}},
      scratch,
      [=](void* const* operands, void* memory) {
        const float* x = input(operands, 0);
        const float* by_row = input(operands, 1);
        const float* by_column = input(operands, 2);
        float* out = output(operands, 3);
        auto* const means = static_cast<double*>(memory);
        for (Count matrix = 0; matrix < s.matrices; ++matrix) {
          double total = 0;
          for (Count i = 0; i < s.rows; ++i) total += by_row[matrix * s.rows + i];
          means[matrix] = total / static_cast<double>(s.rows);
        }
        parallel_for(s.matrices * s.rows, s.count, [=](Count i) {
          const Count matrix = i / s.rows, begin = i * s.columns;
          const auto root = static_cast<float>(std::sqrt(by_row[i] / means[matrix]));
          const float* columns = by_column + matrix * s.columns;
          divide_by_roots(x + begin, columns, root, s.columns, out + begin);
        });
      });
}

const KernelType kNorm{"norm", make_norm};
const KernelType kFactoredMeans{"factored_means", make_factored_means};
const KernelType kOverFactoredRoot{"over_factored_root", make_over_factored_root};

}  // namespace
}  // namespace memcfg
