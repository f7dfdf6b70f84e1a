#include "kernels/row_product.hpp"

#include <algorithm>

#include "kernels/functions.hpp"
#include "kernels/parallel.hpp"
#include "memcfg/threads.hpp"

namespace memcfg {
namespace {

constexpr Count kLine = 16;         // floats
constexpr Count kRows = 8;          // of the matrix, that are read at a time
constexpr Count kStepsLeast = 256;  // of a part, which has whole `kRows`
constexpr Count kPartsMost = 16;    // more threads do not read memory faster
constexpr Count kColumns = 2048;    // whose sums stay in the cache

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

OneRowProduct::OneRowProduct(const Sizes& sizes,
                             Count steps,
                             Count columns,
                             bool bias,
                             bool sum,
                             bool relu,
                             int threads)
    : Kernel(sizes),
      steps_(steps),
      columns_(columns),
      biased_(bias),
      summed_(sum),
      relu_(relu),
      threads_(threads) {
  const Count wanted = std::clamp<Count>(steps / kStepsLeast, 1, kPartsMost);
  length_ = ((steps + wanted - 1) / wanted + kRows - 1) / kRows * kRows;
  stride_ = (columns + kLine - 1) / kLine * kLine;
  parts_ = std::max<Count>((steps + length_ - 1) / length_, 1);
}

void OneRowProduct::run(void* const* operands, void* scratch, RunState*) const {
  const ThreadCount own_threads(at_most(threads_));
  const float* const x = input(operands, 0);
  const float* const w = input(operands, 1);
  float* const sums = static_cast<float*>(scratch);
  const Count pieces = (columns_ + kColumns - 1) / kColumns;
  parallel_for(parts_ * pieces, steps_ * columns_, [=](Count number) {
    const Count part = number / pieces, begin = number % pieces * kColumns;
    const Count count = std::min(kColumns, columns_ - begin);
    float* const own = sums + part * stride_ + begin;
    std::fill_n(own, count, 0.0F);
    Count step = part * length_;
    const Count end = std::min(step + length_, steps_);
    for (; step + kRows <= end; step += kRows) {
      add_rows(x + step, w + step * columns_ + begin, columns_, count, own);
    }
    for (; step < end; ++step) {
      add_row(x[step], w + step * columns_ + begin, count, own);
    }
  });
  const float* const bias = biased_ ? input(operands, 2) : nullptr;
  const int added = biased_ ? 3 : 2;
  const float* const other = summed_ ? input(operands, added) : nullptr;
  float* const y = output(operands, summed_ ? added + 1 : added);
  for (Count j = 0; j < columns_; ++j) {
    float value = sums[j];
    for (Count part = 1; part < parts_; ++part) value += sums[part * stride_ + j];
    if (bias != nullptr) value += bias[j];
    if (other != nullptr) value += other[j];
    y[j] = relu_ ? Relu::of(value) : value;
  }
}

}  // namespace memcfg
