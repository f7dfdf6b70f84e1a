// Vocabulary: sizes, addresses, alignment. Depends on nothing of memcfg.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>

namespace memcfg {

using Bytes = std::size_t;   // a size, in bytes
using Offset = std::size_t;  // a place in an arena, in bytes from its base

inline constexpr Bytes kAlignment =
    64;  // bytes; a cache line, and one AVX-512 register
inline constexpr Bytes kNoLimit = std::numeric_limits<Bytes>::max();

// Smallest multiple of `alignment` that is >= size. Pre: size + alignment fits.
constexpr Bytes align_up(Bytes size, Bytes alignment = kAlignment) noexcept {
  return (size + alignment - 1) / alignment * alignment;
}

}  // namespace memcfg
