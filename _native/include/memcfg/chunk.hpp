// A chunk: one range of a heap's addresses, in use or free.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "memcfg/types.hpp"

namespace memcfg {

using ChunkId = std::uint32_t;  // a place in a ChunkTable; 0 is no chunk

// What a block's owner asked for, in one word: size and tag. 0: nobody owns the chunk.
class Use {
 public:
  static constexpr int kTagBits = 16;
  static constexpr Bytes kLargest = (Bytes{1} << (64 - kTagBits)) - 1;  // bytes

  constexpr Use() = default;
  constexpr explicit Use(std::uint64_t word) : word_(word) {}
  constexpr Use(Bytes requested, std::uint32_t tag)
      : word_(static_cast<std::uint64_t>(requested) << kTagBits | tag) {}

  constexpr Bytes requested() const { return word_ >> kTagBits; }
  constexpr std::uint32_t tag() const { return word_ & ((1U << kTagBits) - 1); }
  constexpr std::uint64_t word() const { return word_; }

 private:
  std::uint64_t word_ = 0;
};

// One cache line. `use` and `address` are read without the heap's lock by whoever frees
// a block; the other fields belong to the heap, under its lock.
struct alignas(64) Chunk {
  // fresh: allocated, but nobody knows its address yet.
  enum State : std::uint8_t { spare, free, fresh, allocated };
  // Which pages of a free chunk are committed: every page that it touches, no page that
  // lies inside it, or nobody knows.
  enum Pages : std::uint8_t { all, none, some };

  std::atomic<std::uint64_t> use;       // a Use
  std::atomic<std::uintptr_t> address;  // of the first byte; 0: a spare record
  Bytes size;                           // bytes, a multiple of kAlignment
  ChunkId below, above;                 // neighbours in address order
  ChunkId left, right;     // smaller and larger free chunks of the same bin
  ChunkId before, after;   // a ring of free chunks of the same size
  ChunkId older, younger;  // free chunks by when they came to be
  std::uint32_t
      lead;  // of a free chunk, in kAlignment: its low end that is known committed
  std::uint8_t segment;
  State state;
  Pages pages;
  bool in_tree;  // of a ring, the one free chunk that stands in the tree

  ChunkId& link() noexcept { return above; }  // of spare records
};
static_assert(sizeof(Chunk) == 64 || sizeof(void*) < 8);

}  // namespace memcfg
