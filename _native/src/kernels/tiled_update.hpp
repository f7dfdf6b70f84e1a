// What is common to updates of kernels whose gradients never exist whole: a block of
// the gradient is computed in scratch, and used up by the update's expression.
#pragma once

#include <cstddef>
#include <vector>

#include "kernels/expression.hpp"

namespace memcfg {

// About the gradient's bytes in a block: what stays in a second-level cache.
inline constexpr Count kTileBytes = 2 << 20;

// An op that reads x, dy and the operands of an update but its gradient, and writes
// what the update writes. All arrays of the update have the gradient's `count`
// elements.
Kernel::Sizes check_tiled_update(const KernelSpec& spec, Count count);

// The update of `rows` x `columns` of a matrix whose rows have `stride` elements.
class TiledUpdate {
 public:
  // Pre: check_tiled_update(spec, ...).
  TiledUpdate(const KernelSpec& spec, Count rows, Count columns, Count stride);

  // `operands` are the op's; `gradient` is the block's, whose first element is element
  // `first` of the matrix.
  void run(void* const* operands, Count first, void* gradient) const;

 private:
  std::size_t gradient_;      // its place among the update's inputs
  std::vector<bool> single_;  // which of all of its operands are one number
  RowLoop loop_;
};

}  // namespace memcfg
