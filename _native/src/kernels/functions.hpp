// Functions of single floats, made to be loops of vectors: no branches, no tables, no
// calls, no fused multiply-add. An element's bits depend on the element alone, whatever
// the width of the vectors and wherever the function is inlined. The polynomials are
// our own fits; tests/ops/test_expressions.py holds the errors against float64.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <type_traits>

#include "kernels/parallel.hpp"

namespace memcfg {

MEMCFG_INLINE std::uint32_t bits_of(float value) {
  std::uint32_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  return bits;
}

MEMCFG_INLINE float float_of(std::uint32_t bits) {
  float value;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

// All ones where it holds: as a float, how a condition lies in memory.
MEMCFG_INLINE std::uint32_t mask_of(bool condition) {
  return 0U - static_cast<std::uint32_t>(condition);
}

// One or the other, by their bits: a branch would keep the loop from being vectors.
MEMCFG_INLINE float blend(std::uint32_t mask, float yes, float no) {
  return float_of((mask & bits_of(yes)) | (~mask & bits_of(no)));
}
MEMCFG_INLINE float blend(bool condition, float yes, float no) {
  return blend(mask_of(condition), yes, no);
}

MEMCFG_INLINE float absolute_of(float x) {
  return float_of(bits_of(x) & 0x7FFFFFFFU);
}

MEMCFG_INLINE float sqrt_of(float x) {
  return std::sqrt(x);
}

MEMCFG_INLINE float with_sign_of(float magnitude, float sign) {
  return float_of(bits_of(magnitude) | (bits_of(sign) & 0x80000000U));
}

// A NaN wins, as in NumPy.
MEMCFG_INLINE float maximum_of(float a, float b) {
  return blend(mask_of(a > b) | mask_of(a != a), a, b);
}
MEMCFG_INLINE float minimum_of(float a, float b) {
  return blend(mask_of(a < b) | mask_of(a != a), a, b);
}

// The first 16 bits of a float. It is widened exactly, and rounded to the nearest, ties
// to even; a NaN stays one.
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

// An element as it is computed with, and as it is stored.
MEMCFG_INLINE float as_float(float value) {
  return value;
}
MEMCFG_INLINE float as_float(Bfloat16 value) {
  return widened(value);
}
template <class T>
MEMCFG_INLINE T stored_as(float value) {
  if constexpr (std::is_same_v<T, float>) {
    return value;
  } else {
    return rounded(value);
  }
}

// What kernels do to a result on the way, as memcfg/ops writes it: of a value, and the
// gradient before it by what came out or by what went in, which give the same bits.
struct Identity {
  static MEMCFG_INLINE float of(float x) { return x; }
  static MEMCFG_INLINE float gradient(float, float dy) { return dy; }
  template <class T>
  static MEMCFG_INLINE float gradient(const T*, const T* dy, Count i) {
    return as_float(dy[i]);
  }
};
struct Relu {
  static MEMCFG_INLINE float of(float x) {
    return blend(x < 0.0F, 0.0F, x);  // NaN stays NaN
  }
  static MEMCFG_INLINE float gradient(float y, float dy) {
    return blend(y > 0.0F, dy, 0.0F);
  }
  template <class T>
  static MEMCFG_INLINE float gradient(const T* y, const T* dy, Count i) {
    return gradient(as_float(y[i]), as_float(dy[i]));
  }
};
struct Relu6 {
  static MEMCFG_INLINE float of(float x) {
    return blend(x < 0.0F, 0.0F, blend(x > 6.0F, 6.0F, x));
  }
  static MEMCFG_INLINE float gradient(float y, float dy) {
    return blend(y > 0.0F, blend(y < 6.0F, dy, 0.0F), 0.0F);
  }
  template <class T>
  static MEMCFG_INLINE float gradient(const T* y, const T* dy, Count i) {
    return gradient(as_float(y[i]), as_float(dy[i]));
  }
};

inline constexpr float kLog2High = 0x1.62e4p-1F;          // log(2), of 15 bits
inline constexpr float kLog2Low = 0x1.7f7d1cp-20F;        // the rest of it
inline constexpr std::uint32_t kRootOfHalf = 0x3F3504F3;  // sqrt(1/2), as bits
inline constexpr float kInfinity = std::numeric_limits<float>::infinity();
inline constexpr float kRounding = 0x1.8p23F;  // adding it rounds to an integer

// e^x = 2^n e^r with |r| <= log(2) / 2. NaN stays NaN.
MEMCFG_INLINE float exp_of(float x) {
  const float capped = blend(x > 89.0F, 89.0F, blend(x < -104.0F, -104.0F, x));
  const float shifted = capped * 1.44269504F + kRounding;
  const float n = shifted - kRounding;
  const float r = (capped - n * kLog2High) - n * kLog2Low;
  const float q =
      0.5F + r * (0.166665182F +
                  r * (0.041666206F + r * (0.00836888794F + r * 0.00139504857F)));
  const float p = 1.0F + (r + r * r * q);
  // 2^n in two factors, since it may lie below or above what one can be
  const auto whole = static_cast<std::int32_t>(bits_of(shifted) - bits_of(kRounding));
  const std::int32_t half = whole >> 1;
  const auto power = [](std::int32_t exponent) {
    return float_of(static_cast<std::uint32_t>(exponent + 127) << 23);
  };
  return p * power(half) * power(whole - half);
}

// x = 2^e (1 + f) with 1 + f in [sqrt(1/2), sqrt(2)).
MEMCFG_INLINE float log_of(float x) {
  const bool tiny = x < 0x1p-126F;  // also below 0, where the result is NaN
  const std::uint32_t bits = bits_of(blend(tiny, x * 0x1p23F, x)) - kRootOfHalf;
  const float f = float_of((bits & 0x007FFFFFU) + kRootOfHalf) - 1.0F;
  const float e = static_cast<float>(static_cast<std::int32_t>(bits) >> 23) -
                  blend(tiny, 23.0F, 0.0F);
  const float q = 0.333333164F +
                  f * (-0.250008106F +
                       f * (0.200022802F +
                            f * (-0.166245207F +
                                 f * (0.141813099F +
                                      f * (-0.131292373F +
                                           f * (0.128809616F + f * -0.0785731077F))))));
  const float square = f * f;
  const float low = f * square * q - 0.5F * square + e * kLog2Low;
  const float value = e * kLog2High + (f + low);
  const float known = blend(x == kInfinity, x, value);
  const float positive = blend(x == 0.0F, -kInfinity, known);
  return blend(x >= 0.0F, positive, float_of(0x7FC00000U));
}

MEMCFG_INLINE float tanh_of(float x) {
  const float a = absolute_of(x), z = x * x;
  const float near =
      -0.333332837F +
      z * (0.133314908F +
           z * (-0.0537434965F + z * (0.0206505787F + z * -0.00571703631F)));
  const float far = 1.0F - 2.0F / (exp_of(a + a) + 1.0F);
  return blend(a < 0.625F, x + x * z * near, with_sign_of(far, x));
}

MEMCFG_INLINE float sigmoid_of(float x) {
  return 1.0F / (1.0F + exp_of(-x));
}

MEMCFG_INLINE float erf_of(float x) {
  const float a = absolute_of(x), z = x * x;
  const float near =
      0.128379166F +
      z * (-0.37612626F +
           z * (0.112836003F + z * (-0.0268544443F +
                                    z * (0.00518953521F + z * (-0.000802084105F +
                                                               z * 7.8891193e-05F)))));
  const float b = blend(a > 4.0F, 4.0F, a);  // where it rounds to 1
  const float far =
      1.0F - exp_of(-(0.000353708921F +
                      b * (1.12704003F +
                           b * (0.638225615F +
                                b * (0.103037439F + b * (-0.0218053516F +
                                                         b * (0.00293961586F +
                                                              b * -0.0001855749F)))))));
  return blend(a < 1.0F, x + x * near, with_sign_of(far, x));
}

// What is left of x when y is taken off as often as it fits; exact, as C's.
MEMCFG_INLINE float fmod_of(float x, float y) {
  return std::fmod(x, y);
}

MEMCFG_INLINE float floor_of(float x) {
  const float a = absolute_of(x);
  // adding 2^23 rounds to an integer; from there on every float is one
  const float nearest = with_sign_of((a + 0x1p23F) - 0x1p23F, x);
  const float below = blend(nearest > x, nearest - 1.0F, nearest);
  return blend(a < 0x1p23F, below, x);
}

// sin(x + quarters pi / 2) = sin(r + n pi / 2) with |r| <= pi / 4. The products of n
// and the first two parts of pi / 2, of 25 bits each, are exact below |x| = 2^28.
// Above, r is capped: neighbouring floats are then many periods apart.
MEMCFG_INLINE float sine_of(float x, std::uint32_t quarters) {
  const double wide = static_cast<double>(x);
  const double shifted = wide * 0.63661977236758134 + 0x1.8p52;  // rounds to an integer
  const double n = shifted - 0x1.8p52;
  std::uint64_t whole;
  std::memcpy(&whole, &shifted, sizeof whole);
  const double rest = ((wide - n * 0x1.921fb50000000p+0) - n * 0x1.110b460000000p-26) -
                      n * 0x1.1a62633145c06p-54;
  const auto near = static_cast<float>(rest);
  const float r = blend(near > 0.8F, 0.8F, blend(near < -0.8F, -0.8F, near));
  const std::uint32_t turn = static_cast<std::uint32_t>(whole) + quarters;
  const float z = r * r;
  const float sine =
      r + r * z *
              (-0.166666672F +
               z * (0.00833333191F + z * (-0.000198400579F + z * 2.72464536e-06F)));
  const float cosine =
      (1.0F - 0.5F * z) +
      z * z *
          (0.0416666679F +
           z * (-0.00138888787F + z * (2.47957947e-05F + z * -2.67327729e-07F)));
  const float value = blend((turn & 1U) != 0, cosine, sine);
  return blend((turn & 2U) != 0, -value, value);
}
MEMCFG_INLINE float sin_of(float x) {
  return sine_of(x, 0);
}
MEMCFG_INLINE float cos_of(float x) {
  return sine_of(x, 1);
}

// atan(a) = pi / 2 - atan(1 / a), and atan(b) = pi / 4 + atan((b - 1) / (b + 1)).
MEMCFG_INLINE float atan_of(float x) {
  const float a = absolute_of(x);
  const bool above = a > 1.0F;
  const float b = blend(above, 1.0F / a, a);
  const bool far = b > 0.414213568F;  // tan(pi / 8)
  const float c = blend(far, (b - 1.0F) / (b + 1.0F), b), z = c * c;
  const float series =
      c + c * z *
              (-0.333333313F +
               z * (0.199995399F +
                    z * (-0.142638713F + z * (0.107421376F + z * -0.0644484386F))));
  const float part = blend(far, 0.785398163F + series, series);
  const float value = blend(above, 1.57079633F - part, part);
  return with_sign_of(value, x);
}

}  // namespace memcfg
