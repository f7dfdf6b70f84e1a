// Rows multiplied by a matrix. Each sum is one chain in the order of the steps, so the
// bits of an element depend neither on the rows and the columns beside it nor on
// threads. oneDNN's products without blocks (AVX2) divide rows, columns and steps by
// all of them, so that a matrix in sections has other bits.
#pragma once

#include "kernels/function_kernel.hpp"

namespace memcfg {

// y[M, N] = x[M, K] w[K, N], perhaps + bias[N], + other[M, N], and a ReLU of it, in
// this order. Columns of `w` are packed as they are read, on the stack.
class ChainedProduct final : public Kernel {
 public:
  struct Extents {
    Count rows, steps, columns;
  };
  // A product on so many threads at most; 0: on all.
  ChainedProduct(const Sizes& sizes,
                 const Extents& of,
                 bool bias,
                 bool sum,
                 bool relu,
                 int threads = 0)
      : Kernel(sizes),
        of_(of),
        biased_(bias),
        summed_(sum),
        relu_(relu),
        threads_(threads) {}

  void run(void* const* operands, void* scratch, RunState* state) const override;

 private:
  Extents of_;
  bool biased_, summed_, relu_;
  int threads_;
};

}  // namespace memcfg
