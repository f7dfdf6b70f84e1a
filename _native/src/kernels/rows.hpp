// The greatest element of a row and a sum over it, in interleaved lanes: loops of
// vectors whose order of additions depends on the row's length alone.
#pragma once

#include "kernels/functions.hpp"

namespace memcfg {

inline constexpr Count kLanes = 16;  // partial results of a row

// Of n >= 1 elements; a NaN wins.
MEMCFG_INLINE float greatest(const float* x, Count n) {
  float lanes[kLanes];
  for (Count i = 0; i < kLanes; ++i) lanes[i] = x[0];
  const Count whole = n / kLanes * kLanes;
  for (Count j = 0; j < whole; j += kLanes) {
    MEMCFG_INDEPENDENT
    for (Count i = 0; i < kLanes; ++i) lanes[i] = maximum_of(lanes[i], x[j + i]);
  }
  for (Count j = whole; j < n; ++j) {
    lanes[j - whole] = maximum_of(lanes[j - whole], x[j]);
  }
  float result = lanes[0];
  for (Count i = 1; i < kLanes; ++i) result = maximum_of(result, lanes[i]);
  return result;
}

// The sum of term(j) over [0, n).
template <class Value, class Term>
MEMCFG_INLINE Value sum(Count n, const Term& term) {
  Value lanes[kLanes] = {};
  const Count whole = n / kLanes * kLanes;
  for (Count j = 0; j < whole; j += kLanes) {
    MEMCFG_INDEPENDENT
    for (Count i = 0; i < kLanes; ++i) lanes[i] += term(j + i);
  }
  for (Count j = whole; j < n; ++j) lanes[j - whole] += term(j);
  Value result = lanes[0];
  for (Count i = 1; i < kLanes; ++i) result += lanes[i];
  return result;
}

}  // namespace memcfg
