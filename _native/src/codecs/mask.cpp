#include "codecs/mask.hpp"

namespace memcfg {
namespace {

constexpr std::uint32_t kOne = 0x3F800000;  // 1.0F
constexpr std::uint32_t kInfinity = 0x7F800000;

// By its bits: neither -0.0 nor a negative number nor NaN is positive.
unsigned is_positive(std::uint32_t bits) noexcept {
  return bits - 1 < kInfinity;
}

void write_plain(const std::byte* from, Bytes eights, std::byte* to) {
  for (Bytes i = 0; i < eights; ++i, from += 8 * kWord) {
    unsigned mask = 0;
    for (unsigned bit = 0; bit < 8; ++bit) {
      mask |= is_positive(load(from + bit * kWord)) << bit;
    }
    to[i] = static_cast<std::byte>(mask);
  }
}

void read_plain(const std::byte* from, Bytes eights, std::byte* to) {
  for (Bytes i = 0; i < eights; ++i, to += 8 * kWord) {
    const auto mask = static_cast<unsigned>(from[i]);
    for (unsigned bit = 0; bit < 8; ++bit) {
      store(to + bit * kWord, (0 - (mask >> bit & 1)) & kOne);
    }
  }
}

#if MEMCFG_HAS_AVX
MEMCFG_AVX2 void write_avx2(const std::byte* from, Bytes eights, std::byte* to) {
  for (Bytes i = 0; i < eights; ++i, from += 8 * kWord) {
    const __m256 numbers = _mm256_loadu_ps(reinterpret_cast<const float*>(from));
    const __m256 positive = _mm256_cmp_ps(numbers, _mm256_setzero_ps(), _CMP_GT_OQ);
    to[i] = static_cast<std::byte>(_mm256_movemask_ps(positive));
  }
}

MEMCFG_AVX2 void read_avx2(const std::byte* from, Bytes eights, std::byte* to) {
  const __m256i bits = _mm256_setr_epi32(1, 2, 4, 8, 16, 32, 64, 128);
  const __m256i one = _mm256_set1_epi32(static_cast<int>(kOne));
  for (Bytes i = 0; i < eights; ++i, to += 8 * kWord) {
    const __m256i mask = _mm256_set1_epi32(static_cast<int>(from[i]));
    const __m256i set = _mm256_cmpeq_epi32(_mm256_and_si256(mask, bits), bits);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), _mm256_and_si256(set, one));
  }
}

MEMCFG_AVX512 void write_avx512(const std::byte* from, Bytes eights, std::byte* to) {
  for (; eights >= 2; eights -= 2, from += 16 * kWord, to += 2) {
    const __mmask16 positive =
        _mm512_cmp_ps_mask(_mm512_loadu_ps(from), _mm512_setzero_ps(), _CMP_GT_OQ);
    std::memcpy(to, &positive, 2);
  }
  write_plain(from, eights, to);
}

MEMCFG_AVX512 void read_avx512(const std::byte* from, Bytes eights, std::byte* to) {
  const __m512i one = _mm512_set1_epi32(static_cast<int>(kOne));
  for (; eights >= 2; eights -= 2, from += 2, to += 16 * kWord) {
    __mmask16 mask;
    std::memcpy(&mask, from, 2);
    _mm512_storeu_si512(to, _mm512_maskz_mov_epi32(mask, one));
  }
  read_plain(from, eights, to);
}
#endif

}  // namespace

const std::vector<Mask::Loops>& Mask::all_loops() {
  static const std::vector<Loops> loops{
      {Instructions::plain, write_plain, read_plain},
#if MEMCFG_HAS_AVX
      {Instructions::avx2, write_avx2, read_avx2},
      {Instructions::avx512, write_avx512, read_avx512},
#endif
  };
  return loops;
}

void Mask::write(const std::byte* from, Bytes words, std::byte* to) const {
  const Bytes eights = words / 8, rest = words % 8;
  loops_.write(from, eights, to);
  if (rest == 0) return;
  std::byte last[8 * kWord] = {};
  copy_bytes(last, from + eights * 8 * kWord, rest * kWord);
  write_plain(last, 1, to + eights);
}

void Mask::read(const std::byte* from, Bytes words, std::byte* to) const {
  const Bytes eights = words / 8, rest = words % 8;
  loops_.read(from, eights, to);
  if (rest == 0) return;
  std::byte last[8 * kWord];
  read_plain(from + eights, 1, last);
  copy_bytes(to + eights * 8 * kWord, last, rest * kWord);
}

namespace {

const Mask kMask{"mask", widest(Mask::all_loops())};
const CodecEntry kEntry{kMask};

}  // namespace
}  // namespace memcfg
