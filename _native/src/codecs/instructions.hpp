// Loops of codecs in several sets of instructions: which there are, which can run here.
//
// Words that are not zero are pushed together by `vpcompressd` (AVX-512) or by a
// shuffle that a table gives for the mask of 8 words (AVX2). Every set makes the same
// bytes; tests run all that the processor has.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#if defined(__x86_64__) && defined(__GNUC__)
#include <immintrin.h>
#define MEMCFG_HAS_AVX 1
#define MEMCFG_AVX2 __attribute__((target("avx2,popcnt,bmi")))
#define MEMCFG_AVX512 __attribute__((target("avx512f,avx512bw,avx512vl,popcnt,bmi")))
#else
#define MEMCFG_HAS_AVX 0
#endif

namespace memcfg {

enum class Instructions { plain, avx2, avx512 };

inline bool has(Instructions set) noexcept {
#if MEMCFG_HAS_AVX
  __builtin_cpu_init();
  if (set == Instructions::avx2) return __builtin_cpu_supports("avx2");
  if (set == Instructions::avx512) {
    return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512vl");
  }
#endif
  return set == Instructions::plain;
}

// Of loops for several sets, the narrowest first, the last that can run here.
template <class Loops>
const Loops& widest(const std::vector<Loops>& loops) noexcept {
  auto each = loops.rbegin();
  while (!has(each->set)) ++each;  // the first is plain
  return *each;
}

// A kind of codec whose loops have one set of instructions.
template <class Kind, class Own>
class Looped : public Kind {
 public:
  using Loops = Own;
  Looped(const char* name, const Loops& loops) noexcept : Kind(name), loops_(loops) {}

 protected:
  Loops loops_;
};

#if MEMCFG_HAS_AVX
using ByMask = std::array<std::array<std::int8_t, 8>, 256>;

// The places of the bits of a mask, from the lowest; the rest is 0.
constexpr ByMask make_places() {
  ByMask places{};
  for (unsigned mask = 0; mask < 256; ++mask) {
    unsigned kept = 0;
    for (unsigned bit = 0; bit < 8; ++bit) {
      if (mask >> bit & 1) places[mask][kept++] = static_cast<std::int8_t>(bit);
    }
  }
  return places;
}

// How many bits of a mask lie below each that it has; -1 for those that it has not.
constexpr ByMask make_ranks() {
  ByMask ranks{};
  for (unsigned mask = 0; mask < 256; ++mask) {
    std::int8_t kept = 0;
    for (unsigned bit = 0; bit < 8; ++bit) {
      ranks[mask][bit] = mask >> bit & 1 ? kept++ : std::int8_t{-1};
    }
  }
  return ranks;
}

inline constexpr ByMask kPlaces = make_places(), kRanks = make_ranks();

MEMCFG_AVX2 inline __m128i row_of(const ByMask& table, unsigned mask) {
  return _mm_loadl_epi64(reinterpret_cast<const __m128i*>(table[mask].data()));
}
#endif

}  // namespace memcfg
