#include "memcfg/heap.hpp"

// Where the addresses of a heap come from.

#include <algorithm>

namespace memcfg {
namespace {

constexpr Bytes kFirstSegment = Bytes{64} << 20;  // bytes of addresses
constexpr Bytes kFirstBlock = Bytes{2} << 20;     // bytes, where memory comes with them

}  // namespace

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
  if (!system_.whole_blocks()) {
    segment.huge = HugePages(system_, reinterpret_cast<std::uintptr_t>(base), size);
  }
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

}  // namespace memcfg
