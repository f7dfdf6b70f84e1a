// bfloat16: the first 16 bits of a float. It is widened exactly, and rounded to the
// nearest, ties to even; a NaN stays one.
#pragma once

#include <cstdint>

#include "kernels/functions.hpp"

namespace memcfg {

struct Bfloat16 {
  std::uint16_t bits;
};

MEMCFG_INLINE float widened(Bfloat16 value) {
  return float_of(static_cast<std::uint32_t>(value.bits) << 16);
}

MEMCFG_INLINE Bfloat16 rounded(float value) {
  const std::uint32_t bits = bits_of(value);
  const std::uint32_t nearest = bits + 0x7FFFU + ((bits >> 16) & 1U);
  const std::uint32_t nan = mask_of(value != value);
  const std::uint32_t found = (nan & (bits | 0x400000U)) | (~nan & nearest);
  return {static_cast<std::uint16_t>(found >> 16)};
}

// Copies of `count` elements, on this thread.
void widen(const Bfloat16* from, Count count, float* to) noexcept;
void round(const float* from, Count count, Bfloat16* to) noexcept;

// Floats as they are read and written in blocks that stay in the first-level cache:
// those of float32 where they lie, those of bfloat16 in a buffer.
inline constexpr Count kWidenedMost = 2048;  // elements of a buffer

template <class T>
class Widened;

template <>
class Widened<float> {
 public:
  static MEMCFG_INLINE const float* read(const float* from, Count, float*) {
    return from;
  }
  static MEMCFG_INLINE float* target(float* to, float*) { return to; }
  static MEMCFG_INLINE void write(float*, Count, const float*) {}
};

template <>
class Widened<Bfloat16> {
 public:
  static MEMCFG_INLINE const float* read(const Bfloat16* from,
                                         Count count,
                                         float* buffer) {
    widen(from, count, buffer);
    return buffer;
  }
  static MEMCFG_INLINE float* target(Bfloat16*, float* buffer) { return buffer; }
  static MEMCFG_INLINE void write(Bfloat16* to, Count count, const float* buffer) {
    round(buffer, count, to);
  }
};

}  // namespace memcfg
