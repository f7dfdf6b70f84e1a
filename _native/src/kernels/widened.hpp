// Kernels of float32 on operands of bfloat16, through copies.
#pragma once

#include <functional>

#include "kernels/function_kernel.hpp"

namespace memcfg {

// Whether an operand is bfloat16.
bool has_bfloat16(const KernelSpec& spec);

// The same op on float32.
KernelSpec widened(const KernelSpec& spec);

// Bytes of the copies that `widen_operands` makes, in scratch.
Bytes copies_bytes(const KernelSpec& spec);

// A kernel of `widened(spec)` as one of `spec`: what is bfloat16 is read and written
// through copies in float32, in front of the kernel's own scratch.
KernelPtr widen_operands(const KernelSpec& spec, KernelPtr kernel);

// The same by a few samples at a time: `make` makes kernels of float32 for them. Null
// where operands do not have their samples along the first axis, or what an op drops
// depends on an element's place among all.
using MakeFloat32 = std::function<KernelPtr(const KernelSpec&)>;
KernelPtr widen_samples(const KernelSpec& spec, const MakeFloat32& make);

}  // namespace memcfg
