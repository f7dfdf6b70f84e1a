// Decodes range codes of constriction (R. Bamler): its default decoder, with words of
// 32 bits, a state of 64, and models of 24 bits.
//
// A code is a number in [0, 1). `lower` and `range` are the interval of what has been
// decoded, `point` is the number, both up to the factors that are shifted out.
// Invariant: point - lower < range, and range >= 2^32, or the code is damaged.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <vector>

namespace memcfg {

// A distribution over symbols 0 to n - 1 in parts of 2^24, at least one for each
// symbol.
class RangeModel {
 public:
  static constexpr unsigned kPrecision = 24;
  static constexpr std::uint32_t kTotal = 1u << kPrecision;

  // As constriction's Categorical(probabilities, perfect=False): parts are cut off sums
  // of probabilities. Returns whether they are a distribution of 2 to 2^16 symbols.
  // For few `uses` a smaller table is filled, which takes longer to look up.
  bool fill(const double* probabilities, std::size_t count, std::size_t uses = kMost) {
    if (count < 2 || count > kMost) return false;
    double sum = 0;
    for (std::size_t i = 0; i < count; ++i) {
      if (!(probabilities[i] >= 0)) return false;
      sum += probabilities[i];
    }
    if (!(sum > 0 && sum < 2)) return false;
    const double scale = static_cast<double>(kTotal - count) / sum;
    begins_.resize(count + 1);
    double before = 0;
    for (std::size_t i = 0; i < count; ++i) {
      begins_[i] =
          static_cast<std::uint32_t>(before * scale) + static_cast<std::uint32_t>(i);
      before += probabilities[i];
    }
    begins_[count] = kTotal;
    shift_ = kShift;
    while (shift_ < kPrecision - 4 && kTotal >> shift_ > 4 * uses) ++shift_;
    // A symbol is the first one of the buckets that begin within it.
    for (std::uint32_t symbol = 0, bucket = 0; symbol < count; ++symbol) {
      const std::uint32_t end = (begins_[symbol + 1] + (1u << shift_) - 1) >> shift_;
      if (end <= bucket) continue;
      std::fill_n(first_ + bucket, end - bucket, static_cast<std::uint16_t>(symbol));
      bucket = end;
    }
    first_[kTotal >> shift_] = static_cast<std::uint16_t>(count - 1);
    return true;
  }

  // Pre: quantile < kTotal.
  std::uint32_t symbol(std::uint32_t quantile) const {
    const std::uint32_t bucket = quantile >> shift_;
    std::uint32_t low = first_[bucket], high = first_[bucket + 1];
    while (low < high) {
      const std::uint32_t middle = (low + high + 1) / 2;
      if (begins_[middle] <= quantile) {
        low = middle;
      } else {
        high = middle - 1;
      }
    }
    return low;
  }
  std::uint32_t begin(std::uint32_t symbol) const { return begins_[symbol]; }
  std::uint32_t end(std::uint32_t symbol) const { return begins_[symbol + 1]; }

 private:
  static constexpr std::size_t kMost = 1u << 16;
  static constexpr unsigned kShift = 12;  // of quantiles to their buckets, at least
  static constexpr std::uint32_t kBuckets = kTotal >> kShift;

  unsigned shift_ = kShift;
  std::vector<std::uint32_t> begins_;    // and the end of the last symbol
  std::uint16_t first_[kBuckets + 1]{};  // symbols of the first quantiles of buckets
};

class RangeDecoder {
 public:
  // The words stay the caller's.
  RangeDecoder(const unsigned char* code, std::size_t words)
      : next_(code), left_(words) {
    for (int i = 0; i < 2; ++i) point_ = point_ << 32 | read();
  }

  // What quotients are computed by; symbols are the same.
  enum class Division { integers, floats };

  // Which is faster, with what is around it: integers of 64 bits from Intel's Ice Lake
  // and AMD's Zen 3 on, which are the processors that have VPCLMULQDQ (Zen 4: a symbol
  // takes 8 ns rather than 15).
  static Division fastest() noexcept {
#if defined(__x86_64__) && defined(__GNUC__)
    static const bool found = [] {
      __builtin_cpu_init();
      return __builtin_cpu_supports("vpclmulqdq") != 0;
    }();
    return found ? Division::integers : Division::floats;
#else
    return Division::integers;
#endif
  }

  // Decodes symbols; returns whether the code has them.
  bool decode(const RangeModel& model,
              std::size_t count,
              std::int32_t* to,
              Division by = fastest()) {
    return by == Division::integers ? decode_all<Division::integers>(model, count, to)
                                    : decode_all<Division::floats>(model, count, to);
  }
  // The same of two codes, each of which is decoded while the other one waits.
  static bool decode(RangeDecoder& first,
                     const RangeModel& of_first,
                     std::int32_t* to_first,
                     RangeDecoder& second,
                     const RangeModel& of_second,
                     std::int32_t* to_second,
                     std::size_t count,
                     Division by = fastest()) {
    const auto all = by == Division::integers ? decode_both<Division::integers>
                                              : decode_both<Division::floats>;
    return all(first, of_first, to_first, second, of_second, to_second, count);
  }

  // Whether the words may end here.
  bool may_end() const {
    constexpr std::uint64_t kMost = (std::uint64_t{1} << 33) - 1;
    return left_ == 0 && (range_ == ~std::uint64_t{0} || point_ - lower_ < kMost);
  }

 private:
  template <Division by>
  bool decode_all(const RangeModel& model, std::size_t count, std::int32_t* to) {
    RangeDecoder own = *this;  // in registers
    bool known = true;
    for (std::size_t i = 0; i < count && known; ++i) {
      known = own.decode_one<by>(model, to[i]);
    }
    *this = own;
    return known;
  }
  template <Division by>
  static bool decode_both(RangeDecoder& first,
                          const RangeModel& of_first,
                          std::int32_t* to_first,
                          RangeDecoder& second,
                          const RangeModel& of_second,
                          std::int32_t* to_second,
                          std::size_t count) {
    RangeDecoder a = first, b = second;
    bool known = true;
    for (std::size_t i = 0; i < count && known; ++i) {
      known = a.decode_one<by>(of_first, to_first[i]) &
              b.decode_one<by>(of_second, to_second[i]);
    }
    first = a, second = b;
    return known;
  }

  template <Division by>
  bool decode_one(const RangeModel& model, std::int32_t& to) {
    const std::uint64_t scale = range_ >> RangeModel::kPrecision;
    const std::uint64_t offset = point_ - lower_;
    if (offset >= scale << RangeModel::kPrecision) return false;
    const std::uint32_t symbol = model.symbol(
        by == Division::integers ? static_cast<std::uint32_t>(offset / scale)
                                 : quotient(offset, scale));
    const std::uint64_t begin = model.begin(symbol);
    to = static_cast<std::int32_t>(symbol);
    lower_ += scale * begin;
    range_ = scale * (model.end(symbol) - begin);
    if (range_ >> 32 == 0) {
      lower_ <<= 32;
      range_ <<= 32;
      point_ = point_ << 32 | read();
    }
    return true;
  }

  // Behind the end there are zeros.
  std::uint64_t read() {
    if (left_ == 0) return 0;
    std::uint32_t word;
    std::memcpy(&word, next_, sizeof word);
    next_ += sizeof word;
    --left_;
    return word;
  }

  // offset / scale, which is less than 2^24, by a division of floats, which is off by
  // one at most.
  static std::uint32_t quotient(std::uint64_t offset, std::uint64_t scale) {
    const double exact = static_cast<double>(static_cast<std::int64_t>(offset >> 1)) /
                         static_cast<double>(static_cast<std::int64_t>(scale));
    auto found = static_cast<std::int64_t>(exact * 2.0);
    const auto rest =
        static_cast<std::int64_t>(offset - static_cast<std::uint64_t>(found) * scale);
    found -= rest < 0 ? 1 : 0;
    found += rest >= static_cast<std::int64_t>(scale) ? 1 : 0;
    return static_cast<std::uint32_t>(found);
  }

  const unsigned char* next_;
  std::size_t left_;
  std::uint64_t lower_ = 0, range_ = ~std::uint64_t{0}, point_ = 0;
};

}  // namespace memcfg
