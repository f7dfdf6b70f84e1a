#include "kernels/row_product.hpp"

#include <algorithm>

#include "kernels/functions.hpp"
#include "kernels/parallel.hpp"
#include "memcfg/threads.hpp"

namespace memcfg {
namespace {

constexpr Count kLine = 16;    // floats of a line of the cache
constexpr Count kMost = 4096;  // columns whose sums are on the stack
constexpr Count kRows = 8;     // of the matrix, that are read at a time

// sums[j] += x[0] w[0][j] + ..., term by term, for columns of a matrix of `stride`.
MEMCFG_VECTORIZED void add_rows(
    const float* x, const float* w, Count stride, Count columns, float* sums) {
  float factors[kRows];  // not read from memory again for each column
  std::copy_n(x, kRows, factors);
  MEMCFG_INDEPENDENT
  for (Count j = 0; j < columns; ++j) {
    float sum = sums[j];
    for (Count row = 0; row < kRows; ++row) sum += factors[row] * w[row * stride + j];
    sums[j] = sum;
  }
}

MEMCFG_VECTORIZED void add_row(float x, const float* w, Count columns, float* sums) {
  MEMCFG_INDEPENDENT
  for (Count j = 0; j < columns; ++j) sums[j] += x * w[j];
}

}  // namespace

void OneRowProduct::run(void* const* operands, void*, RunState*) const {
  const float* const x = input(operands, 0);
  const float* const w = input(operands, 1);
  const float* const bias = biased_ ? input(operands, 2) : nullptr;
  const int added = biased_ ? 3 : 2;
  const float* const other = summed_ ? input(operands, added) : nullptr;
  float* const y = output(operands, summed_ ? added + 1 : added);
  // A thread reads lines as long as there can be, which lie one after another.
  const Count threads = max_threads();
  const Count share = (columns_ + threads - 1) / threads;
  const Count width = std::min((share + kLine - 1) / kLine * kLine, kMost);
  const Count pieces = (columns_ + width - 1) / width;
  parallel_for(pieces, steps_ * columns_, [=](Count piece) {
    const Count begin = piece * width, count = std::min(width, columns_ - begin);
    float sums[kMost];
    std::fill_n(sums, count, 0.0F);
    Count step = 0;
    for (; step + kRows <= steps_; step += kRows) {
      add_rows(x + step, w + step * columns_ + begin, columns_, count, sums);
    }
    for (; step < steps_; ++step) {
      add_row(x[step], w + step * columns_ + begin, count, sums);
    }
    for (Count j = 0; j < count; ++j) {
      float value = sums[j];
      if (bias != nullptr) value += bias[begin + j];
      if (other != nullptr) value += other[begin + j];
      y[begin + j] = relu_ ? Relu::of(value) : value;
    }
  });
}

}  // namespace memcfg
