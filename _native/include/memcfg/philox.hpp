// Philox4x32-10, the counter-based generator of Salmon, Moraes, Dror and Shaw,
// "Parallel random numbers: as easy as 1, 2, 3" (SC 2011).
#pragma once

#include <cstdint>
#include <cstring>

namespace memcfg::philox {

inline constexpr std::uint32_t kMultiplier0 = 0xD2511F53;
inline constexpr std::uint32_t kMultiplier1 = 0xCD9E8D57;
inline constexpr std::uint32_t kWeyl0 = 0x9E3779B9;  // golden ratio
inline constexpr std::uint32_t kWeyl1 = 0xBB67AE85;  // sqrt(3) - 1
inline constexpr int kRounds = 10;
inline constexpr int kLanes = 32;  // counters that advance side by side

// kLanes counters of four words, word by word: word[w][lane].
struct Words {
  std::uint32_t word[4][kLanes];
};

// The upper half of the product.
inline std::uint32_t multiply_high(std::uint32_t a, std::uint32_t b) {
  return static_cast<std::uint32_t>((std::uint64_t{a} * b) >> 32);
}

inline void round(Words& x, std::uint32_t key0, std::uint32_t key1) {
  for (int i = 0; i < kLanes; ++i) {
    const std::uint32_t a = x.word[0][i], b = x.word[1][i];
    const std::uint32_t c = x.word[2][i], d = x.word[3][i];
    x.word[0][i] = multiply_high(kMultiplier1, c) ^ b ^ key0;
    x.word[1][i] = kMultiplier1 * c;
    x.word[2][i] = multiply_high(kMultiplier0, a) ^ d ^ key1;
    x.word[3][i] = kMultiplier0 * a;
  }
}

// Where the numbers of an array begin: the counters of its step, and its first element.
// The operand is the step; or the step, the first sample and the number of samples of a
// part of a larger batch, whose numbers are those of its rows in the whole array.
struct Position {
  std::uint64_t step;
  std::int64_t first;

  Position(const void* operand, std::int64_t values, std::int64_t count) : first(0) {
    std::int64_t given[3] = {0, 0, 1};
    std::memcpy(given, operand, (values == 3 ? 3 : 1) * sizeof given[0]);
    step = static_cast<std::uint64_t>(given[0]);
    if (given[2] > 0) first = count / given[2] * given[1];
  }
};

// Turns counters into random words, in place.
inline void generate(Words& x, std::uint64_t key) {
  std::uint32_t key0 = static_cast<std::uint32_t>(key);
  std::uint32_t key1 = static_cast<std::uint32_t>(key >> 32);
  for (int i = 0; i < kRounds; ++i) {
    round(x, key0, key1);
    key0 += kWeyl0;
    key1 += kWeyl1;
  }
}

}  // namespace memcfg::philox
