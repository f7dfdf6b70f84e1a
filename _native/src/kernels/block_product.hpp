// Products of blocks that stay in the cache, for kernels that hold on to what they
// multiply. An element is one chain of sums, in the order of the steps: its bits depend
// neither on what is beside it nor on which operand is the left one.
#pragma once

#include "kernels/spec.hpp"

namespace memcfg {

inline constexpr Count kPanel = 16;        // floats of the widest vector
inline constexpr Count kLeastColumns = 8;  // columns are a multiple

// result[r][c] = sum over s of left(r, s) * right[s][c], or that added to the result.
// Columns are contiguous; left(r, s) is at r * left_row + s * left_step.
struct BlockProduct {
  const float* left;
  Count left_row, left_step;
  const float* right;
  Count right_row;
  float* result;
  Count result_row;
  Count rows, steps, columns;  // columns: a multiple of kLeastColumns
  bool adds = false;
};

// With the widest vectors that the processor has. Where it can, it rounds a product and
// its sum once.
void multiply(const BlockProduct& of) noexcept;

}  // namespace memcfg
