#include "kernels/chained_product.hpp"

#include <algorithm>

#include "kernels/block_product.hpp"
#include "kernels/functions.hpp"
#include "kernels/parallel.hpp"
#include "memcfg/threads.hpp"

namespace memcfg {
namespace {

// Of blocks of the result; they change no bit.
constexpr Count kRows = 96;           // at most
constexpr Count kRowsPacked = 49;     // from these on, packing what they read pays
constexpr Count kRowsLeast = 8;       // of what a thread is worth
constexpr Count kColumns = 512;       // at most, where rows are few
constexpr Count kColumnsPacked = 64;  // at most, where there are more
constexpr Count kFloats = 1 << 14;    // of the sums, and of what is packed
constexpr Count kTermsOfElement = 8;  // that take as long as an element of a loop

Count divided_up(Count all, Count by) {
  return (all + by - 1) / by;
}
Count whole(Count columns) {
  return divided_up(columns, kLeastColumns) * kLeastColumns;
}

// Steps of some columns, and zeros up to whole vectors.
void pack(const float* w, Count stride, Count steps, Count columns, float* to) {
  const Count width = whole(columns);
  for (Count step = 0; step < steps; ++step) {
    std::copy_n(w + step * stride, columns, to + step * width);
    std::fill(to + step * width + columns, to + (step + 1) * width, 0.0F);
  }
}

struct Arrays {
  const float *x, *w, *bias, *other;  // the last two may be null
  float* y;
};

// Of the result.
struct Block {
  Count row, rows, column, columns;
};

void multiply_block(const Arrays& at,
                    const ChainedProduct::Extents& of,
                    const Block& block,
                    bool relu) {
  alignas(64) float packed[kFloats];
  alignas(64) float sums[kFloats];
  const Count width = whole(block.columns), most = kFloats / width;
  // Columns that are read where they are.
  const Count direct = block.rows < kRowsPacked ? block.columns / kPanel * kPanel : 0;
  for (Count step = 0; step < of.steps; step += most) {
    const Count steps = std::min(most, of.steps - step);
    const float* const w = at.w + step * of.columns + block.column;
    BlockProduct product{at.x + block.row * of.steps + step,
                         of.steps,
                         1,
                         w,
                         of.columns,
                         sums,
                         width,
                         block.rows,
                         steps,
                         direct,
                         step > 0};
    if (direct > 0) multiply(product);
    if (direct == width) continue;
    pack(w + direct, of.columns, steps, block.columns - direct, packed);
    product.right = packed;
    product.right_row = product.columns = width - direct;
    product.result += direct;
    multiply(product);
  }
  const float* const bias = at.bias == nullptr ? nullptr : at.bias + block.column;
  for (Count row = 0; row < block.rows; ++row) {
    const Count begin = (block.row + row) * of.columns + block.column;
    const float* const sum = sums + row * width;
    const float* const other = at.other == nullptr ? nullptr : at.other + begin;
    float* const y = at.y + begin;
    for (Count j = 0; j < block.columns; ++j) {
      float value = sum[j];
      if (bias != nullptr) value += bias[j];
      if (other != nullptr) value += other[j];
      y[j] = relu ? Relu::of(value) : value;
    }
  }
}

}  // namespace

void ChainedProduct::run(void* const* operands, void*, RunState*) const {
  const ThreadCount own(at_most(threads_));
  const int added = biased_ ? 3 : 2;
  const Arrays at{input(operands, 0),
                  input(operands, 1),
                  biased_ ? input(operands, 2) : nullptr,
                  summed_ ? input(operands, added) : nullptr,
                  output(operands, summed_ ? added + 1 : added)};
  const Count threads = max_threads();
  const Count most = of_.rows < kRowsPacked
                         ? std::min(kColumns, kFloats / of_.rows / kPanel * kPanel)
                         : kColumnsPacked;
  const Count columns =
      std::clamp(whole(divided_up(of_.columns, threads)), kPanel, most);
  const Count along = divided_up(of_.columns, columns);
  const Count down =
      std::max(divided_up(of_.rows, kRows),
               std::min(divided_up(threads, along), of_.rows / kRowsLeast));
  const Count rows = divided_up(of_.rows, std::max<Count>(down, 1));
  parallel_for(divided_up(of_.rows, rows) * along,
               of_.rows * of_.steps * of_.columns / kTermsOfElement,
               [=](Count number) {
                 const Count row = number / along * rows;
                 const Count column = number % along * columns;
                 multiply_block(at,
                                of_,
                                {row,
                                 std::min(rows, of_.rows - row),
                                 column,
                                 std::min(columns, of_.columns - column)},
                                relu_);
               });
}

}  // namespace memcfg
