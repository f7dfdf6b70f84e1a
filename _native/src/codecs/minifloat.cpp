// Floating-point numbers of fewer bits.
#include "codecs/fixed.hpp"
#include "kernels/functions.hpp"
#include "kernels/parallel.hpp"

namespace memcfg {
namespace {

constexpr std::uint32_t kSign = 0x80000000, kInfinity = 0x7F800000;
constexpr unsigned kMantissa = 23, kBias = 127;  // of float32

// By masks: of a condition with sums of floats behind it compilers make a branch.
MEMCFG_INLINE std::uint32_t chosen(bool first, std::uint32_t a, std::uint32_t b) {
  const std::uint32_t mask = mask_of(first);
  return (a & mask) | (b & ~mask);
}

// A sign, E bits of exponent and M of mantissa, as IEEE 754 has them: subnormal
// numbers, infinities and NaN. float32 is rounded to the nearest, of two to the even
// one; what is larger than the largest number becomes that, infinities and NaN stay
// what they are.
template <unsigned E, unsigned M>
struct Format {
  static constexpr unsigned kOwnBias = (1U << (E - 1)) - 1;
  static constexpr unsigned kShift = kMantissa - M;
  static constexpr std::uint32_t kOwnInfinity = ((1U << E) - 1) << M;
  static constexpr std::uint32_t kRebias = (kBias - kOwnBias) << kMantissa;
  // The smallest normal number, and what moves the last bit of the subnormal ones to
  // the last bit of a sum.
  static constexpr std::uint32_t kNormal = kRebias + (1U << kMantissa);
  static constexpr std::uint32_t kMagic = kNormal + (kShift << kMantissa);

  // Without a branch, so that loops become vector loops.
  static MEMCFG_INLINE std::uint32_t from_bits(std::uint32_t bits) noexcept {
    const std::uint32_t size = bits & ~kSign;
    const std::uint32_t even = size >> kShift & 1;
    const std::uint32_t rounded =
        (size - kRebias + ((1U << (kShift - 1)) - 1) + even) >> kShift;
    const std::uint32_t normal =
        chosen(rounded < kOwnInfinity, rounded, kOwnInfinity - 1);
    const std::uint32_t small = chosen(size < kNormal, size, 0);
    const std::uint32_t subnormal =
        bits_of(float_of(small) + float_of(kMagic)) - kMagic;
    const std::uint32_t quiet =
        kOwnInfinity | 1U << (M - 1) | (size >> kShift & ((1U << M) - 1));
    const std::uint32_t finite = chosen(size < kNormal, subnormal, normal);
    const std::uint32_t other = chosen(size > kInfinity, quiet, kOwnInfinity);
    return chosen(size < kInfinity, finite, other) | bits >> 31 << (E + M);
  }

  static MEMCFG_INLINE std::uint32_t to_bits(std::uint32_t code) noexcept {
    const std::uint32_t size = code & ((1U << (E + M)) - 1);
    const std::uint32_t normal = (size << kShift) + kRebias;
    const auto count = static_cast<float>(static_cast<std::int32_t>(size));
    // Of a subnormal number: so many times the smallest.
    const std::uint32_t unit = kNormal - (M << kMantissa);
    const std::uint32_t subnormal = bits_of(count * float_of(unit));
    const std::uint32_t finite = chosen(size < 1U << M, subnormal, normal);
    const std::uint32_t other = kInfinity | (size - kOwnInfinity) << kShift;
    return chosen(size < kOwnInfinity, finite, other) | (code >> (E + M) & 1) << 31;
  }
};

using Half = Format<5, 10>;
using Ten = Format<5, 4>;
using Eight = Format<4, 3>;

template <class Own, class Code>
MEMCFG_INLINE void write_each(const std::byte* from, Bytes words, std::byte* to) {
  MEMCFG_INDEPENDENT
  for (Bytes i = 0; i < words; ++i) {
    const auto code = static_cast<Code>(Own::from_bits(load(from + i * kWord)));
    std::memcpy(to + i * sizeof code, &code, sizeof code);
  }
}

template <class Own, class Code>
MEMCFG_INLINE void read_each(const std::byte* from, Bytes words, std::byte* to) {
  MEMCFG_INDEPENDENT
  for (Bytes i = 0; i < words; ++i) {
    Code code;
    std::memcpy(&code, from + i * sizeof code, sizeof code);
    store(to + i * kWord, Own::to_bits(code));
  }
}

// Three in a word of 32 bits, the first in the lowest.
MEMCFG_INLINE void write_thirds(const std::byte* from, Bytes words, std::byte* to) {
  const Bytes whole = words / 3, rest = words % 3;
  MEMCFG_INDEPENDENT
  for (Bytes i = 0; i < whole; ++i) {
    const std::byte* const three = from + 3 * i * kWord;
    const std::uint32_t code = Ten::from_bits(load(three)) |
                               Ten::from_bits(load(three + kWord)) << 10 |
                               Ten::from_bits(load(three + 2 * kWord)) << 20;
    store(to + i * kWord, code);
  }
  if (rest == 0) return;
  std::byte last[3 * kWord] = {};
  copy_bytes(last, from + 3 * whole * kWord, rest * kWord);
  store(to + whole * kWord,
        Ten::from_bits(load(last)) | Ten::from_bits(load(last + kWord)) << 10);
}

MEMCFG_INLINE void read_thirds(const std::byte* from, Bytes words, std::byte* to) {
  const Bytes whole = words / 3;
  MEMCFG_INDEPENDENT
  for (Bytes i = 0; i < whole; ++i) {
    const std::uint32_t code = load(from + i * kWord);
    std::byte* const three = to + 3 * i * kWord;
    store(three, Ten::to_bits(code & 0x3FF));
    store(three + kWord, Ten::to_bits(code >> 10 & 0x3FF));
    store(three + 2 * kWord, Ten::to_bits(code >> 20 & 0x3FF));
  }
  for (Bytes i = 3 * whole; i < words; ++i) {
    const std::uint32_t code = load(from + whole * kWord);
    store(to + i * kWord, Ten::to_bits(code >> 10 * (i % 3) & 0x3FF));
  }
}

// Functions, which can be compiled for wider vectors; templates cannot.
#define MEMCFG_LOOP(name, body)                                  \
  MEMCFG_VECTORIZED                                              \
  void name(const std::byte* from, Bytes words, std::byte* to) { \
    body(from, words, to);                                       \
  }
MEMCFG_LOOP(write_half, (write_each<Half, std::uint16_t>))
MEMCFG_LOOP(read_half, (read_each<Half, std::uint16_t>))
MEMCFG_LOOP(write_ten, write_thirds)
MEMCFG_LOOP(read_ten, read_thirds)
MEMCFG_LOOP(write_eight, (write_each<Eight, std::uint8_t>))
MEMCFG_LOOP(read_eight, (read_each<Eight, std::uint8_t>))
#undef MEMCFG_LOOP

// Delayed precision reduction: A. Jain, A. Phanishayee, J. Mars, L. Tang and
// G. Pekhimenko, "Gist: Efficient Data Encoding for Deep Neural Network Training"
// (ISCA 2018). So many numbers in so many bytes.
class Minifloat final : public FixedCodec {
 public:
  using Loop = void (*)(const std::byte* from, Bytes words, std::byte* to);

  Minifloat(
      const char* name, Bytes numbers, Bytes bytes, Loop write, Loop read) noexcept
      : FixedCodec(name),
        numbers_(numbers),
        bytes_(bytes),
        write_(write),
        read_(read) {}

 protected:
  Bytes code_bytes(Bytes words) const noexcept override {
    return (words / numbers_ + (words % numbers_ != 0)) * bytes_;
  }
  void write(const std::byte* from, Bytes words, std::byte* to) const override {
    write_(from, words, to);
  }
  void read(const std::byte* from, Bytes words, std::byte* to) const override {
    read_(from, words, to);
  }

 private:
  Bytes numbers_, bytes_;
  Loop write_, read_;
};

const Minifloat kHalf{"fp16", 1, 2, write_half, read_half};
const CodecEntry kHalfEntry{kHalf};
const Minifloat kTen{"fp10", 3, 4, write_ten, read_ten};
const CodecEntry kTenEntry{kTen};
const Minifloat kEight{"fp8", 1, 1, write_eight, read_eight};
const CodecEntry kEightEntry{kEight};

}  // namespace
}  // namespace memcfg
