#include "kernels/columns.hpp"

#include <algorithm>

namespace memcfg {
void repeat(const float* values, Count channels, float* out) {
  const Count width = period(channels);
  for (Count j = 0; j < width; j += channels) std::copy_n(values, channels, out + j);
}

MEMCFG_VECTORIZED void sum_values(const float* x,
                                  Count rows,
                                  Count channels,
                                  float* out) {
  float* const outs[1] = {out};
  sum_rows<1>(rows, channels, outs, [x](Count i, Count) { return Terms<1>{{x[i]}}; });
}

MEMCFG_VECTORIZED void sum_values(const Bfloat16* x,
                                  Count rows,
                                  Count channels,
                                  float* out) {
  float* const outs[1] = {out};
  sum_rows<1>(
      rows, channels, outs, [x](Count i, Count) { return Terms<1>{{widened(x[i])}}; });
}

ColumnSum::ColumnSum(Count rows, Count channels, Count sums)
    : rows_(rows), channels_(channels) {
  block_rows_ = std::max({kBlockRowsLeast * sums,
                          (kBlock + channels - 1) / channels,
                          (rows * sums + kBlocksMost - 1) / kBlocksMost});
  blocks_ = (rows + block_rows_ - 1) / block_rows_;
}

}  // namespace memcfg
