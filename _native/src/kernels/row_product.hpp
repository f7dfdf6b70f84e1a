// A row multiplied by a matrix. The steps of a sum are divided into parts, which are
// chains in the order of the steps, and added in this order. Parts depend on the number
// of steps alone, so the bits depend neither on the columns beside it nor on threads,
// as those of `ChainedProduct`, which has more rows to divide among threads.
#pragma once

#include "kernels/function_kernel.hpp"

namespace memcfg {

// y[N] = x[K] w[K, N], perhaps + bias[N], + other[N], and a ReLU of it, in this order.
class OneRowProduct final : public Kernel {
 public:
  // A product on so many threads at most; 0: on all.
  OneRowProduct(const Sizes& sizes,
                Count steps,
                Count columns,
                bool bias,
                bool sum,
                bool relu,
                int threads = 0);

  // The sums of the parts, for each column.
  Bytes scratch_bytes() const noexcept override {
    return float_bytes(parts_ * stride_);
  }
  void run(void* const* operands, void* scratch, RunState* state) const override;

 private:
  Count steps_, columns_, parts_, length_;
  Count stride_;  // of sums, so that no two threads write to a line of the cache
  bool biased_, summed_, relu_;
  int threads_;
};

}  // namespace memcfg
