// Vectors of one and of four lanes, kept in registers. They are the compiler's own
// vector types, so that one source serves every machine; longer ones were no faster
// here and would depend on the machine.
#pragma once

#include <cstdint>

#include "kernels/parallel.hpp"

namespace memcfg {

// Floats, Ints and Places (bytes) of one length; In... are the same in memory, at
// any address. Spelled out, since compilers take no vector length from a template.
template <int lanes>
struct Vectors;

#define MEMCFG_IN_MEMORY(alignment) aligned(alignment), may_alias
#define MEMCFG_VECTORS(lanes)                                                    \
  template <>                                                                    \
  struct Vectors<lanes> {                                                        \
    using Floats = float __attribute__((vector_size((lanes) * 4)));              \
    using Ints = std::int32_t __attribute__((vector_size((lanes) * 4)));         \
    using Places = std::uint8_t __attribute__((vector_size(lanes)));             \
    using InFloats =                                                             \
        float __attribute__((vector_size((lanes) * 4), MEMCFG_IN_MEMORY(4)));    \
    using InPlaces =                                                             \
        std::uint8_t __attribute__((vector_size(lanes), MEMCFG_IN_MEMORY(1)));   \
                                                                                 \
    static MEMCFG_INLINE Floats load(const float* from) {                        \
      return *reinterpret_cast<const InFloats*>(from);                           \
    }                                                                            \
    static MEMCFG_INLINE void store(Floats value, float* to) {                   \
      *reinterpret_cast<InFloats*>(to) = value;                                  \
    }                                                                            \
    static MEMCFG_INLINE Ints load(const std::uint8_t* from) {                   \
      const Places places = *reinterpret_cast<const InPlaces*>(from);            \
      return __builtin_convertvector(places, Ints);                              \
    }                                                                            \
    static MEMCFG_INLINE void store(Ints value, std::uint8_t* to) {              \
      *reinterpret_cast<InPlaces*>(to) = __builtin_convertvector(value, Places); \
    }                                                                            \
  };
MEMCFG_VECTORS(1)
MEMCFG_VECTORS(4)
#undef MEMCFG_VECTORS
#undef MEMCFG_IN_MEMORY

// body(first channel) for tiles of `lanes` channels that cover [0, channels). The last
// tile overlaps the one before it rather than be short: pre: a tile's result does not
// depend on what was stored before, and channels >= lanes.
template <int lanes, class Body>
MEMCFG_INLINE void for_tiles(Count channels, const Body& body) {
  Count c = 0;
  for (; c + lanes <= channels; c += lanes) body(c);
  if (c < channels) body(channels - lanes);
}

// body(vectors, first channel) for tiles that cover [0, channels) once: of four
// channels, then of one.
template <class Body>
MEMCFG_INLINE void for_disjoint_tiles(Count channels, const Body& body) {
  Count c = 0;
  for (; c + 4 <= channels; c += 4) body(Vectors<4>{}, c);
  for (; c < channels; ++c) body(Vectors<1>{}, c);
}

}  // namespace memcfg
