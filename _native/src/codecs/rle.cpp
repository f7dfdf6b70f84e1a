#include "codecs/rle.hpp"

#include <algorithm>

namespace memcfg {
namespace {

constexpr Bytes kHead = 4;           // bytes
constexpr Bytes kLeast = 4;          // words of a run
constexpr Bytes kMost = 0x7FFFFFFF;  // words of a record
constexpr std::uint32_t kRun = 0x80000000;

const std::byte* find_run_plain(const std::byte* from, const std::byte* last) {
  Bytes equal = 1;  // words up to `from`
  for (const std::byte* next = from + kWord; next < last; next += kWord) {
    equal = load(next) == load(next - kWord) ? equal + 1 : 1;
    if (equal == kLeast) return next - (kLeast - 1) * kWord;
  }
  return last;
}

const std::byte* find_end_plain(const std::byte* from, const std::byte* last) {
  const std::uint32_t value = load(from);
  while (from < last && load(from) == value) from += kWord;
  return from;
}

#if MEMCFG_HAS_AVX
MEMCFG_AVX2 inline __m256i load8(const std::byte* from) {
  return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from));
}
MEMCFG_AVX2 inline unsigned mask8(__m256i equal) {
  return static_cast<unsigned>(_mm256_movemask_ps(_mm256_castsi256_ps(equal)));
}

MEMCFG_AVX2 const std::byte* find_run_avx2(const std::byte* from,
                                           const std::byte* last) {
  while (between(from, last) >= (8 + kLeast - 1) * kWord) {
    const __m256i word = load8(from);
    const __m256i first = _mm256_cmpeq_epi32(word, load8(from + kWord));
    const __m256i second = _mm256_cmpeq_epi32(word, load8(from + 2 * kWord));
    const __m256i third = _mm256_cmpeq_epi32(word, load8(from + 3 * kWord));
    const unsigned runs =
        mask8(_mm256_and_si256(_mm256_and_si256(first, second), third));
    if (runs != 0) return from + static_cast<unsigned>(__builtin_ctz(runs)) * kWord;
    from += 8 * kWord;
  }
  return from < last ? find_run_plain(from, last) : last;
}

MEMCFG_AVX2 const std::byte* find_end_avx2(const std::byte* from,
                                           const std::byte* last) {
  const std::uint32_t value = load(from);
  const __m256i values = _mm256_set1_epi32(static_cast<int>(value));
  while (between(from, last) >= 8 * kWord) {
    const unsigned others = mask8(_mm256_cmpeq_epi32(load8(from), values)) ^ 0xFF;
    if (others != 0) return from + static_cast<unsigned>(__builtin_ctz(others)) * kWord;
    from += 8 * kWord;
  }
  while (from < last && load(from) == value) from += kWord;
  return from;
}

MEMCFG_AVX512 const std::byte* find_run_avx512(const std::byte* from,
                                               const std::byte* last) {
  while (between(from, last) >= (16 + kLeast - 1) * kWord) {
    const __m512i word = _mm512_loadu_si512(from);
    __mmask16 runs = _mm512_cmpeq_epi32_mask(word, _mm512_loadu_si512(from + kWord));
    runs =
        _mm512_mask_cmpeq_epi32_mask(runs, word, _mm512_loadu_si512(from + 2 * kWord));
    runs =
        _mm512_mask_cmpeq_epi32_mask(runs, word, _mm512_loadu_si512(from + 3 * kWord));
    if (runs != 0) return from + static_cast<unsigned>(__builtin_ctz(runs)) * kWord;
    from += 16 * kWord;
  }
  return from < last ? find_run_plain(from, last) : last;
}

MEMCFG_AVX512 const std::byte* find_end_avx512(const std::byte* from,
                                               const std::byte* last) {
  const std::uint32_t value = load(from);
  const __m512i values = _mm512_set1_epi32(static_cast<int>(value));
  while (between(from, last) >= 16 * kWord) {
    const unsigned others = _mm512_cmpneq_epi32_mask(_mm512_loadu_si512(from), values);
    if (others != 0) return from + static_cast<unsigned>(__builtin_ctz(others)) * kWord;
    from += 16 * kWord;
  }
  while (from < last && load(from) == value) from += kWord;
  return from;
}
#endif

}  // namespace

const std::vector<Rle::Loops>& Rle::all_loops() {
  static const std::vector<Loops> loops{
      {Instructions::plain, find_run_plain, find_end_plain},
#if MEMCFG_HAS_AVX
      {Instructions::avx2, find_run_avx2, find_end_avx2},
      {Instructions::avx512, find_run_avx512, find_end_avx512},
#endif
  };
  return loops;
}

std::optional<Bytes> Rle::pack(Source given, Target room) const {
  const std::byte* from = given.from;
  const std::byte* const last = from + given.size;
  std::byte* to = room.to;
  const std::byte* const end = to + room.size;
  while (from < last) {
    const std::byte* const run = loops_.find_run(from, last);
    while (from < run) {
      const Bytes words = std::min(between(from, run) / kWord, kMost);
      if (between(to, end) < kHead + words * kWord) return std::nullopt;
      store(to, static_cast<std::uint32_t>(words));
      std::memcpy(to + kHead, from, words * kWord);
      to += kHead + words * kWord;
      from += words * kWord;
    }
    if (run == last) break;
    const std::byte* const behind = loops_.find_end(run, last);
    while (from < behind) {
      const Bytes words = std::min(between(from, behind) / kWord, kMost);
      if (between(to, end) < kHead + kWord) return std::nullopt;
      store(to, static_cast<std::uint32_t>(words) | kRun);
      store(to + kHead, load(run));
      to += kHead + kWord;
      from += words * kWord;
    }
  }
  return between(room.to, to);
}

Bytes Rle::unpack(Source code, Target given) const {
  const std::byte* from = code.from;
  const std::byte* const end = from + code.size;
  std::byte* to = given.to;
  const std::byte* const last = to + given.size;
  while (to < last) {
    check_code(between(from, end) >= kHead + kWord);  // no record is shorter
    const std::uint32_t head = load(from);
    const Bytes bytes = Bytes{head & ~kRun} * kWord;
    from += kHead;
    check_code(bytes > 0 && bytes <= between(to, last));
    if ((head & kRun) != 0) {
      const std::uint32_t value = load(from);
      from += kWord;
      for (Bytes i = 0; i < bytes; i += kWord) store(to + i, value);
    } else {
      check_code(bytes <= between(from, end));
      std::memcpy(to, from, bytes);
      from += bytes;
    }
    to += bytes;
  }
  return between(code.from, from);
}

namespace {

const Rle kRle{"rle", widest(Rle::all_loops())};
const CodecEntry kEntry{kRle};

}  // namespace
}  // namespace memcfg
