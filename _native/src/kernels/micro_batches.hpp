// A kernel that takes a part of the batch after the other, with the scratch of one
// part: Oyama et al., "Accelerating Deep Learning Frameworks with Micro-Batches", 2018.
//
// It is named "<algorithm>/<images>", as in "im2col/4". Parts are equal, and end where
// lines of 64 bytes do. A result that every part adds to is summed in the order of the
// parts, from the second on by way of scratch; others have the bits of the parts.
#pragma once

#include "kernels/function_kernel.hpp"

namespace memcfg {

// The batch axis is the first of the operands in `batched`, by number; the output is
// float32 if it is not one of them.
struct MicroBatches {
  // What an algorithm's name says; null for a name without a part. Throws
  // std::invalid_argument for a part that the op cannot have.
  static std::optional<MicroBatches> of(const KernelSpec& spec,
                                        const std::vector<std::size_t>& batched);
  // The sizes that are listed: the batch divided by its smallest prime factor, and so
  // on, down to 1; of these, such as can be.
  static std::vector<MicroBatches> list(const KernelSpec& spec,
                                        const std::vector<std::size_t>& batched);

  // The op on a part, by an algorithm for the whole.
  KernelSpec part(const KernelSpec& spec) const;
  std::string name(const std::string& base) const;
  // Beside the scratch of a part.
  Bytes sum_bytes(const KernelSpec& spec) const;
  // Pre: `kernel` is of `part(spec)`.
  KernelPtr make(const KernelSpec& spec, KernelPtr kernel) const;

  std::string algorithm;  // of a part
  Count images, parts;
  std::vector<std::size_t> batched;
  bool sums;
};

}  // namespace memcfg
