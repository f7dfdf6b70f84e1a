// Rows of C channels as one flat array, and sums down the columns.
//
// A loop over a few channels leaves vector lanes idle, so values per channel are
// repeated to a period of at least kPeriod floats and loops run over periods.
#pragma once

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

// Sums over rows of a row-major [rows, channels] block; each writes out[channels].
void sum_values(const float* x, Count rows, Count channels, float* out);
// Of (x - mean)^2. `mean` is repeated to the period.
void sum_squares(
    const float* x, const float* mean, Count rows, Count channels, float* out);
// Of dy * (x - mean). `mean` is repeated to the period.
void sum_products(const float* dy,
                  const float* x,
                  const float* mean,
                  Count rows,
                  Count channels,
                  float* out);

// A sum over all rows: blocks of rows that depend on the shape alone, then the
// partial sums in order, so the bits do not depend on the number of threads.
class ColumnSum {
 public:
  ColumnSum(Count rows, Count channels);

  Count partials() const noexcept { return blocks_ * channels_; }  // floats

  // block(first_row, rows, out) writes one partial sum. `partials` is scratch;
  // finish(channel, total) gets each column's sum.
  template <class Block, class Finish>
  void run(float* partials, const Block& block, const Finish& finish) const {
    parallel_for(blocks_, rows_ * channels_, [&](Count i) {
      const Count first = i * block_rows_;
      block(first, std::min(block_rows_, rows_ - first), partials + i * channels_);
    });
    for (Count c = 0; c < channels_; ++c) {
      double total = 0;
      for (Count i = 0; i < blocks_; ++i) total += partials[i * channels_ + c];
      finish(c, total);
    }
  }

 private:
  Count rows_;
  Count channels_;
  Count block_rows_;
  Count blocks_;
};

}  // namespace memcfg
