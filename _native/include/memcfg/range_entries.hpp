// Decodes the entries of a range code block by block: gaps, and numbers of a codebook,
// under models that count what was decoded. docs/compressed-format.md, kind 4.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "memcfg/range_decoder.hpp"

namespace memcfg {

// As NumPy adds: in eight sums, or in halves of more than 128.
inline double pairwise_sum(const double* values, std::size_t count) {
  if (count < 8) {
    double sum = 0;
    for (std::size_t i = 0; i < count; ++i) sum += values[i];
    return sum;
  }
  if (count > 128) {
    const std::size_t half = count / 2 / 8 * 8;
    return pairwise_sum(values, half) + pairwise_sum(values + half, count - half);
  }
  double sums[8];
  std::copy_n(values, 8, sums);
  std::size_t i = 8;
  for (; i + 8 <= count; i += 8) {
    for (std::size_t j = 0; j < 8; ++j) sums[j] += values[i + j];
  }
  double sum = ((sums[0] + sums[1]) + (sums[2] + sums[3])) +
               ((sums[4] + sums[5]) + (sums[6] + sums[7]));
  for (; i < count; ++i) sum += values[i];
  return sum;
}

// A model that counts. A single symbol, which takes no bits, has another one.
class CountingModel {
 public:
  // The counts stay the caller's, and grow.
  CountingModel(double* counts, std::size_t size)
      : counts_(counts), shares_(std::max<std::size_t>(size, 2)), size_(size) {}

  // The model of the next block, of so many symbols; whether there is one.
  bool begin_block(std::size_t symbols) {
    if (size_ == 1) {
      shares_[0] = 1, shares_[1] = 0;
    } else {
      const double sum = pairwise_sum(counts_, size_);
      for (std::size_t i = 0; i < size_; ++i) shares_[i] = counts_[i] / sum;
    }
    return model_.fill(shares_.data(), shares_.size(), symbols);
  }
  bool knows(std::int32_t symbol) const {
    return static_cast<std::size_t>(symbol) < size_;
  }
  void count(std::int32_t symbol) { counts_[symbol] += 1; }  // pre: it is known

  const RangeModel& model() const { return model_; }

 private:
  double* counts_;
  std::vector<double> shares_;
  std::size_t size_;
  RangeModel model_;
};

struct RangeEntries {
  const unsigned char* code;
  std::size_t bytes;  // whole words of 4
  std::size_t apart;  // bytes of the code of gaps, before that of numbers; 0: one code
  std::size_t count;
  double* of_gaps;  // how often each is counted, at first and then in the end
  std::size_t gaps;
  double* of_numbers;
  const std::uint32_t* codebook;
  std::size_t codewords;
};

// Writes words of the codebook behind their gaps into `out`; other words stay. Returns
// whether there are so many entries, and no more.
inline bool decode_entries(const RangeEntries& of,
                           std::uint32_t* out,
                           std::size_t words) {
  constexpr std::size_t kFirst = 64, kLargest = 65536;  // entries of a block
  const bool apart = of.apart != 0;
  RangeDecoder first(of.code, (apart ? of.apart : of.bytes) / 4);
  RangeDecoder second(of.code + of.apart, apart ? (of.bytes - of.apart) / 4 : 0);
  CountingModel gaps(of.of_gaps, of.gaps), numbers(of.of_numbers, of.codewords);
  std::vector<std::int32_t> steps(std::min(of.count, kLargest)), values(steps.size());
  std::size_t next = 0;  // the first word that is not known yet
  for (std::size_t begin = 0, size = 0; begin < of.count; begin += size) {
    size = std::min({std::max(begin, kFirst), kLargest, of.count - begin});
    if (!gaps.begin_block(size) || !numbers.begin_block(size)) return false;
    const bool known = apart ? RangeDecoder::decode(first,
                                                    gaps.model(),
                                                    steps.data(),
                                                    second,
                                                    numbers.model(),
                                                    values.data(),
                                                    size)
                             : first.decode(gaps.model(), size, steps.data()) &&
                                   first.decode(numbers.model(), size, values.data());
    if (!known) return false;
    for (std::size_t i = 0; i < size; ++i) {
      if (!gaps.knows(steps[i]) || !numbers.knows(values[i])) return false;
      next += static_cast<std::size_t>(steps[i]);
      if (next >= words) return false;
      gaps.count(steps[i]);
      numbers.count(values[i]);
      out[next++] = of.codebook[values[i]];
    }
  }
  return first.may_end() && (!apart || second.may_end());
}

}  // namespace memcfg
