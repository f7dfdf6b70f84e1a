#include "kernels/block_product.hpp"

#include "kernels/parallel.hpp"

#if defined(__GNUC__) && !defined(__clang__) && defined(__x86_64__) && \
    !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__) && \
    !defined(MEMCFG_NO_CLONES)
#define MEMCFG_WIDER_PRODUCTS
#endif

namespace memcfg {
namespace {

// A vector in registers, and in memory at any address.
#define MEMCFG_LANES(name, lanes)                                               \
  struct name {                                                                 \
    static constexpr Count kLanes = lanes;                                      \
    using Vector = float __attribute__((vector_size((lanes) * 4)));             \
    using InMemory =                                                            \
        float __attribute__((vector_size((lanes) * 4), aligned(4), may_alias)); \
  };
MEMCFG_LANES(Lanes4, 4)
MEMCFG_LANES(Lanes8, 8)
MEMCFG_LANES(Lanes16, 16)
#undef MEMCFG_LANES

// `rows` x `vectors` of the result, which stay in registers.
template <class Lanes, int rows, int vectors>
MEMCFG_INLINE void multiply_tile(const BlockProduct& of, Count row, Count column) {
  using Vector = typename Lanes::Vector;
  using InMemory = typename Lanes::InMemory;
  const float* left = of.left + row * of.left_row;
  const float* right = of.right + column;
  float* result = of.result + row * of.result_row + column;
  Vector sums[rows][vectors] = {};
  if (of.adds) {
    for (int i = 0; i < rows; ++i) {
      for (int j = 0; j < vectors; ++j) {
        sums[i][j] = *reinterpret_cast<const InMemory*>(result + i * of.result_row +
                                                        j * Lanes::kLanes);
      }
    }
  }
  for (Count s = 0; s < of.steps; ++s) {
    Vector along[vectors];
    for (int j = 0; j < vectors; ++j) {
      along[j] = *reinterpret_cast<const InMemory*>(right + j * Lanes::kLanes);
    }
    for (int i = 0; i < rows; ++i) {
      const float factor = left[i * of.left_row];
      for (int j = 0; j < vectors; ++j) sums[i][j] += factor * along[j];
    }
    left += of.left_step;
    right += of.right_row;
  }
  for (int i = 0; i < rows; ++i) {
    for (int j = 0; j < vectors; ++j) {
      *reinterpret_cast<InMemory*>(result + i * of.result_row + j * Lanes::kLanes) =
          sums[i][j];
    }
  }
}

// The rows of [row, end), `most` of them or less.
template <class Lanes, int most, int vectors>
MEMCFG_INLINE void multiply_rows(const BlockProduct& of,
                                 Count row,
                                 Count end,
                                 Count column) {
  if constexpr (most > 1) {
    if (end - row < most) {
      return multiply_rows<Lanes, most - 1, vectors>(of, row, end, column);
    }
  }
  multiply_tile<Lanes, most, vectors>(of, row, column);
}

// Tiles have as many rows each, or one more: short ones wait for their sums.
template <class Lanes, int most, int vectors>
MEMCFG_INLINE void multiply_columns(const BlockProduct& of, Count column) {
  const Count tiles = (of.rows + most - 1) / most;
  for (Count tile = 0; tile < tiles; ++tile) {
    const Count row = tile * of.rows / tiles, end = (tile + 1) * of.rows / tiles;
    multiply_rows<Lanes, most, vectors>(of, row, end, column);
  }
}

// In tiles of so many rows and vectors, which fill the registers.
template <class Lanes, int rows, int vectors>
MEMCFG_INLINE void multiply_all(const BlockProduct& of) {
  constexpr Count kLanes = Lanes::kLanes, kWidth = vectors * kLanes;
  Count column = 0;
  for (; column + kWidth <= of.columns; column += kWidth) {
    multiply_columns<Lanes, rows, vectors>(of, column);
  }
  for (; column + kLanes <= of.columns; column += kLanes) {
    multiply_columns<Lanes, rows, 1>(of, column);
  }
  if constexpr (kLanes > kLeastColumns) {
    if (column < of.columns) multiply_columns<Lanes8, rows, 1>(of, column);
  }
}

void multiply_plainly(const BlockProduct& of) {
  multiply_all<Lanes4, 4, 2>(of);
}

using Multiply = void (*)(const BlockProduct&);

#ifdef MEMCFG_WIDER_PRODUCTS
__attribute__((target("avx2,fma"))) void multiply_by_8(const BlockProduct& of) {
  multiply_all<Lanes8, 6, 2>(of);
}

__attribute__((target("avx512f,fma"))) void multiply_by_16(const BlockProduct& of) {
  multiply_all<Lanes16, 6, 4>(of);
}

Multiply choose() {
  if (__builtin_cpu_supports("avx512f")) return multiply_by_16;
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) {
    return multiply_by_8;
  }
  return multiply_plainly;
}
#else
Multiply choose() {
  return multiply_plainly;
}
#endif

}  // namespace

void multiply(const BlockProduct& of) noexcept {
  static const Multiply widest = choose();
  widest(of);
}

}  // namespace memcfg
