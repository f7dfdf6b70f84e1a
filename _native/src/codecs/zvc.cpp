#include "codecs/zvc.hpp"

#include <algorithm>

namespace memcfg {
namespace {

constexpr Bytes kMask = 4;                      // bytes
constexpr Bytes kWords = 32;                    // of a block
constexpr Bytes kBlock = kWords * kWord;        // bytes
constexpr Bytes kPackedBlock = kMask + kBlock;  // bytes, at most

// Without a branch: each word is written where the next one that is kept belongs.
void pack_plain(const std::byte*& from,
                const std::byte* last,
                std::byte*& to,
                const std::byte* end) {
  while (between(from, last) >= kBlock && between(to, end) >= kPackedBlock) {
    std::byte* out = to + kMask;
    std::uint32_t mask = 0;
    for (unsigned i = 0; i < kWords; ++i) {
      const std::uint32_t word = load(from + i * kWord);
      const std::uint32_t kept = word != 0;
      store(out, word);
      out += kept * kWord;
      mask |= kept << i;
    }
    store(to, mask);
    to = out;
    from += kBlock;
  }
}

void unpack_plain(const std::byte*& from,
                  const std::byte* end,
                  std::byte*& to,
                  const std::byte* last) {
  while (between(to, last) >= kBlock && between(from, end) >= kPackedBlock) {
    const std::uint32_t mask = load(from);
    const std::byte* in = from + kMask;
    for (unsigned i = 0; i < kWords; ++i) {
      const std::uint32_t kept = mask >> i & 1;
      store(to + i * kWord, load(in) & (0 - kept));
      in += kept * kWord;
    }
    from = in;
    to += kBlock;
  }
}

#if MEMCFG_HAS_AVX
// A register is written, or read, whole behind the last kept word.
constexpr Bytes kSlack = 64;  // bytes

MEMCFG_AVX2 void pack_avx2(const std::byte*& from,
                           const std::byte* last,
                           std::byte*& to,
                           const std::byte* end) {
  while (between(from, last) >= kBlock && between(to, end) >= kPackedBlock + kSlack) {
    std::byte* out = to + kMask;
    std::uint32_t mask = 0;
    for (unsigned i = 0; i < kWords; i += 8) {
      const auto* words = reinterpret_cast<const __m256i*>(from + i * kWord);
      const __m256i word = _mm256_loadu_si256(words);
      const __m256i zero = _mm256_cmpeq_epi32(word, _mm256_setzero_si256());
      const unsigned lost =
          static_cast<unsigned>(_mm256_movemask_ps(_mm256_castsi256_ps(zero)));
      const unsigned kept = ~lost & 0xFF;
      const __m256i places = _mm256_cvtepi8_epi32(row_of(kPlaces, kept));
      const __m256i packed = _mm256_permutevar8x32_epi32(word, places);
      _mm256_storeu_si256(reinterpret_cast<__m256i*>(out), packed);
      out += static_cast<unsigned>(_mm_popcnt_u32(kept)) * kWord;
      mask |= kept << i;
    }
    store(to, mask);
    to = out;
    from += kBlock;
  }
}

MEMCFG_AVX2 void unpack_avx2(const std::byte*& from,
                             const std::byte* end,
                             std::byte*& to,
                             const std::byte* last) {
  while (between(to, last) >= kBlock && between(from, end) >= kPackedBlock + kSlack) {
    const std::uint32_t mask = load(from);
    const std::byte* in = from + kMask;
    for (unsigned i = 0; i < kWords; i += 8) {
      const unsigned kept = mask >> i & 0xFF;
      const __m256i ranks = _mm256_cvtepi8_epi32(row_of(kRanks, kept));
      const __m256i packed = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(in));
      const __m256i spread = _mm256_permutevar8x32_epi32(packed, ranks);
      const __m256i lost = _mm256_srai_epi32(ranks, 31);
      _mm256_storeu_si256(reinterpret_cast<__m256i*>(to + i * kWord),
                          _mm256_andnot_si256(lost, spread));
      in += static_cast<unsigned>(_mm_popcnt_u32(kept)) * kWord;
    }
    from = in;
    to += kBlock;
  }
}

MEMCFG_AVX512 void pack_avx512(const std::byte*& from,
                               const std::byte* last,
                               std::byte*& to,
                               const std::byte* end) {
  while (between(from, last) >= kBlock && between(to, end) >= kPackedBlock + kSlack) {
    const __m512i low = _mm512_loadu_si512(from);
    const __m512i high = _mm512_loadu_si512(from + kBlock / 2);
    const unsigned kept_low = _mm512_test_epi32_mask(low, low);
    const unsigned kept_high = _mm512_test_epi32_mask(high, high);
    store(to, kept_low | kept_high << 16);
    to += kMask;
    // To a register first: stored to memory, vpcompressd takes ten times as long on
    // some processors.
    const auto mask_low = static_cast<__mmask16>(kept_low);
    const auto mask_high = static_cast<__mmask16>(kept_high);
    _mm512_storeu_si512(to, _mm512_maskz_compress_epi32(mask_low, low));
    to += static_cast<unsigned>(_mm_popcnt_u32(kept_low)) * kWord;
    _mm512_storeu_si512(to, _mm512_maskz_compress_epi32(mask_high, high));
    to += static_cast<unsigned>(_mm_popcnt_u32(kept_high)) * kWord;
    from += kBlock;
  }
}

MEMCFG_AVX512 void unpack_avx512(const std::byte*& from,
                                 const std::byte* end,
                                 std::byte*& to,
                                 const std::byte* last) {
  while (between(to, last) >= kBlock && between(from, end) >= kPackedBlock + kSlack) {
    const std::uint32_t mask = load(from);
    const std::byte* in = from + kMask;
    const std::byte* next =
        in + static_cast<unsigned>(_mm_popcnt_u32(mask & 0xFFFF)) * kWord;
    const auto mask_low = static_cast<__mmask16>(mask & 0xFFFF);
    const auto mask_high = static_cast<__mmask16>(mask >> 16);
    _mm512_storeu_si512(to,
                        _mm512_maskz_expand_epi32(mask_low, _mm512_loadu_si512(in)));
    _mm512_storeu_si512(to + kBlock / 2,
                        _mm512_maskz_expand_epi32(mask_high, _mm512_loadu_si512(next)));
    from = next + static_cast<unsigned>(_mm_popcnt_u32(mask >> 16)) * kWord;
    to += kBlock;
  }
}
#endif

}  // namespace

const std::vector<Zvc::Loops>& Zvc::all_loops() {
  static const std::vector<Loops> loops{
      {Instructions::plain, pack_plain, unpack_plain},
#if MEMCFG_HAS_AVX
      {Instructions::avx2, pack_avx2, unpack_avx2},
      {Instructions::avx512, pack_avx512, unpack_avx512},
#endif
  };
  return loops;
}

std::optional<Bytes> Zvc::pack(Source given, Target room) const {
  const std::byte* from = given.from;
  const std::byte* const last = from + given.size;
  std::byte* to = room.to;
  const std::byte* const end = to + room.size;
  while (true) {
    loops_.pack(from, last, to, end);
    // One block with care: the last ones, and those near the end of the room.
    const Bytes words = std::min(between(from, last) / kWord, kWords);
    if (words == 0) break;
    std::uint32_t mask = 0;
    Bytes kept = 0;
    for (Bytes i = 0; i < words; ++i) {
      if (load(from + i * kWord) == 0) continue;
      mask |= std::uint32_t{1} << i;
      ++kept;
    }
    if (between(to, end) < kMask + kept * kWord) return std::nullopt;
    store(to, mask);
    to += kMask;
    for (Bytes i = 0; i < words; ++i, from += kWord) {
      if ((mask >> i & 1) == 0) continue;
      store(to, load(from));
      to += kWord;
    }
  }
  return between(room.to, to);
}

Bytes Zvc::unpack(Source code, Target given) const {
  const std::byte* from = code.from;
  const std::byte* const end = from + code.size;
  std::byte* to = given.to;
  const std::byte* const last = to + given.size;
  while (true) {
    loops_.unpack(from, end, to, last);
    const Bytes words = std::min(between(to, last) / kWord, kWords);
    if (words == 0) break;
    check_code(between(from, end) >= kMask);
    const std::uint32_t mask = load(from);
    from += kMask;
    check_code(words == kWords || mask >> words == 0);
    for (Bytes i = 0; i < words; ++i, to += kWord) {
      const bool kept = (mask >> i & 1) != 0;
      check_code(!kept || between(from, end) >= kWord);
      store(to, kept ? load(from) : 0);
      if (kept) from += kWord;
    }
  }
  return between(code.from, from);
}

namespace {

const Zvc kZvc{"zvc", widest(Zvc::all_loops())};
const CodecEntry kEntry{kZvc};

}  // namespace
}  // namespace memcfg
