// Loops: over threads and over vector lanes.
//
// Work is cut into pieces that depend on shapes alone, never on the number of
// threads, so that the bits of a result do not either. A loop below
// `kParallelElements` stays on its thread: a fork and join costs a few
// microseconds, more than such a loop.
#pragma once

#include <algorithm>

#include "kernels/spec.hpp"

// The loop that follows has no dependence between iterations, although its arrays
// may be the same one (in-place pairs).
#if defined(__clang__)
#define MEMCFG_INDEPENDENT _Pragma("clang loop vectorize(assume_safety)")
#elif defined(__GNUC__)
#define MEMCFG_INDEPENDENT _Pragma("GCC ivdep")
#else
#define MEMCFG_INDEPENDENT
#endif

// Compiles the function for wider vectors too and chooses when the program is
// loaded. Without fused multiply-add: every choice gives the same bits. Sanitizers
// cannot follow the choice, so they get the plain function.
#if defined(__GNUC__) && !defined(__clang__) && defined(__x86_64__) && \
    defined(__linux__) && !defined(__SANITIZE_ADDRESS__) &&            \
    !defined(__SANITIZE_THREAD__) && !defined(MEMCFG_NO_CLONES)
#define MEMCFG_VECTORIZED __attribute__((target_clones("avx2", "default")))
#else
#define MEMCFG_VECTORIZED
#endif

#if defined(__GNUC__)
#define MEMCFG_INLINE inline __attribute__((always_inline))
#else
#define MEMCFG_INLINE inline
#endif

namespace memcfg {

inline constexpr Count kParallelElements = 16384;  // elements of the whole loop
inline constexpr Count kChunk = 8192;              // elements; a piece of a flat loop

// body(i) for i in [0, pieces), on several threads when `elements`, the size of
// the whole work, is worth it.
template <class Body>
void parallel_for(Count pieces, Count elements, const Body& body) {
#if defined(_OPENMP)
  if (pieces > 1 && elements >= kParallelElements) {
#pragma omp parallel for schedule(static)
    for (Count i = 0; i < pieces; ++i) body(i);
    return;
  }
#endif
  static_cast<void>(elements);
  for (Count i = 0; i < pieces; ++i) body(i);
}

// body(begin, length) over [0, count) in pieces of `chunk`.
template <class Body>
void parallel_chunks(Count count, Count chunk, const Body& body) {
  parallel_for((count + chunk - 1) / chunk, count, [&](Count piece) {
    const Count begin = piece * chunk;
    body(begin, std::min(chunk, count - begin));
  });
}

}  // namespace memcfg
