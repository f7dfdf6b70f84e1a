// A row multiplied by a matrix. An element is one chain of sums, in the order of the
// steps: its bits depend neither on the columns beside it nor on the threads. oneDNN's
// product of one row without blocks (AVX2) divides these chains among threads, so that
// a matrix in parts has other bits; on one thread this takes as long.
#pragma once

#include "kernels/function_kernel.hpp"

namespace memcfg {

// y[N] = x[K] w[K, N], perhaps + bias[N], + other[N], and a ReLU of it, in this order.
class OneRowProduct final : public Kernel {
 public:
  OneRowProduct(
      const Sizes& sizes, Count steps, Count columns, bool bias, bool sum, bool relu)
      : Kernel(sizes),
        steps_(steps),
        columns_(columns),
        biased_(bias),
        summed_(sum),
        relu_(relu) {}

  void run(void* const* operands, void* scratch, RunState* state) const override;

 private:
  Count steps_, columns_;
  bool biased_, summed_, relu_;
};

}  // namespace memcfg
