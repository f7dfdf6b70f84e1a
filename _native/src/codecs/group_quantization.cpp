// Numbers of 2, 4 or 8 bits between the least and the largest of their group.
#include <algorithm>
#include <limits>

#include "codecs/fixed.hpp"
#include "kernels/functions.hpp"
#include "kernels/parallel.hpp"
#include "memcfg/philox.hpp"

namespace memcfg {
namespace {

constexpr Bytes kGroup = 256;  // numbers
constexpr Bytes kHead = 8;     // bytes: the zero point and the scale, float32
constexpr std::uint32_t kInfinity = 0x7F800000;

struct Range {
  float least, largest;
  bool finite;
  std::uint64_t key;  // of the random words: what is rounded decides how
};

// A hash that vector loops can sum; Philox does the mixing.
MEMCFG_VECTORIZED
Range range_of(const std::byte* from, Bytes count) {
  float least = std::numeric_limits<float>::infinity(), largest = -least;
  std::uint32_t infinite = 0, low = 0, high = 0;
  for (Bytes i = 0; i < count; ++i) {
    const std::uint32_t bits = load(from + i * kWord);
    const float value = float_of(bits);
    least = value < least ? value : least;
    largest = value > largest ? value : largest;
    infinite |= mask_of((bits & kInfinity) == kInfinity);
    const auto odd = 2 * static_cast<std::uint32_t>(i) + 1;
    low += (bits ^ bits >> 15) * (odd * 0x9E3779B1U);
    high += (bits ^ bits >> 13) * (odd * 0x85EBCA77U);
  }
  return {least, largest, infinite == 0, low | std::uint64_t{high} << 32};
}

// A random word for each number of a group.
MEMCFG_VECTORIZED
void draw(std::uint64_t key, std::uint64_t group, std::uint32_t* words) {
  for (std::uint32_t half = 0; half < 2; ++half) {
    philox::Words x;
    for (std::uint32_t i = 0; i < philox::kLanes; ++i) {
      x.word[0][i] = half * philox::kLanes + i;
      x.word[1][i] = 0;
      x.word[2][i] = static_cast<std::uint32_t>(group);
      x.word[3][i] = static_cast<std::uint32_t>(group >> 32);
    }
    philox::generate(x, key);
    for (int w = 0; w < 4; ++w) {
      std::memcpy(words, x.word[w], sizeof x.word[w]);
      words += philox::kLanes;
    }
  }
}

// The level below each number or the one above it, the nearer one more often.
MEMCFG_VECTORIZED
void round_levels(const std::byte* from,
                  Bytes count,
                  double least,
                  double levels_a_unit,
                  std::int32_t most,
                  const std::uint32_t* words,
                  std::uint8_t* levels) {
  MEMCFG_INDEPENDENT
  for (Bytes i = 0; i < count; ++i) {
    const double value = float_of(load(from + i * kWord));
    // Of 31 bits, whose conversion to double is an instruction everywhere.
    const double part = static_cast<std::int32_t>(words[i] >> 1) * 0x1p-31;
    const auto level =
        static_cast<std::int32_t>((value - least) * levels_a_unit + part);
    levels[i] = static_cast<std::uint8_t>(level < most ? level : most);
  }
}

MEMCFG_VECTORIZED
void give_levels(const std::uint8_t* levels,
                 Bytes count,
                 double least,
                 double scale,
                 std::byte* to) {
  constexpr double kMost = std::numeric_limits<float>::max();
  MEMCFG_INDEPENDENT
  for (Bytes i = 0; i < count; ++i) {
    const double value = least + levels[i] * scale;
    const double capped = value > kMost ? kMost : value;
    store(to + i * kWord, bits_of(static_cast<float>(capped)));
  }
}

// J. Chen, L. Zheng, Z. Yao, D. Wang, I. Stoica, M. Mahoney and J. Gonzalez, "ActNN:
// Reducing Training Memory Footprint via 2-Bit Activation Compressed Training" (ICML
// 2021): groups of 256 numbers, each with a zero point and a scale, and stochastic
// rounding, whose mean is the number. First the heads of all groups, then the levels.
//
// The random words are those of Philox, keyed by the bits of the group and counted by
// its place: the same tensor has the same code everywhere, and no two steps of a
// training round alike. A group with an infinity or NaN comes back as NaN.
class GroupQuantization final : public FixedCodec {
 public:
  GroupQuantization(const char* name, unsigned bits) noexcept
      : FixedCodec(name), bits_(bits) {}

 protected:
  Bytes code_bytes(Bytes words) const noexcept override {
    return groups_of(words) * kHead + (words + in_a_byte() - 1) / in_a_byte();
  }

  void write(const std::byte* from, Bytes words, std::byte* to) const override {
    std::byte* codes = to + groups_of(words) * kHead;
    std::uint32_t random[kGroup];
    std::uint8_t levels[kGroup];
    for (Bytes group = 0; group < groups_of(words); ++group) {
      const Bytes count = std::min(kGroup, words - group * kGroup);
      const Range range = range_of(from, count);
      const double least = range.least;
      const auto scale = static_cast<float>((range.largest - least) / most());
      store(to + group * kHead, range.finite ? bits_of(range.least) : kNan);
      store(to + group * kHead + kWord, range.finite ? bits_of(scale) : 0);
      std::memset(levels, 0, sizeof levels);
      if (range.finite && scale > 0) {
        draw(range.key, group, random);
        round_levels(from, count, least, 1 / double{scale}, most(), random, levels);
      }
      codes = pack(levels, count, codes);
      from += count * kWord;
    }
  }

  void read(const std::byte* from, Bytes words, std::byte* to) const override {
    const std::byte* codes = from + groups_of(words) * kHead;
    std::uint8_t levels[kGroup];
    for (Bytes group = 0; group < groups_of(words); ++group) {
      const Bytes count = std::min(kGroup, words - group * kGroup);
      codes = unpack(codes, count, levels);
      const double least = float_of(load(from + group * kHead));
      const double scale = float_of(load(from + group * kHead + kWord));
      give_levels(levels, count, least, scale, to);
      to += count * kWord;
    }
  }

 private:
  static constexpr std::uint32_t kNan = 0x7FC00000;

  static Bytes groups_of(Bytes words) noexcept {
    return words / kGroup + (words % kGroup != 0);
  }
  Bytes in_a_byte() const noexcept { return 8 / bits_; }
  std::int32_t most() const noexcept { return (1 << bits_) - 1; }

  // The first number in the lowest bits. Pre: levels up to a whole byte are there.
  std::byte* pack(const std::uint8_t* levels, Bytes count, std::byte* to) const {
    for (Bytes i = 0; i < count; i += in_a_byte()) {
      unsigned code = 0;
      for (Bytes j = 0; j < in_a_byte(); ++j) {
        code |= static_cast<unsigned>(levels[i + j]) << j * bits_;
      }
      *to++ = static_cast<std::byte>(code);
    }
    return to;
  }

  const std::byte* unpack(const std::byte* from,
                          Bytes count,
                          std::uint8_t* levels) const {
    for (Bytes i = 0; i < count; i += in_a_byte()) {
      const auto code = static_cast<unsigned>(*from++);
      for (Bytes j = 0; j < in_a_byte(); ++j) {
        levels[i + j] = static_cast<std::uint8_t>(code >> j * bits_ &
                                                  static_cast<unsigned>(most()));
      }
    }
    return from;
  }

  unsigned bits_;
};

const GroupQuantization kTwo{"group2", 2};
const CodecEntry kTwoEntry{kTwo};
const GroupQuantization kFour{"group4", 4};
const CodecEntry kFourEntry{kFour};
const GroupQuantization kEight{"group8", 8};
const CodecEntry kEightEntry{kEight};

}  // namespace
}  // namespace memcfg
