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

// What stands behind addresses. `device`: memory that the host cannot read or write;
// `addresses`: nothing.
enum class SpaceKind { host, file, device, addresses };

constexpr bool touchable(SpaceKind kind) noexcept {  // by the host
  return kind == SpaceKind::host || kind == SpaceKind::file;
}

// Smallest multiple of `alignment` that is >= size. Pre: size + alignment fits.
constexpr Bytes align_up(Bytes size, Bytes alignment = kAlignment) noexcept {
  return (size + alignment - 1) / alignment * alignment;
}

// The multiple of `alignment` at or below, at or above. Pre: it is a power of two.
constexpr Bytes round_down(Bytes size, Bytes alignment) noexcept {
  return size & ~(alignment - 1);
}
constexpr Bytes round_up(Bytes size, Bytes alignment) noexcept {
  return round_down(size + alignment - 1, alignment);
}

// The sum, or kNoLimit where it does not fit.
constexpr Bytes saturating_add(Bytes size, Bytes more) noexcept {
  return size > kNoLimit - more ? kNoLimit : size + more;
}

// The base of what is neither copied nor moved.
class NoCopy {
 public:
  NoCopy() = default;
  NoCopy(const NoCopy&) = delete;
  NoCopy& operator=(const NoCopy&) = delete;
};

}  // namespace memcfg
