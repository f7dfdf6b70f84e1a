#include "memcfg/heap.hpp"

#include <algorithm>

namespace memcfg {
namespace {

constexpr Bytes kSmall = Bytes{64} << 10;  // bytes
constexpr Bytes kLarge = Bytes{4} << 20;   // bytes; as NumPy's own allocator

}  // namespace

Heap::Heap(const System& system)
    : system_(system),
      page_(system.page_size()),
      page_bits_(__builtin_ctzll(page_)),
      chunks_(system),
      tables_(system),
      warm_(chunks_),
      cold_(chunks_) {}

Heap::~Heap() {
  for (Segment& segment : segments_) {
    if (segment.size == 0) continue;
    system_.release(reinterpret_cast<void*>(segment.base.load()), segment.size);
  }
  if (!system_.whole_blocks()) release_pages(committed_);
}

bool Heap::has_segment_at(const void* address) const noexcept {
  const auto place = reinterpret_cast<std::uintptr_t>(address);
  return std::any_of(segments_.begin(), segments_.end(), [=](const Segment& segment) {
    return segment.size != 0 && segment.base == place;
  });
}

Heap::Span Heap::touched(const Chunk& chunk) const noexcept {
  const Offset offset = chunk.address - segment_of(chunk).base;
  return {offset >> page_bits_, ((offset + chunk.size - 1) >> page_bits_) + 1};
}

ChunkId Heap::find(const void* address) const noexcept {
  const auto place = reinterpret_cast<std::uintptr_t>(address);
  for (std::size_t i = segment_count_.load(std::memory_order_acquire); i-- > 0;) {
    const Segment& segment = segments_[i];
    const Offset offset = place - segment.base.load(std::memory_order_relaxed);
    if (offset >= segment.size.load(std::memory_order_relaxed)) continue;
    const ChunkId id = segment.starts.find(tables_, offset);
    const bool starts =
        id != 0 && chunks_[id].address.load(std::memory_order_relaxed) == place;
    return starts ? id : 0;
  }
  return 0;
}

Heap::Grant Heap::allocate(Bytes size, Bytes alignment, Lifetime lifetime) {
  const Bytes room = add_or_most(size, alignment - kAlignment);
  ChunkId hole = find_hole(room);
  if (size >= kLarge && chunks_[hole].pages == Chunk::none) {
    const Bytes unit = huge_alignment(chunks_[hole], size);
    try {
      return place(hole, size, std::max(unit, alignment), lifetime);
    } catch (const Refused&) {
      if (unit <= alignment) throw;
    }
    hole = find_hole(room);  // a page less may do where it begins
  }
  return place(hole, size, alignment, lifetime);
}

// Pre: the block fits the hole.
Heap::Grant Heap::place(ChunkId hole, Bytes size, Bytes alignment, Lifetime lifetime) {
  chunks_.secure(2);
  tables_.secure(1);
  const ChunkId id = carve(hole, size, alignment, lifetime);
  const Fresh fresh = take(id);
  if (fresh != Fresh::none) advise_huge(chunks_[id]);
  enter(id);
  return {id, fresh};
}

// Post: the chunk, just carved, has its pages and counts as taken; or it is a hole
// again, and Refused is thrown.
Heap::Fresh Heap::take(ChunkId id) {
  const Bytes size = chunks_[id].size;
  Fresh fresh{};
  try {
    fresh = commit(id);
  } catch (const Refused&) {
    taken_ += size;  // free takes it off again
    free(chunks_[id], false);
    throw;
  }
  taken_ += size;
  most_taken_ = std::max(most_taken_, taken_);
  return fresh;
}

bool Heap::extend(Chunk& chunk, Bytes size) {
  const ChunkId hole = chunk.above;
  const Bytes more = size - chunk.size;
  if (hole == 0 || chunks_[hole].state != Chunk::hole) return false;
  if (chunks_[hole].size < more) return false;
  chunks_.secure(2);
  const ChunkId piece = carve(hole, more, kAlignment, Lifetime::unknown);
  const Fresh fresh = take(piece);
  join(id_of(chunk), piece);
  if (fresh != Fresh::none) advise_huge(chunk);
  return true;
}

bool Heap::shrink(Chunk& chunk, Bytes size) noexcept {
  try {
    chunks_.secure(1);
  } catch (const std::bad_alloc&) {
    return false;
  }
  const ChunkId rest = cut(id_of(chunk), size);
  chunks_[rest].state = Chunk::fresh;
  free(chunks_[rest], true);
  return true;
}

// Of a large block in a hole without memory: that of huge pages, if there is room, as a
// unit that the block has a part of is no huge page. 0: any.
Bytes Heap::huge_alignment(const Chunk& hole, Bytes size) const noexcept {
  const Bytes unit = segment_of(hole).huge.unit();
  if (unit == 0) return 0;
  const std::uintptr_t first = round_up(hole.address, unit);
  return first - hole.address <= hole.size - size ? unit : 0;
}

void Heap::advise_huge(const Chunk& chunk) noexcept {
  if (chunk.size < kLarge) return;
  segment_of(chunk).huge.advise(chunk.address, chunk.address + chunk.size);
}

ChunkId Heap::find_hole(Bytes size) {
  if (const ChunkId id = best_fit(size)) return id;
  add_segment(size);
  return best_fit(size);
}

// Small requests take the smallest hole that fits, so that they lie close together.
// Large ones take one with memory if they can: new pages would cost more than the
// place.
ChunkId Heap::best_fit(Bytes size) const noexcept {
  const ChunkId warm = warm_.best_fit(size);
  if (warm != 0 && size > kSmall) return warm;
  const ChunkId cold = cold_.best_fit(size);
  if (warm == 0 || cold == 0) return warm + cold;
  return chunks_[warm].size <= chunks_[cold].size ? warm : cold;
}

Holes& Heap::holes_of(const Chunk& hole) noexcept {
  return hole.pages == Chunk::all ? warm_ : cold_;
}

// Pre: two chunks are secured. What is left of the hole on either side stays one.
ChunkId Heap::carve(ChunkId id,
                    Bytes size,
                    Bytes alignment,
                    Lifetime lifetime) noexcept {
  unsettle(id);
  const std::uintptr_t begin = chunks_[id].address;
  const std::uintptr_t end = begin + chunks_[id].size;
  const std::uintptr_t place = lifetime == Lifetime::short_lived
                                   ? round_down(end - size, alignment)
                                   : round_up(begin, alignment);
  if (place > begin) {
    const ChunkId rest = id;
    id = cut(id, place - begin);
    settle(rest);
  }
  if (place + size < end) settle(cut(id, size));
  chunks_[id].state = Chunk::fresh;
  return id;
}

// Leaves `size` bytes in the chunk; the rest becomes one above it.
ChunkId Heap::cut(ChunkId id, Bytes size) noexcept {
  const ChunkId rest = chunks_.take();
  Chunk& low = chunks_[id];
  Chunk& high = chunks_[rest];
  high.use.store(0, std::memory_order_relaxed);
  high.address = low.address + size;
  high.size = low.size - size;
  high.segment = low.segment;
  high.state = low.state;
  high.pages = low.pages;
  const Bytes lead = lead_of(low);
  set_lead(high, lead > size ? lead - size : 0);
  set_lead(low, std::min(lead, size));
  high.below = id;
  high.above = low.above;
  if (low.above != 0) chunks_[low.above].below = rest;
  low.above = rest;
  low.size = size;
  return rest;
}

// Pre: neither is settled. The upper one becomes a part of the lower one.
void Heap::join(ChunkId id, ChunkId above) noexcept {
  Chunk& low = chunks_[id];
  Chunk& high = chunks_[above];
  const bool whole = low.pages == Chunk::all;
  set_lead(low, whole ? low.size + lead_of(high) : lead_of(low));
  low.size += high.size;
  if (low.pages != high.pages) low.pages = Chunk::some;
  low.above = high.above;
  if (low.above != 0) chunks_[low.above].below = id;
  high.state = Chunk::spare;
  high.address = 0;
  chunks_.give(above);
}

void Heap::enter(ChunkId id) noexcept {
  Chunk& chunk = chunks_[id];
  chunk.state = Chunk::taken;
  Segment& segment = segment_of(chunk);
  const Offset offset = chunk.address - segment.base;
  const ChunkId lone = segment.starts.lone(offset);
  const Offset other = lone == 0 ? 0 : chunks_[lone].address - segment.base;
  segment.starts.enter(tables_, offset, other, id);
}

void Heap::release(Chunk& chunk) noexcept {
  free(chunk, true);
}

// `committed` false: what is known of the pages holds for a block that was not to be.
void Heap::free(Chunk& chunk, bool committed) noexcept {
  ChunkId id = id_of(chunk);
  Segment& segment = segment_of(chunk);
  if (chunk.state == Chunk::taken) {
    segment.starts.erase(tables_, chunk.address - segment.base);
  }
  taken_ -= chunk.size;
  chunk.state = Chunk::hole;
  if (const ChunkId above = chunk.above; above && chunks_[above].state == Chunk::hole) {
    unsettle(above);
    join(id, above);
  }
  if (const ChunkId below = chunk.below; below && chunks_[below].state == Chunk::hole) {
    unsettle(below);
    join(below, id);
    id = below;
  }
  if (!committed) {
    chunks_[id].pages = Chunk::some;
    set_lead(chunks_[id], 0);
  }
  settle(id);
}

// Makes a hole findable: by size, and by age if it has pages to give.
void Heap::settle(ChunkId id) noexcept {
  Chunk& chunk = chunks_[id];
  const Span span = inside(chunk);
  if (span.first == span.last) chunk.pages = Chunk::all;
  holes_of(chunk).insert(id);
  chunk.older = chunk.younger = 0;
  if (chunk.pages == Chunk::none || span.first == span.last) return;
  chunk.older = youngest_;
  (youngest_ != 0 ? chunks_[youngest_].younger : oldest_) = id;
  youngest_ = id;
}

void Heap::unsettle(ChunkId id) noexcept {
  Chunk& chunk = chunks_[id];
  holes_of(chunk).remove(id);
  if (chunk.older != 0) chunks_[chunk.older].younger = chunk.younger;
  if (chunk.younger != 0) chunks_[chunk.younger].older = chunk.older;
  if (mark_ == id) mark_ = chunk.older;
  if (oldest_ == id) oldest_ = chunk.younger;
  if (youngest_ == id) youngest_ = chunk.older;
}

}  // namespace memcfg
