// Words of 4 bytes at whatever address.
#pragma once

#include <cstdint>
#include <cstring>

#include "memcfg/types.hpp"

namespace memcfg {

inline constexpr Bytes kWord = 4;  // bytes

inline std::uint32_t load(const std::byte* from) noexcept {
  std::uint32_t word;
  std::memcpy(&word, from, kWord);
  return word;
}

inline void store(std::byte* to, std::uint32_t word) noexcept {
  std::memcpy(to, &word, kWord);
}

// Of no bytes there may be no address.
inline void copy_bytes(std::byte* to, const std::byte* from, Bytes size) noexcept {
  if (size > 0) std::memcpy(to, from, size);
}

// Pre: begin <= end.
inline Bytes between(const std::byte* begin, const std::byte* end) noexcept {
  return static_cast<Bytes>(end - begin);
}

}  // namespace memcfg
