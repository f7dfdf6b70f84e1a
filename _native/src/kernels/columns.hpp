// Rows of C channels as one flat array, and sums down the columns.
//
// A loop over a few channels leaves vector lanes idle, so values per channel are
// repeated to a period of at least kPeriod floats and loops run over periods.
#pragma once

#include "kernels/bfloat16.hpp"
#include "kernels/parallel.hpp"

namespace memcfg {

inline constexpr Count kPeriod = 64;          // floats; least length of an inner loop
inline constexpr Count kPeriodMost = 127;     // longest period that is a repetition
inline constexpr Count kBlock = 16384;        // elements; about one block of a sum
inline constexpr Count kBlockRowsLeast = 32;  // bounds scratch to 1/32 of the array
inline constexpr Count kBlocksMost = 64;      // partial sums of one column

// Length of the repetition: `channels`, or the least multiple >= kPeriod.
constexpr Count period(Count channels) {
  return channels >= kPeriod ? channels
                             : (kPeriod + channels - 1) / channels * channels;
}

// out[0, period) = values[0, channels) over and over.
void repeat(const float* values, Count channels, float* out);

// K numbers that belong together, one for each of K sums.
template <int K>
struct Terms {
  float of[K];
};

// acc[k][j] += term(row, j).of[k] for all rows, four or two at a time: rows often lie a
// multiple of a cache's way apart, which has place for a few lines of them.
template <int K, class Term>
MEMCFG_INLINE void accumulate_rows(Count rows,
                                   Count width,
                                   float* const (&acc)[K],
                                   Term term) {
  Count i = 0;
  if (K == 1) {
    for (; i + 4 <= rows; i += 4) {
      MEMCFG_INDEPENDENT
      for (Count j = 0; j < width; ++j) {
        acc[0][j] += (term(i, j).of[0] + term(i + 1, j).of[0]) +
                     (term(i + 2, j).of[0] + term(i + 3, j).of[0]);
      }
    }
  }
  for (; i + 2 <= rows; i += 2) {
    MEMCFG_INDEPENDENT
    for (Count j = 0; j < width; ++j) {
      const Terms<K> p = term(i, j), q = term(i + 1, j);
      for (int k = 0; k < K; ++k) acc[k][j] += p.of[k] + q.of[k];
    }
  }
  for (; i < rows; ++i) {
    MEMCFG_INDEPENDENT
    for (Count j = 0; j < width; ++j) {
      const Terms<K> p = term(i, j);
      for (int k = 0; k < K; ++k) acc[k][j] += p.of[k];
    }
  }
}

// The same of rows that lie `stride` apart: term(i * stride + j, j).
template <int K, class Term>
MEMCFG_INLINE void accumulate(
    Count rows, Count width, Count stride, float* const (&acc)[K], Term term) {
  accumulate_rows<K>(
      rows, width, acc, [=](Count i, Count j) { return term(i * stride + j, j); });
}

// Sums over the rows of a row-major [rows, channels] block; each is out[channels].
// term(i, j) gives those of element i, which lies at j of its period.
template <int K, class Term>
MEMCFG_INLINE void sum_rows(Count rows,
                            Count channels,
                            float* const (&out)[K],
                            Term term) {
  if (channels >= kPeriod) {
    for (float* each : out) std::fill_n(each, channels, 0.0F);
    accumulate<K>(rows, channels, channels, out, term);
    return;
  }
  float memory[K][kPeriodMost] = {};
  float* acc[K];
  for (int k = 0; k < K; ++k) acc[k] = memory[k];
  const Count width = period(channels);
  const Count periods = rows * channels / width;
  accumulate<K>(periods, width, width, acc, term);
  const Count rest = rows * channels - periods * width;
  for (Count j = 0; j < rest; ++j) {
    const Terms<K> p = term(periods * width + j, j);
    for (int k = 0; k < K; ++k) acc[k][j] += p.of[k];
  }
  for (int k = 0; k < K; ++k) {
    for (Count c = 0; c < channels; ++c) {
      float total = 0;
      for (Count j = c; j < width; j += channels) total += acc[k][j];
      out[k][c] = total;
    }
  }
}

void sum_values(const float* x, Count rows, Count channels, float* out);
void sum_values(const Bfloat16* x, Count rows, Count channels, float* out);

// A sum over all rows: blocks of rows that depend on the shape alone, then the
// partial sums in order, so the bits do not depend on the number of threads.
class ColumnSum {
 public:
  // For so many sums at once; their scratch together does not depend on it.
  ColumnSum(Count rows, Count channels, Count sums = 1);

  Count partials() const noexcept { return blocks_ * channels_; }  // floats
  Count blocks() const noexcept { return blocks_; }
  Count rows_of(Count block) const noexcept {
    return std::min(block_rows_, rows_ - block * block_rows_);
  }

  // block(first_row, rows, out...) writes one partial sum to each out. `partials` are
  // scratch; finish(channel, total...) gets each column's sums.
  template <class Block, class Finish, class... Partials>
  void run(const Block& block, const Finish& finish, Partials*... partials) const {
    for_blocks(block, partials...);
    for (Count c = 0; c < channels_; ++c) finish(c, total(partials + c)...);
  }

  // The partial sums alone.
  template <class Block, class... Partials>
  void for_blocks(const Block& block, Partials*... partials) const {
    parallel_for(blocks_, rows_ * channels_, [&](Count i) {
      block(i * block_rows_, rows_of(i), partials + i * channels_...);
    });
  }

 private:
  double total(const float* column) const {
    double total = 0;
    for (Count i = 0; i < blocks_; ++i) total += column[i * channels_];
    return total;
  }

  Count rows_;
  Count channels_;
  Count block_rows_;
  Count blocks_;
};

}  // namespace memcfg
