#include "kernels/bfloat16.hpp"

namespace memcfg {
namespace {

MEMCFG_VECTORIZED void widen_all(const Bfloat16* from, Count count, float* to) {
  MEMCFG_INDEPENDENT
  for (Count i = 0; i < count; ++i) to[i] = widened(from[i]);
}

MEMCFG_VECTORIZED void round_all(const float* from, Count count, Bfloat16* to) {
  MEMCFG_INDEPENDENT
  for (Count i = 0; i < count; ++i) to[i] = rounded(from[i]);
}

}  // namespace

void widen(const Bfloat16* from, Count count, float* to) noexcept {
  widen_all(from, count, to);
}

void round(const float* from, Count count, Bfloat16* to) noexcept {
  round_all(from, count, to);
}

}  // namespace memcfg
