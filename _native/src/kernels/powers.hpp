// Powers of single floats, and exponentials and logarithms near 1, which few kernels
// read: functions as those of functions.hpp are.
#pragma once

#include <cstdint>
#include <cstring>

#include "kernels/functions.hpp"

namespace memcfg {

// Kahan: the errors of 1 + x and of its logarithm cancel in the quotient.
MEMCFG_INLINE float log1p_of(float x) {
  const float u = 1.0F + x;
  const float value = log_of(u) * (x / (u - 1.0F));
  return blend(u == 1.0F, x, blend(u == kInfinity, u, value));
}

MEMCFG_INLINE float expm1_of(float x) {
  const float u = exp_of(x), minus1 = u - 1.0F;
  const float near = blend(u == 1.0F, x, minus1 * x / log_of(u));
  return blend(absolute_of(x) > 0.5F, minus1, near);
}

MEMCFG_INLINE std::uint64_t bits_of(double value) {
  std::uint64_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  return bits;
}

MEMCFG_INLINE double double_of(std::uint64_t bits) {
  double value;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

// log2(x) for 0 < x < infinity, to 2^-38 of itself: by the series of the inverse
// hyperbolic tangent, for x = 2^e m with m in [sqrt(1/2), sqrt(2)).
MEMCFG_INLINE double log2_of(float x) {
  const bool tiny = x < 0x1p-126F;
  const std::uint32_t bits = bits_of(blend(tiny, x * 0x1p23F, x)) - kRootOfHalf;
  const double m = static_cast<double>(float_of((bits & 0x007FFFFFU) + kRootOfHalf));
  const float e = static_cast<float>(static_cast<std::int32_t>(bits) >> 23) -
                  blend(tiny, 23.0F, 0.0F);
  const double s = (m - 1.0) / (m + 1.0), z = s * s;
  const double series =
      1.0 +
      z * (1.0 / 3 +
           z * (1.0 / 5 + z * (1.0 / 7 + z * (1.0 / 9 + z * (1.0 / 11 + z / 13)))));
  return static_cast<double>(e) + 2.8853900817779268 * s * series;  // 2 / log(2)
}

// 2^x to 2^-33 of itself, rounded once.
MEMCFG_INLINE float exp2_of(double x) {
  const double shifted = x + 0x1.8p52;  // which rounds to an integer
  const double r = (x - (shifted - 0x1.8p52)) * 0.69314718055994531;  // log(2)
  const double p =
      1.0 +
      r * (1.0 + r * (1.0 / 2 +
                      r * (1.0 / 6 +
                           r * (1.0 / 24 +
                                r * (1.0 / 120 + r * (1.0 / 720 + r * (1.0 / 5040 +
                                                                       r / 40320)))))));
  const double power = double_of((bits_of(shifted) + 1023) << 52);
  const float narrow = static_cast<float>(x);  // beyond what a float can be
  const float low = blend(narrow < -152.0F, 0.0F, static_cast<float>(p * power));
  return blend(narrow > 129.0F, kInfinity, low);
}

// Whether 0 <= x < 2^23 is whole.
MEMCFG_INLINE std::uint32_t whole_mask(float x) {
  return mask_of((x + 0x1p23F) - 0x1p23F == x);
}

// x^y as `pow` of C has it, and NumPy: 1 where y is 0 or x is 1, also beside NaN; NaN
// below 0 unless y is whole. In double precision, so that an error is of rounding.
MEMCFG_INLINE float power_of(float x, float y) {
  const float a = absolute_of(x), large = absolute_of(y);
  const std::uint32_t whole = whole_mask(large) | mask_of(large >= 0x1p23F);
  const std::uint32_t odd =
      whole & ~whole_mask(0.5F * large) & mask_of(large < 0x1p24F);
  const std::uint32_t rises = mask_of(y > 0.0F);
  const float made = exp2_of(static_cast<double>(y) * log2_of(a));
  const float low = blend(a == 0.0F, blend(rises, 0.0F, kInfinity), made);
  const float high = blend(a == kInfinity, blend(rises, kInfinity, 0.0F), low);
  const float one = blend(a == 1.0F, 1.0F, high);
  const float size = blend(mask_of(x != x) | mask_of(y != y), x + y, one);
  const float sign = blend(odd, x, 0.0F);
  const std::uint32_t none = mask_of(x < 0.0F) & mask_of(a < kInfinity) & ~whole;
  const float value = blend(none, float_of(0x7FC00000U), with_sign_of(size, sign));
  return blend(mask_of(y == 0.0F) | mask_of(x == 1.0F), 1.0F, value);
}

}  // namespace memcfg
