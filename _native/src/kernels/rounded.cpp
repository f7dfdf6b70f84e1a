#include "kernels/rounded.hpp"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>

namespace memcfg {

namespace {

constexpr float kLargest = 127;

}  // namespace

Rounding Extremes::rounding() const {
  float largest;
  std::memcpy(&largest, &most, sizeof largest);
  if (!std::isfinite(largest)) return {0, std::numeric_limits<float>::quiet_NaN()};
  const float factor = largest > 0 ? kLargest / largest : 0.0F;
  if (!std::isfinite(factor) || factor == 0.0F) return {0, 0};
  return {factor, largest / kLargest};
}

void Extremes::include(const Extremes& other) {
  most = std::max(most, other.most);
  negative = negative || other.negative;
}

// The bits of magnitudes have their order, as integers.
MEMCFG_VECTORIZED Extremes extremes_of(const float* x, Count count) {
  constexpr std::uint32_t kSign = 0x80000000;
  std::uint32_t most = 0, signs = 0;
  for (Count i = 0; i < count; ++i) {
    std::uint32_t bits;
    std::memcpy(&bits, x + i, sizeof bits);
    most = std::max(most, bits & ~kSign);
    signs |= bits;
  }
  return {most, (signs & kSign) != 0};
}

MEMCFG_VECTORIZED void round_to_integers(
    const float* x, Count count, float factor, Magnitudes which, std::int8_t* to) {
  if (factor == 0.0F) {
    std::fill_n(to, count, std::int8_t{0});
    return;
  }
  if (which == Magnitudes::of_all) {
    for (Count i = 0; i < count; ++i) {
      to[i] = static_cast<std::int8_t>(std::nearbyintf(x[i] * factor));
    }
    return;
  }
  const float own = which == Magnitudes::of_negative ? -factor : factor;
  for (Count i = 0; i < count; ++i) {
    to[i] = static_cast<std::int8_t>(std::max(std::nearbyintf(x[i] * own), 0.0F));
  }
}

bool find_roundings(const float* x, Count rows, Count columns, Rounding* to) {
  std::atomic<bool> negative{false};
  parallel_for(rows, rows * columns, [=, &negative](Count row) {
    const Extremes found = extremes_of(x + row * columns, columns);
    to[row] = found.rounding();
    if (found.negative) negative.store(true, std::memory_order_relaxed);
  });
  return negative;
}

void round_rows(const float* x,
                Count rows,
                Count columns,
                const Rounding* of_rows,
                Magnitudes which,
                std::int8_t* to) {
  parallel_for(rows, rows * columns, [=](Count row) {
    const Count begin = row * columns;
    round_to_integers(x + begin, columns, of_rows[row].factor, which, to + begin);
  });
}

bool multiplies_signed(const OneDnn& library) {
  return library.has_int8_products();
}

MEMCFG_VECTORIZED void add_integer_products(const std::int8_t* x,
                                            Count x_row,
                                            const std::int8_t* kernel,
                                            Count m,
                                            Count k,
                                            Count n,
                                            Count count,
                                            std::int32_t* sums,
                                            Count sums_row) {
  for (Count i = 0; i < k; i += 2) {
    const std::int8_t* const first = kernel + i * n;
    const std::int8_t* const second = i + 1 < k ? first + n : first;
    for (Count row = 0; row < m; ++row) {
      const std::int16_t a = x[row * x_row + i];
      const std::int16_t b = i + 1 < k ? x[row * x_row + i + 1] : 0;
      std::int32_t* const to = sums + row * sums_row;
      MEMCFG_INDEPENDENT
      for (Count j = 0; j < count; ++j) {
        to[j] += static_cast<std::int16_t>(a * first[j] + b * second[j]);
      }
    }
  }
}

MEMCFG_VECTORIZED void subtract_sums(const std::int32_t* from,
                                     std::int32_t* sums,
                                     Count count) {
  MEMCFG_INDEPENDENT
  for (Count i = 0; i < count; ++i) sums[i] -= from[i];
}

MEMCFG_VECTORIZED void scale_sums(
    float scale, const float* scales, Count rows, Count columns, float* y) {
  const auto* const sums = reinterpret_cast<const std::int32_t*>(y);
  for (Count row = 0; row < rows; ++row) {
    const Count begin = row * columns;
    MEMCFG_INDEPENDENT
    for (Count i = 0; i < columns; ++i) {
      y[begin + i] = static_cast<float>(sums[begin + i]) * scale * scales[i];
    }
  }
}

}  // namespace memcfg
