#include "codecs/csr.hpp"

#include <algorithm>

namespace memcfg {
namespace {

constexpr Bytes kEnd = 4;                 // bytes
constexpr Bytes kColumns = 256;           // of a row
constexpr Bytes kRow = kColumns * kWord;  // bytes
constexpr Bytes kMost = 0xFFFFFFFF;       // values

Bytes count_plain(const std::byte* from, Bytes words) {
  Bytes kept = 0;
  for (Bytes i = 0; i < words; ++i) kept += load(from + i * kWord) != 0;
  return kept;
}

// Without a branch: each word is written where the next one that is kept belongs.
void pack_plain(const std::byte*& from,
                const std::byte* last,
                std::byte*& values,
                const std::byte* values_end,
                std::byte*& columns,
                const std::byte* columns_end) {
  while (between(from, last) >= kRow && between(values, values_end) >= kRow &&
         between(columns, columns_end) >= kColumns) {
    for (unsigned i = 0; i < kColumns; ++i) {
      const std::uint32_t word = load(from + i * kWord);
      const unsigned kept = word != 0;
      store(values, word);
      *columns = static_cast<std::byte>(i);
      values += kept * kWord;
      columns += kept;
    }
    from += kRow;
  }
}

#if MEMCFG_HAS_AVX
// A register is written whole behind the last kept word, and column.
constexpr Bytes kSlack = 64;  // bytes

MEMCFG_AVX2 Bytes count_avx2(const std::byte* from, Bytes words) {
  Bytes kept = 0, i = 0;
  for (; i + 8 <= words; i += 8) {
    const auto* eight = reinterpret_cast<const __m256i*>(from + i * kWord);
    const __m256i zero =
        _mm256_cmpeq_epi32(_mm256_loadu_si256(eight), _mm256_setzero_si256());
    const auto lost =
        static_cast<unsigned>(_mm256_movemask_ps(_mm256_castsi256_ps(zero)));
    kept += static_cast<unsigned>(_mm_popcnt_u32(~lost & 0xFF));
  }
  return kept + count_plain(from + i * kWord, words - i);
}

MEMCFG_AVX2 void pack_avx2(const std::byte*& from,
                           const std::byte* last,
                           std::byte*& values,
                           const std::byte* values_end,
                           std::byte*& columns,
                           const std::byte* columns_end) {
  while (between(from, last) >= kRow && between(values, values_end) >= kRow + kSlack &&
         between(columns, columns_end) >= kColumns + kSlack) {
    for (unsigned i = 0; i < kColumns; i += 8) {
      const auto* words = reinterpret_cast<const __m256i*>(from + i * kWord);
      const __m256i word = _mm256_loadu_si256(words);
      const __m256i zero = _mm256_cmpeq_epi32(word, _mm256_setzero_si256());
      const auto lost =
          static_cast<unsigned>(_mm256_movemask_ps(_mm256_castsi256_ps(zero)));
      const unsigned kept = ~lost & 0xFF;
      const __m128i places = row_of(kPlaces, kept);
      _mm256_storeu_si256(
          reinterpret_cast<__m256i*>(values),
          _mm256_permutevar8x32_epi32(word, _mm256_cvtepi8_epi32(places)));
      _mm_storel_epi64(reinterpret_cast<__m128i*>(columns),
                       _mm_add_epi8(places, _mm_set1_epi8(static_cast<char>(i))));
      const auto count = static_cast<unsigned>(_mm_popcnt_u32(kept));
      values += count * kWord;
      columns += count;
    }
    from += kRow;
  }
}

MEMCFG_AVX512 Bytes count_avx512(const std::byte* from, Bytes words) {
  Bytes kept = 0, i = 0;
  for (; i + 16 <= words; i += 16) {
    const __m512i word = _mm512_loadu_si512(from + i * kWord);
    kept += static_cast<unsigned>(_mm_popcnt_u32(_mm512_test_epi32_mask(word, word)));
  }
  return kept + count_plain(from + i * kWord, words - i);
}

MEMCFG_AVX512 void pack_avx512(const std::byte*& from,
                               const std::byte* last,
                               std::byte*& values,
                               const std::byte* values_end,
                               std::byte*& columns,
                               const std::byte* columns_end) {
  const __m512i step = _mm512_set1_epi32(16);
  while (between(from, last) >= kRow && between(values, values_end) >= kRow + kSlack &&
         between(columns, columns_end) >= kColumns + kSlack) {
    __m512i column =
        _mm512_set_epi32(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0);
    for (unsigned i = 0; i < kColumns; i += 16) {
      const __m512i word = _mm512_loadu_si512(from + i * kWord);
      const __mmask16 kept = _mm512_test_epi32_mask(word, word);
      _mm512_storeu_si512(values, _mm512_maskz_compress_epi32(kept, word));
      _mm_storeu_si128(reinterpret_cast<__m128i*>(columns),
                       _mm512_cvtepi32_epi8(_mm512_maskz_compress_epi32(kept, column)));
      const auto count = static_cast<unsigned>(_mm_popcnt_u32(kept));
      values += count * kWord;
      columns += count;
      column = _mm512_add_epi32(column, step);
    }
    from += kRow;
  }
}
#endif

}  // namespace

const std::vector<Csr::Loops>& Csr::all_loops() {
  static const std::vector<Loops> loops{
      {Instructions::plain, count_plain, pack_plain},
#if MEMCFG_HAS_AVX
      {Instructions::avx2, count_avx2, pack_avx2},
      {Instructions::avx512, count_avx512, pack_avx512},
#endif
  };
  return loops;
}

std::optional<Bytes> Csr::pack(Source given, Target room) const {
  const std::byte* from = given.from;
  std::byte* const to = room.to;
  const Bytes words = given.size / kWord;
  const Bytes rows = (words + kColumns - 1) / kColumns;
  if (room.size < rows * kEnd) return std::nullopt;
  const Bytes most = (room.size - rows * kEnd) / (kWord + 1);
  Bytes kept = 0;
  for (Bytes row = 0; row < rows; ++row) {
    const Bytes begin = row * kColumns;
    kept += loops_.count(from + begin * kWord, std::min(kColumns, words - begin));
    if (kept > std::min(most, kMost)) return std::nullopt;
    store(to + row * kEnd, static_cast<std::uint32_t>(kept));
  }
  std::byte* values = to + rows * kEnd;
  std::byte* columns = values + kept * kWord;
  const std::byte* const values_end = columns;
  const std::byte* const columns_end = columns + kept;
  const std::byte* const last = from + words * kWord;
  while (true) {
    loops_.pack(from, last, values, values_end, columns, columns_end);
    // One row with care: the last ones, whose values end where columns begin.
    const Bytes left = std::min(between(from, last) / kWord, kColumns);
    if (left == 0) break;
    for (Bytes i = 0; i < left; ++i, from += kWord) {
      if (load(from) == 0) continue;
      store(values, load(from));
      *columns++ = static_cast<std::byte>(i);
      values += kWord;
    }
  }
  return rows * kEnd + kept * (kWord + 1);
}

Bytes Csr::unpack(Source code, Target given) const {
  const std::byte* const from = code.from;
  std::byte* const to = given.to;
  const Bytes words = given.size / kWord;
  const Bytes rows = (words + kColumns - 1) / kColumns;
  check_code(code.size >= rows * kEnd);
  const Bytes kept = rows > 0 ? load(from + (rows - 1) * kEnd) : 0;
  check_code(kept <= (code.size - rows * kEnd) / (kWord + 1));
  const std::byte* const values = from + rows * kEnd;
  const std::byte* const columns = values + kept * kWord;
  Bytes begin = 0;
  for (Bytes row = 0; row < rows; ++row) {
    const Bytes end = load(from + row * kEnd);
    const Bytes width = std::min(kColumns, words - row * kColumns);
    check_code(begin <= end && end <= kept);
    std::byte* const out = to + row * kRow;
    std::memset(out, 0, width * kWord);
    for (Bytes i = begin; i < end; ++i) {
      const auto column = static_cast<Bytes>(columns[i]);
      check_code(column < width);
      std::memcpy(out + column * kWord, values + i * kWord, kWord);
    }
    begin = end;
  }
  return rows * kEnd + kept * (kWord + 1);
}

namespace {

const Csr kCsr{"csr", widest(Csr::all_loops())};
const CodecEntry kEntry{kCsr};

}  // namespace
}  // namespace memcfg
