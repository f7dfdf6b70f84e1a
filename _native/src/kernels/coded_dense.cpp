// Matrix products with a matrix in codes, read entry by entry: it is never dense.
#include <algorithm>
#include <atomic>
#include <cstring>
#include <stdexcept>
#include <vector>

#include "codecs/codebook_entries.hpp"
#include "kernels/function_kernel.hpp"
#include "kernels/parallel.hpp"

namespace memcfg {
namespace {

// body(row, column, value) for each value that is not 0 of a block of columns, and some
// that are. Throws std::invalid_argument for what is no code of it.
template <class Body>
void each_value(
    const std::byte* from, Bytes size, Count rows, Count columns, const Body& body) {
  const Bytes words = static_cast<Bytes>(rows * columns);
  Count row = 0, column = -1;
  const auto visit = [&](Bytes step, Bytes, std::uint32_t word) {
    column += static_cast<Count>(step);
    while (column >= columns) {
      column -= columns;
      ++row;
    }
    float value;
    std::memcpy(&value, &word, sizeof value);
    body(row, column, value);
  };
  codebook::check(size >= Codebook::kHeader);
  if (from[0] != codebook::kRaw) {
    codebook::each_entry(from, size, words, visit);
    return;
  }
  codebook::check((size - Codebook::kHeader) / kWord >= words);
  for (Bytes i = 0; i < words; ++i) {
    visit(1, i + 1, load(from + Codebook::kHeader + i * kWord));
  }
}

// Sections of columns of the matrix, each a code, one after another.
struct CodedDense {
  Count samples, rows, units, columns;
  std::vector<Count> ends;  // bytes, of each section

  Count sections() const { return static_cast<Count>(ends.size()); }
  Count begin_of(Count section) const {
    return section == 0 ? 0 : ends[static_cast<std::size_t>(section - 1)];
  }
  // Of several samples, x and y with the samples of a row or a unit side by side.
  Bytes scratch_bytes() const {
    return samples == 1 ? 0 : float_bytes((rows + units) * samples);
  }

  void run_section(Count section,
                   const float* x,
                   const std::byte* codes,
                   float* y) const {
    const Count first = section * columns, begin = begin_of(section);
    const Count own = std::min(columns, units - first), n = samples;
    float* const to = y + first * n;
    std::fill_n(to, own * n, 0.0F);
    const Bytes size =
        static_cast<Bytes>(ends[static_cast<std::size_t>(section)] - begin);
    if (n == 1) {
      each_value(codes + begin, size, rows, own, [=](Count row, Count column, float w) {
        to[column] += x[row] * w;
      });
      return;
    }
    each_value(codes + begin, size, rows, own, [=](Count row, Count column, float w) {
      const float* const from = x + row * n;
      float* const sums = to + column * n;
      MEMCFG_INDEPENDENT
      for (Count i = 0; i < n; ++i) sums[i] += from[i] * w;
    });
  }

  void run(const float* x, const std::byte* codes, float* y, float* scratch) const {
    const float* from = x;
    float* to = y;
    if (samples > 1) {
      transpose(x, samples, rows, scratch);
      from = scratch;
      to = scratch + rows * samples;
    }
    std::atomic<bool> damaged{false};
    parallel_for(sections(), rows * units, [&](Count section) {
      try {
        run_section(section, from, codes, to);
      } catch (const std::invalid_argument&) {  // which cannot leave a thread
        damaged = true;
      }
    });
    codebook::check(!damaged);
    if (samples > 1) transpose(to, units, samples, y);
  }

 private:
  static void transpose(const float* from, Count rows, Count columns, float* to) {
    constexpr Count kTile = 16;
    for (Count i = 0; i < rows; i += kTile) {
      for (Count j = 0; j < columns; ++j) {
        for (Count k = i; k < std::min(rows, i + kTile); ++k) {
          to[j * rows + k] = from[k * columns + j];
        }
      }
    }
  }
};

KernelPtr make_coded_dense(const KernelSpec& spec) {
  const SpecReader reader(spec, {kFloat32, kUint8}, {kFloat32});
  const auto [samples, rows, count] = reader.rows(spec.inputs[0]);
  const auto [others, units, results] = reader.rows(spec.outputs[0]);
  const Bytes size = reader.bytes(spec.inputs[1]);
  CodedDense made{samples, rows, units, reader.integer("columns", 1), {}};
  made.ends = reader.integers("ends", 0);
  Count end = 0;
  for (const Count each : made.ends) {
    if (each < end) reader.fail("has sections in no order");
    end = each;
  }
  if (others != samples || static_cast<Bytes>(end) > size ||
      (units + made.columns - 1) / made.columns != made.sections()) {
    reader.fail("has other sections, or another result");
  }
  return function_kernel({{float_bytes(count), size}, {float_bytes(results)}},
                         made.scratch_bytes(),
                         [made](void* const* operands, void* scratch) {
                           made.run(input(operands, 0),
                                    input_as<std::byte>(operands, 1),
                                    output(operands, 2),
                                    static_cast<float*>(scratch));
                         });
}

const KernelType kCodedDense{"coded_dense", make_coded_dense};

}  // namespace
}  // namespace memcfg
