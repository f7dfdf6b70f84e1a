"""The prelude of all sources: loops and reductions of which kernels are made."""

from __future__ import annotations

__all__ = ["COMPILER_OPTIONS", "PRELUDE", "THREADS"]

# A product and a sum are fused only by an explicit fmaf, so that the bits of an element
# do not depend on the surrounding code.
COMPILER_OPTIONS = ("--fmad=false",)

THREADS = 256  # threads of every block

PRELUDE = r"""
#ifndef MEMCFG_PRELUDE
#define MEMCFG_PRELUDE
#ifdef __CUDACC__
#pragma nv_diag_suppress 177, 550  // parameters that some ops of a family ignore
#endif
namespace memcfg {

typedef unsigned int u32;
typedef long long i64;
typedef unsigned long long u64;

constexpr u32 kThreads = 256;  // threads of every block

// The functions of expressions, for elements and for uniform numbers. maximum_of and
// minimum_of return NaN if an argument is NaN, as in NumPy.
__device__ inline float maximum_of(float a, float b) { return a > b || a != a ? a : b; }
__device__ inline double maximum_of(double a, double b) {
  return a > b || a != a ? a : b;
}
__device__ inline float minimum_of(float a, float b) { return a < b || a != a ? a : b; }
__device__ inline double minimum_of(double a, double b) {
  return a < b || a != a ? a : b;
}
__device__ inline float absolute_of(float x) { return fabsf(x); }
__device__ inline double absolute_of(double x) { return fabs(x); }
__device__ inline float sqrt_of(float x) { return sqrtf(x); }
__device__ inline double sqrt_of(double x) { return sqrt(x); }
__device__ inline float exp_of(float x) { return expf(x); }
__device__ inline double exp_of(double x) { return exp(x); }
__device__ inline float expm1_of(float x) { return expm1f(x); }
__device__ inline double expm1_of(double x) { return expm1(x); }
__device__ inline float log_of(float x) { return logf(x); }
__device__ inline double log_of(double x) { return log(x); }
__device__ inline float log1p_of(float x) { return log1pf(x); }
__device__ inline double log1p_of(double x) { return log1p(x); }
__device__ inline float tanh_of(float x) { return tanhf(x); }
__device__ inline double tanh_of(double x) { return tanh(x); }
__device__ inline float sigmoid_of(float x) { return 1.0f / (1.0f + expf(-x)); }
__device__ inline double sigmoid_of(double x) { return 1.0 / (1.0 + exp(-x)); }
__device__ inline float erf_of(float x) { return erff(x); }
__device__ inline double erf_of(double x) { return erf(x); }
__device__ inline float power_of(float x, float y) { return powf(x, y); }
__device__ inline double power_of(double x, double y) { return pow(x, y); }
__device__ inline float sin_of(float x) { return sinf(x); }
__device__ inline double sin_of(double x) { return sin(x); }
__device__ inline float cos_of(float x) { return cosf(x); }
__device__ inline double cos_of(double x) { return cos(x); }
__device__ inline float atan_of(float x) { return atanf(x); }
__device__ inline double atan_of(double x) { return atan(x); }
__device__ inline float fmod_of(float x, float y) { return fmodf(x, y); }
__device__ inline double fmod_of(double x, double y) { return fmod(x, y); }
__device__ inline float floor_of(float x) { return floorf(x); }
__device__ inline double floor_of(double x) { return floor(x); }
__device__ inline double rounded_of(double x) { return static_cast<float>(x); }
template <class Condition>
__device__ inline float blend(Condition holds, float yes, float no) {
  return holds != 0 ? yes : no;
}
template <class Condition>
__device__ inline double blend(Condition holds, double yes, double no) {
  return holds != 0 ? yes : no;
}

// Calls body(i) for each i below count; adjacent threads have adjacent i.
template <class Index, class Body>
__device__ inline void for_each(Index count, Body body) {
  const Index step = static_cast<Index>(gridDim.x) * kThreads;
  for (Index i = static_cast<Index>(blockIdx.x) * kThreads + threadIdx.x; i < count;
       i += step) {
    body(i);
  }
}

// Four floats in one load or store, which uses more bandwidth than single floats.
struct alignas(16) Four {
  float of[4];
};
__device__ inline Four load_four(const float* from, u64 place) {
  return reinterpret_cast<const Four*>(from)[place];
}
__device__ inline void store_four(float* to, u64 place, const Four& value) {
  reinterpret_cast<Four*>(to)[place] = value;
}

// The same for W floats, 1 or 4.
template <int W>
struct alignas(4 * W) Pack {
  float of[W];
};
template <int W>
struct alignas(W) Bytes {
  unsigned char of[W];
};
template <int W>
__device__ inline Pack<W> load_pack(const float* from, u64 place) {
  return reinterpret_cast<const Pack<W>*>(from)[place];
}
template <int W>
__device__ inline void store_pack(float* to, u64 place, const Pack<W>& value) {
  reinterpret_cast<Pack<W>*>(to)[place] = value;
}

// Reduces the values of `lanes` threads that are `stride` apart, in an order that
// depends only on `lanes`, a power of two. All threads of the block must call it.
template <class T, class Join>
__device__ inline T join_lanes(u32 lanes, u32 stride, T value, Join join) {
  __shared__ T all[kThreads];
  const u32 place = threadIdx.x, lane = place / stride % lanes;
  all[place] = value;
  __syncthreads();
  for (u32 half = lanes / 2; half > 0; half /= 2) {
    if (lane < half) all[place] = join(all[place], all[place + half * stride]);
    __syncthreads();
  }
  const T result = all[place - lane * stride];
  __syncthreads();  // before the next call
  return result;
}

__device__ inline double sum_lanes(u32 lanes, double value) {
  return join_lanes(lanes, 1u, value, [](double a, double b) { return a + b; });
}
__device__ inline float maximum_lanes(u32 lanes, float value) {
  return join_lanes(
      lanes, 1u, value, [](float a, float b) { return maximum_of(a, b); });
}

// Calls out(o, slice, total) for each result o and each slice of the r, where total is
// the reduction of value(o, r). A block has `kThreads / lanes` results, of which
// `stride` are adjacent.
template <class T, class Index, class Value, class Join, class Out>
__device__ inline void reduce(Index results,
                              Index each,
                              Index length,
                              u32 lanes,
                              u32 stride,
                              T first,
                              Value value,
                              Join join,
                              Out out) {
  const u32 place = threadIdx.x, width = kThreads / lanes;
  const Index tiles = (results + width - 1) / width, slice = blockIdx.x / tiles;
  const Index o = blockIdx.x % tiles * width + place / (stride * lanes) * stride +
                  place % stride;
  const u32 lane = place / stride % lanes;
  const Index begin = slice * length;
  const Index end = each - begin < length ? each : begin + length;
  T total = first;
  if (o < results) {
    for (Index r = begin + lane; r < end; r += lanes) total = join(total, value(o, r));
  }
  total = join_lanes(lanes, stride, total, join);
  if (lane == 0 && o < results) out(o, slice, total);
}

// A thread's part of a matrix: `count` rows from `row` on in steps of `lanes`, of a
// group of columns. A block has `stride` adjacent groups and a slice of the rows. The
// count is known before the loop, so that loads are hoisted over the work of earlier
// rows.
template <class Index>
struct Share {
  __device__ Share(Index rows, Index groups, Index length, u32 lanes, u32 stride) {
    const Index tiles = (groups + stride - 1) / stride;
    slice = blockIdx.x / tiles;
    group = blockIdx.x % tiles * stride + threadIdx.x % stride;
    lane = threadIdx.x / stride;
    const Index begin = slice * length;
    const Index end = rows - begin < length ? rows : begin + length;
    row = begin + lane;
    count = row < end ? (end - row - 1) / lanes + 1 : 0;
  }
  Index slice, group, row, count;
  u32 lane;
};

// Calls columns(g)(r) for each row r of each group of columns g.
template <class Index, class Columns>
__device__ inline void each_column(
    Index rows, Index groups, Index length, u32 lanes, u32 stride, Columns columns) {
  const Share<Index> own(rows, groups, length, lanes, stride);
  if (own.group >= groups) return;
  const auto row = columns(own.group);
#pragma unroll 4
  for (Index i = 0; i < own.count; ++i) row(own.row + i * lanes);
}

// Calls out(g, slice, total) with the `sums` totals of each column of group g, to which
// columns(g)(r, total) adds row r. lanes * stride is kThreads.
template <class Index, int sums, int wide, class Columns, class Out>
__device__ inline void sum_each_column(Index rows,
                                       Index groups,
                                       Index length,
                                       u32 lanes,
                                       u32 stride,
                                       Columns columns,
                                       Out out) {
  const Share<Index> own(rows, groups, length, lanes, stride);
  double total[sums][wide] = {};
  if (own.group < groups) {
    const auto row = columns(own.group);
#pragma unroll 4
    for (Index i = 0; i < own.count; ++i) row(own.row + i * lanes, total);
  }
#pragma unroll
  for (int i = 0; i < sums; ++i) {
#pragma unroll
    for (int j = 0; j < wide; ++j) {
      total[i][j] = join_lanes(
          lanes, stride, total[i][j], [](double a, double b) { return a + b; });
    }
  }
  if (own.lane == 0 && own.group < groups) out(own.group, own.slice, total);
}

// Calls c(m, n, sum) for the tile of a block, where sum is over a(m, k) * b(k, n) for k
// from begin to end. A matrix that is contiguous along k is read along k.
template <class Index, class A, class B, class C>
__device__ inline void multiply_tile(Index tile_row,
                                     Index tile_column,
                                     Index rows,
                                     Index columns,
                                     Index begin,
                                     Index end,
                                     bool a_along_k,
                                     bool b_along_k,
                                     A a,
                                     B b,
                                     C c) {
  constexpr u32 kTile = 64, kDepth = 16, kSide = 16, kEach = kTile / kSide;
  __shared__ float left[kDepth][kTile + 1], right[kDepth][kTile + 1];
  const u32 x = threadIdx.x % kSide, y = threadIdx.x / kSide;
  const Index m0 = tile_row * kTile, n0 = tile_column * kTile;
  float sum[kEach][kEach] = {};
  for (Index k0 = begin; k0 < end; k0 += kDepth) {
    for (u32 i = threadIdx.x; i < kTile * kDepth; i += kThreads) {
      const u32 ka = a_along_k ? i % kDepth : i / kTile;
      const u32 m = a_along_k ? i / kDepth : i % kTile;
      const u32 kb = b_along_k ? i % kDepth : i / kTile;
      const u32 n = b_along_k ? i / kDepth : i % kTile;
      left[ka][m] = m0 + m < rows && k0 + ka < end ? a(m0 + m, k0 + ka) : 0.0f;
      right[kb][n] = n0 + n < columns && k0 + kb < end ? b(k0 + kb, n0 + n) : 0.0f;
    }
    __syncthreads();
    for (u32 k = 0; k < kDepth; ++k) {
      for (u32 i = 0; i < kEach; ++i) {
        for (u32 j = 0; j < kEach; ++j) {
          sum[i][j] = fmaf(left[k][y + i * kSide], right[k][x + j * kSide], sum[i][j]);
        }
      }
    }
    __syncthreads();
  }
  for (u32 i = 0; i < kEach; ++i) {
    for (u32 j = 0; j < kEach; ++j) {
      const Index m = m0 + y + i * kSide, n = n0 + x + j * kSide;
      if (m < rows && n < columns) c(m, n, sum[i][j]);
    }
  }
}

}  // namespace memcfg
#endif
"""
