"""What all sources begin with: the loops of which kernels are made."""

from __future__ import annotations

__all__ = ["COMPILER_OPTIONS", "PRELUDE", "THREADS"]

# A product and a sum are fused where it is written (fmaf), nowhere else: the bits of an
# element do not depend on what stands around it, and are those of the CPU.
COMPILER_OPTIONS = ("--fmad=false",)

THREADS = 256  # of every block

PRELUDE = r"""
#ifndef MEMCFG_PRELUDE
#define MEMCFG_PRELUDE
namespace memcfg {

typedef unsigned int u32;
typedef long long i64;
typedef unsigned long long u64;

constexpr u32 kThreads = 256;  // of every block

// A NaN wins, as in NumPy.
__device__ inline float maximum_of(float a, float b) { return a > b || a != a ? a : b; }
__device__ inline float minimum_of(float a, float b) { return a < b || a != a ? a : b; }
__device__ inline double maximum_of(double a, double b) {
  return a > b || a != a ? a : b;
}
__device__ inline double minimum_of(double a, double b) {
  return a < b || a != a ? a : b;
}
__device__ inline float sigmoid_of(float x) { return 1.0f / (1.0f + expf(-x)); }
__device__ inline double sigmoid_of(double x) { return 1.0 / (1.0 + exp(-x)); }

// body(i) for each i below count, neighbours by neighbouring threads.
template <class Index, class Body>
__device__ inline void for_each(Index count, Body body) {
  const Index step = static_cast<Index>(gridDim.x) * kThreads;
  for (Index i = static_cast<Index>(blockIdx.x) * kThreads + threadIdx.x; i < count;
       i += step) {
    body(i);
  }
}

}  // namespace memcfg
#endif
"""
