// The holes of a heap by size: best fit.
#pragma once

#include <array>
#include <cstdint>

#include "memcfg/books.hpp"
#include "memcfg/chunk.hpp"
#include "memcfg/types.hpp"

namespace memcfg {

// Eight bins for each doubling of the size; in each a treap (Seidel and Aragon 1996)
// over the different sizes, whose priorities are hashes of the size; holes of equal
// size in a ring. A search costs the depth of one small tree however many holes there
// are.
class Holes {
 public:
  explicit Holes(Store<Chunk>& chunks) : chunks_(chunks) {}

  // Pre: the chunk is in no tree.
  void insert(ChunkId id) noexcept;
  // Pre: the chunk was inserted, and its size has not changed since.
  void remove(ChunkId id) noexcept;

  // The smallest hole of at least `size` bytes; of several the one inserted last.
  // 0 when there is none.
  ChunkId best_fit(Bytes size) const noexcept;

  // The largest hole; 0 when there is none.
  ChunkId largest() const noexcept;

  // Throws invariant_broken unless the trees are in order; how many holes they have.
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
  void join_ring(ChunkId id, ChunkId same) noexcept;
  void leave_ring(Chunk& chunk) noexcept;
  std::size_t check_tree(ChunkId root, std::size_t bin, Bytes low, Bytes high) const;

  Store<Chunk>& chunks_;
  std::array<ChunkId, kBins> roots_{};
  std::array<std::uint64_t, kWords> full_{};  // a bit for each bin that has a hole
};

}  // namespace memcfg
