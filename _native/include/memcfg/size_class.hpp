// Sizes of small blocks: rounded up so that a freed one serves the next.
#pragma once

#include <array>
#include <cstdint>

#include "memcfg/types.hpp"

namespace memcfg {

// Multiples of kAlignment up to 4 KiB, then 32 sizes for each doubling: a block is
// at most 1/32 larger than its request rounded up to kAlignment.
class SizeClass {
 public:
  static constexpr Bytes kLargest = Bytes{64} << 10;  // bytes; above it sizes are exact
  static constexpr std::size_t kCount = 192;          // classes are numbered from 0

  // Pre: 0 < size <= kLargest.
  static std::size_t of(Bytes size) noexcept {
    return kTables.class_of[(size - 1) / kAlignment];
  }
  // Bytes of a block of the class.
  static Bytes size(std::size_t number) noexcept { return kTables.size_of[number]; }

  // What a block takes for a request that is rounded up to kAlignment.
  static Bytes block(Bytes size) noexcept {
    return size > kLargest ? size : kTables.size_of[of(size)];
  }

 private:
  static constexpr std::size_t kGranules = kLargest / kAlignment;
  struct Tables {
    std::array<std::uint8_t, kGranules> class_of{};  // by granules - 1
    std::array<std::uint32_t, kCount> size_of{};
    constexpr Tables() {
      std::size_t number = 0;
      std::size_t granules = 0;
      for (std::size_t step = 1; granules < kGranules; ++number) {
        if (granules >= 64 * step) step *= 2;
        for (std::size_t i = 0; i < step; ++i) {
          class_of[granules + i] = static_cast<std::uint8_t>(number);
        }
        granules += step;
        size_of[number] = static_cast<std::uint32_t>(granules * kAlignment);
      }
    }
  };
  static const Tables kTables;
};

inline constexpr SizeClass::Tables SizeClass::kTables{};

}  // namespace memcfg
