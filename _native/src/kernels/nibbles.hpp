// Matrices of integers of 4 bits: two rows in a row of bytes, the first in the low
// bits.
#pragma once

#include <algorithm>
#include <cstdint>

#include "kernels/parallel.hpp"

namespace memcfg {

inline Count nibble_rows(Count rows) {
  return (rows + 1) / 2;  // of bytes
}

MEMCFG_INLINE std::int8_t low_of(std::uint8_t code) {
  return static_cast<std::int8_t>(static_cast<std::int8_t>(code << 4) >> 4);
}
MEMCFG_INLINE std::int8_t high_of(std::uint8_t code) {
  return static_cast<std::int8_t>(static_cast<std::int8_t>(code) >> 4);
}

// Some columns of a matrix in rows of n columns, each with a scale in each group of so
// many rows.
struct Groups {
  Count rows, n, group;

  Count count() const { return (rows + group - 1) / group; }
  Count begin(Count number) const { return number * group; }
  Count end(Count number) const { return std::min(rows, (number + 1) * group); }
};

}  // namespace memcfg
