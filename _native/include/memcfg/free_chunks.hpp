// Chunks, the ranges of a heap's addresses, and the free ones by size: best fit.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>

#include "memcfg/metadata.hpp"
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

// Eight bins for each doubling of the size; in each a treap (Seidel and Aragon 1996)
// over the different sizes, whose priorities are hashes of the size; free chunks of
// equal size in a ring. A search costs the depth of one small tree however many free
// chunks there are.
class FreeChunks {
 public:
  explicit FreeChunks(Store<Chunk>& chunks) : chunks_(chunks) {}

  // Pre: the chunk is in no tree.
  void insert(ChunkId id) noexcept;
  // Pre: the chunk was inserted, and its size has not changed since.
  void remove(ChunkId id) noexcept;

  // The smallest free chunk of at least `size` bytes; of several the one inserted last.
  // 0 when there is none.
  ChunkId best_fit(Bytes size) const noexcept;

  // The largest free chunk; 0 when there is none.
  ChunkId largest() const noexcept;

  // Throws invariant_broken unless the trees are in order; how many free chunks they
  // have.
  std::size_t check() const;

 private:
  static constexpr std::size_t kBins = 512;
  static constexpr std::size_t kWords = kBins / 64;

  static std::size_t bin_of(Bytes size) noexcept;
  std::size_t next_bin(std::size_t bin) const noexcept;  // kBins: none
  ChunkId lower_bound(ChunkId root, Bytes size) const noexcept;
  ChunkId find(ChunkId root, Bytes size) const noexcept;
  ChunkId* link_to(ChunkId* link, Bytes size, ChunkId id) const noexcept;
  void split(ChunkId root, Bytes size, ChunkId& less, ChunkId& more) noexcept;
  ChunkId merge(ChunkId less, ChunkId more) noexcept;
  void insert_in_ring(ChunkId id, ChunkId same) noexcept;
  void leave_ring(Chunk& chunk) noexcept;
  std::size_t check_tree(ChunkId root, std::size_t bin, Bytes low, Bytes high) const;

  Store<Chunk>& chunks_;
  std::array<ChunkId, kBins> roots_{};
  std::array<std::uint64_t, kWords>
      full_{};  // a bit for each bin that has a free chunk
};

}  // namespace memcfg
