// Copies between float32 and bfloat16 (`functions.hpp`).
#pragma once

#include "kernels/functions.hpp"

namespace memcfg {

// Copies of `count` elements, on this thread.
void widen(const Bfloat16* from, Count count, float* to) noexcept;
void round(const float* from, Count count, Bfloat16* to) noexcept;

}  // namespace memcfg
