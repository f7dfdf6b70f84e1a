#include "memcfg/free_chunks.hpp"

#include "memcfg/error.hpp"

namespace memcfg {
namespace {

// Fibonacci hashing (Knuth, The Art of Computer Programming 3, section 6.4).
std::uint32_t priority(Bytes size) noexcept {
  return static_cast<std::uint32_t>(size / kAlignment * 0x9E3779B97F4A7C15U >> 32);
}

}  // namespace

std::size_t FreeChunks::bin_of(Bytes size) noexcept {
  const Bytes granules = size / kAlignment;
  if (granules < 8) return granules;
  const int top = 63 - __builtin_clzll(granules);
  return static_cast<std::size_t>(top - 2) * 8 + (granules >> (top - 3) & 7);
}

std::size_t FreeChunks::next_bin(std::size_t bin) const noexcept {
  std::size_t word = bin / 64;
  if (word >= kWords) return kBins;
  std::uint64_t bits = full_[word] & ~std::uint64_t{0} << bin % 64;
  while (bits == 0) {
    if (++word == kWords) return kBins;
    bits = full_[word];
  }
  return word * 64 + static_cast<std::size_t>(__builtin_ctzll(bits));
}

ChunkId FreeChunks::lower_bound(ChunkId root, Bytes size) const noexcept {
  ChunkId best = 0;
  while (root != 0) {
    const Chunk& chunk = chunks_[root];
    if (chunk.size < size) {
      root = chunk.right;
    } else {
      best = root;
      root = chunk.left;
    }
  }
  return best;
}

ChunkId FreeChunks::find(ChunkId root, Bytes size) const noexcept {
  while (root != 0 && chunks_[root].size != size) {
    root = size < chunks_[root].size ? chunks_[root].left : chunks_[root].right;
  }
  return root;
}

ChunkId FreeChunks::best_fit(Bytes size) const noexcept {
  const std::size_t bin = bin_of(size);
  ChunkId found = lower_bound(roots_[bin], size);
  if (found == 0) {
    const std::size_t larger = next_bin(bin + 1);
    if (larger == kBins) return 0;
    found = lower_bound(roots_[larger], 0);
  }
  return chunks_[found].after;  // a lone free chunk is its own ring
}

ChunkId FreeChunks::largest() const noexcept {
  for (std::size_t word = kWords; word-- > 0;) {
    if (full_[word] == 0) continue;
    ChunkId id =
        roots_[word * 64 + 63 - static_cast<std::size_t>(__builtin_clzll(full_[word]))];
    while (chunks_[id].right != 0) id = chunks_[id].right;
    return id;
  }
  return 0;
}

void FreeChunks::insert(ChunkId id) noexcept {
  Chunk& chunk = chunks_[id];
  const std::size_t bin = bin_of(chunk.size);
  ChunkId* link = &roots_[bin];  // where the priorities want it
  const std::uint32_t own = priority(chunk.size);
  while (*link != 0 && priority(chunks_[*link].size) > own) {
    Chunk& parent = chunks_[*link];
    link = chunk.size < parent.size ? &parent.left : &parent.right;
  }
  if (const ChunkId same = find(*link, chunk.size)) {
    insert_in_ring(id, same);
    return;
  }
  chunk.in_tree = true;
  chunk.before = chunk.after = id;
  split(*link, chunk.size, chunk.left, chunk.right);
  *link = id;
  full_[bin / 64] |= std::uint64_t{1} << bin % 64;
}

void FreeChunks::insert_in_ring(ChunkId id, ChunkId same) noexcept {
  Chunk& chunk = chunks_[id];
  chunk.in_tree = false;
  chunk.before = same;
  chunk.after = chunks_[same].after;
  chunks_[chunk.after].before = id;
  chunks_[same].after = id;
}

void FreeChunks::remove(ChunkId id) noexcept {
  Chunk& chunk = chunks_[id];
  if (!chunk.in_tree) {
    leave_ring(chunk);
    return;
  }
  const std::size_t bin = bin_of(chunk.size);
  ChunkId* const link = link_to(&roots_[bin], chunk.size, id);
  if (chunk.before !=
      id) {  // the free chunk of this size that has waited longest follows
    Chunk& heir = chunks_[chunk.before];
    heir.in_tree = true;
    heir.left = chunk.left;
    heir.right = chunk.right;
    *link = chunk.before;
    leave_ring(chunk);
  } else {
    *link = merge(chunk.left, chunk.right);
  }
  if (roots_[bin] == 0) full_[bin / 64] &= ~(std::uint64_t{1} << bin % 64);
}

ChunkId* FreeChunks::link_to(ChunkId* link, Bytes size, ChunkId id) const noexcept {
  while (*link != id) {
    Chunk& chunk = chunks_[*link];
    link = size < chunk.size ? &chunk.left : &chunk.right;
  }
  return link;
}

// Cuts a tree into the sizes below and above `size`, which it does not have.
void FreeChunks::split(ChunkId root,
                       Bytes size,
                       ChunkId& less,
                       ChunkId& more) noexcept {
  ChunkId* low = &less;
  ChunkId* high = &more;
  while (root != 0) {
    Chunk& chunk = chunks_[root];
    if (chunk.size < size) {
      *low = root;
      low = &chunk.right;
      root = chunk.right;
    } else {
      *high = root;
      high = &chunk.left;
      root = chunk.left;
    }
  }
  *low = *high = 0;
}

// Pre: every size in `less` is below every size in `more`.
ChunkId FreeChunks::merge(ChunkId less, ChunkId more) noexcept {
  ChunkId root = 0;
  ChunkId* link = &root;
  while (less != 0 && more != 0) {
    Chunk& low = chunks_[less];
    Chunk& high = chunks_[more];
    if (priority(low.size) >= priority(high.size)) {
      *link = less;
      link = &low.right;
      less = low.right;
    } else {
      *link = more;
      link = &high.left;
      more = high.left;
    }
  }
  *link = less != 0 ? less : more;
  return root;
}

void FreeChunks::leave_ring(Chunk& chunk) noexcept {
  chunks_[chunk.before].after = chunk.after;
  chunks_[chunk.after].before = chunk.before;
}

std::size_t FreeChunks::check() const {
  std::size_t sum = 0;
  for (std::size_t bin = 0; bin < kBins; ++bin) {
    require((full_[bin / 64] >> bin % 64 & 1) == (roots_[bin] != 0 ? 1 : 0),
            "a bin's bit does not say whether it has a free chunk");
    sum += check_tree(roots_[bin], bin, 0, kNoLimit);
  }
  return sum;
}

std::size_t FreeChunks::check_tree(ChunkId root,
                                   std::size_t bin,
                                   Bytes low,
                                   Bytes high) const {
  if (root == 0) return 0;
  const Chunk& chunk = chunks_[root];
  require(chunk.in_tree && bin_of(chunk.size) == bin,
          "a free chunk is in the wrong bin");
  require(low <= chunk.size && chunk.size < high, "the free chunks are out of order");
  std::size_t ring = 0;
  ChunkId id = root;
  do {
    require(chunks_[id].state == Chunk::free && chunks_[id].size == chunk.size,
            "a ring has something else than free chunks of one size");
    require(chunks_[chunks_[id].after].before == id, "a ring is broken");
    id = chunks_[id].after;
    ++ring;
  } while (id != root);
  for (const ChunkId child : {chunk.left, chunk.right}) {
    require(child == 0 || priority(chunks_[child].size) <= priority(chunk.size),
            "a treap is out of order");
  }
  return ring + check_tree(chunk.left, bin, low, chunk.size) +
         check_tree(chunk.right, bin, chunk.size + 1, high);
}

}  // namespace memcfg
