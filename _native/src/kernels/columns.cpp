#include "kernels/columns.hpp"

#include <algorithm>

namespace memcfg {
namespace {

// acc[j] += term(i * width + j, j) for all i, four periods at a time.
template <class Term>
MEMCFG_INLINE void accumulate(Count periods, Count width, float* acc, Term term) {
  Count i = 0;
  for (; i + 4 <= periods; i += 4) {
    const Count a = i * width, b = a + width, c = b + width, d = c + width;
    MEMCFG_INDEPENDENT
    for (Count j = 0; j < width; ++j) {
      acc[j] += (term(a + j, j) + term(b + j, j)) + (term(c + j, j) + term(d + j, j));
    }
  }
  for (; i < periods; ++i) {
    MEMCFG_INDEPENDENT
    for (Count j = 0; j < width; ++j) acc[j] += term(i * width + j, j);
  }
}

template <class Term>
MEMCFG_INLINE void sum_rows(Count rows, Count channels, float* out, Term term) {
  if (channels >= kPeriod) {
    std::fill_n(out, channels, 0.0F);
    accumulate(rows, channels, out, term);
    return;
  }
  float acc[kPeriodMost] = {};
  const Count width = period(channels);
  const Count periods = rows * channels / width;
  accumulate(periods, width, acc, term);
  const Count rest = rows * channels - periods * width;
  for (Count j = 0; j < rest; ++j) acc[j] += term(periods * width + j, j);
  for (Count c = 0; c < channels; ++c) {
    float total = 0;
    for (Count j = c; j < width; j += channels) total += acc[j];
    out[c] = total;
  }
}

}  // namespace

void repeat(const float* values, Count channels, float* out) {
  const Count width = period(channels);
  for (Count j = 0; j < width; j += channels) std::copy_n(values, channels, out + j);
}

MEMCFG_VECTORIZED void sum_values(const float* x,
                                  Count rows,
                                  Count channels,
                                  float* out) {
  sum_rows(rows, channels, out, [x](Count i, Count) { return x[i]; });
}

MEMCFG_VECTORIZED void sum_squares(
    const float* x, const float* mean, Count rows, Count channels, float* out) {
  sum_rows(rows, channels, out, [x, mean](Count i, Count j) {
    const float deviation = x[i] - mean[j];
    return deviation * deviation;
  });
}

MEMCFG_VECTORIZED void sum_products(const float* dy,
                                    const float* x,
                                    const float* mean,
                                    Count rows,
                                    Count channels,
                                    float* out) {
  sum_rows(rows, channels, out, [dy, x, mean](Count i, Count j) {
    return dy[i] * (x[i] - mean[j]);
  });
}

ColumnSum::ColumnSum(Count rows, Count channels) : rows_(rows), channels_(channels) {
  block_rows_ = std::max({kBlockRowsLeast,
                          (kBlock + channels - 1) / channels,
                          (rows + kBlocksMost - 1) / kBlocksMost});
  blocks_ = (rows + block_rows_ - 1) / block_rows_;
}

}  // namespace memcfg
