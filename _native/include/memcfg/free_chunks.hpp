// The free chunks of a heap by size: best fit.
#pragma once

#include <array>
#include <cstdint>

#include "memcfg/chunk.hpp"
#include "memcfg/metadata.hpp"
#include "memcfg/types.hpp"

namespace memcfg {

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
