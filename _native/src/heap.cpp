#include "memcfg/heap.hpp"

#include <algorithm>

namespace memcfg {
namespace {

constexpr Bytes kFirstSegment = Bytes{64} << 20;  // bytes of addresses
constexpr Bytes kFirstBlock = Bytes{2} << 20;     // bytes, where memory comes with them
constexpr Bytes kSmall = Bytes{64} << 10;         // bytes

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
}

Heap::Segment& Heap::segment_of(const Chunk& chunk) const noexcept {
  return segments_[chunk.segment];
}

Heap::Span Heap::touched(const Chunk& chunk) const noexcept {
  const Offset offset = chunk.address - segment_of(chunk).base;
  return {offset >> page_bits_, ((offset + chunk.size - 1) >> page_bits_) + 1};
}

Heap::Span Heap::inside(const Chunk& chunk) const noexcept {
  const Offset offset = chunk.address - segment_of(chunk).base;
  const Page first = (offset + page_ - 1) >> page_bits_;
  return {first, std::max(first, (offset + chunk.size) >> page_bits_)};
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

ChunkId Heap::allocate(Bytes size, Bytes alignment, Lifetime lifetime) {
  chunks_.secure(2);
  tables_.secure(1);
  const ChunkId hole = find_hole(add_or_most(size, alignment - kAlignment));
  const ChunkId id = carve(hole, size, alignment, lifetime);
  try {
    commit(id);
  } catch (const Refused&) {
    taken_ += size;  // free takes it off again
    free(chunks_[id], false);
    throw;
  }
  taken_ += size;
  most_taken_ = std::max(most_taken_, taken_);
  enter(id);
  return id;
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

// Post: there is a hole of `least` bytes, or Refused is thrown.
void Heap::add_segment(Bytes least) {
  if (least > kNoLimit / 4) throw Refused{Shortage::no_addresses};
  const std::size_t slot = free_slot();
  chunks_.secure(3);  // the segment's, and two for what is carved from it
  Bytes size = 0;
  void* const base = reserve(round_up(least, page_), size);
  try {
    open_segment(slot, base, size);
  } catch (...) {
    system_.release(base, size);
    throw;
  }
}

// As large as all segments before it together, so that addresses double; as much of
// that as the system grants, and no less than `least`.
void* Heap::reserve(Bytes least, Bytes& size) {
  for (size = segment_size(least);; size = std::max(least, round_up(size / 2, page_))) {
    if (void* const base = system_.reserve(size, Access::open)) return base;
    if (size == least) break;
  }
  if (system_.whole_blocks() && give_back(kNoLimit) > 0) {
    if (void* const base = system_.reserve(size, Access::open)) return base;
  }
  throw Refused{system_.whole_blocks() ? Shortage::upstream_refused
                                       : Shortage::no_addresses};
}

Bytes Heap::segment_size(Bytes least) {
  if (!system_.whole_blocks()) return std::max({least, addresses_, kFirstSegment});
  afford(least);
  const Bytes room = round_down(ceiling_ - committed_, page_);
  return std::max(least, std::min(std::max(addresses_, kFirstBlock), room));
}

void Heap::open_segment(std::size_t slot, void* base, Bytes size) {
  Segment& segment = segments_[slot];
  segment.starts = Starts(system_, size);
  segment.pages = PageMap(system_, size >> page_bits_);
  segment.base = reinterpret_cast<std::uintptr_t>(base);
  segment.size = size;
  addresses_ += size;
  if (slot == segment_count_) segment_count_.store(slot + 1, std::memory_order_release);
  if (system_.whole_blocks()) {
    segment.pages.set(0, size >> page_bits_);
    committed_ += size;
  }
  settle(whole(slot, system_.whole_blocks() ? Chunk::all : Chunk::none));
}

// A segment as one hole. Pre: a chunk is secured.
ChunkId Heap::whole(std::size_t slot, Chunk::Pages pages) noexcept {
  Segment& segment = segments_[slot];
  const ChunkId id = chunks_.take();
  segment.first = id;  // for ever: cut and join leave the lowest chunk its number
  Chunk& chunk = chunks_[id];
  chunk.address = segment.base.load();
  chunk.size = segment.size;
  chunk.below = chunk.above = 0;
  chunk.segment = static_cast<std::uint8_t>(slot);
  chunk.state = Chunk::hole;
  chunk.pages = pages;
  chunk.lead = 0;
  return id;
}

// Where none is free, segments that are one hole make room.
std::size_t Heap::free_slot() {
  for (const bool again : {true, false}) {
    for (std::size_t i = 0; i < kMaxSegments; ++i) {
      if (segments_[i].size == 0) return i;
    }
    if (again && system_.whole_blocks()) give_back(kNoLimit);
  }
  throw Refused{Shortage::no_addresses};
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

ChunkId Heap::id_of(const Chunk& chunk) const noexcept {
  return chunk.below != 0 ? chunks_[chunk.below].above : segment_of(chunk).first;
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
