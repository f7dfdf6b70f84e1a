#include "memcfg/heap.hpp"

// Which pages of a heap have memory, and what they cost.

#include <algorithm>
#include <array>

namespace memcfg {
namespace {

constexpr Bytes kSlack = Bytes{128} << 10;  // bytes
constexpr Bytes kShare = 24;                // one part in so many

std::uintptr_t number(const void* address) noexcept {
  return reinterpret_cast<std::uintptr_t>(address);
}

}  // namespace

// Post: every page that the chunk touches is committed.
Heap::Fresh Heap::commit(ChunkId id) {
  Chunk& chunk = chunks_[id];
  Fresh fresh = Fresh::none;
  if (lead_of(chunk) < chunk.size) {
    const PageMap& pages = segment_of(chunk).pages;
    const Span span = touched(chunk);
    const Page missing = span.last - span.first - pages.count(span.first, span.last);
    if (missing > 0) {
      const Span in = inside(chunk);
      fresh = pages.find(in.first, in.last, true) == in.last ? Fresh::all : Fresh::some;
      afford(missing * page_);
      reserve_pages(missing * page_);
      commit_runs(id, missing * page_);
    }
  }
  chunk.pages = Chunk::all;
  return fresh;
}

// Holes pay for the new pages where they can, and for some of those to come: to pay for
// each request by itself would make many slow instead of few. Throws Refused where they
// cannot.
void Heap::afford(Bytes more) {
  const Bytes wanted = add_or_most(committed_, more);
  const Bytes allowed = std::min(allowance(), ceiling_);
  if (wanted > allowed) give_back(wanted - allowed + spare() / 2, true);
  if (add_or_most(committed_, more) > ceiling_) throw Refused{Shortage::fragmented};
}

void Heap::reserve_pages(Bytes more) {
  if (budget_ == nullptr || budget_->reserve(more)) return;
  give_back(kNoLimit);
  if (!budget_->reserve(more)) throw Refused{Shortage::rss_limit};
}

void Heap::release_pages(Bytes size) noexcept {
  if (budget_ != nullptr && size > 0) budget_->release(size);
}

// How much may be committed before holes must pay: a share more than was once in use,
// or, where rounding and caches take that share, a little more than was once taken.
Bytes Heap::allowance() const noexcept {
  return std::max({most_used_ + most_used_ / kShare, most_taken_ + kSlack, floor_});
}

// Pre: so many bytes are reserved, just those of the pages that are missing.
void Heap::commit_runs(ChunkId id, Bytes reserved) {
  const Chunk& chunk = chunks_[id];
  Segment& segment = segment_of(chunk);
  const Span span = touched(chunk);
  auto* const base = reinterpret_cast<std::byte*>(segment.base.load());
  Page last = span.first;
  for (;;) {
    const Page first = segment.pages.find(last, span.last, false);
    if (first == span.last) return;
    last = segment.pages.find(first, span.last, true);
    const Bytes size = (last - first) * page_;
    void* const address = base + first * page_;
    if (!system_.commit(address, size, Access::open)) {
      give_back(kNoLimit);
      if (!system_.commit(address, size, Access::open)) {
        chunks_[id].pages = Chunk::some;  // what was committed before stays
        release_pages(reserved);
        throw Refused{Shortage::no_memory};
      }
    }
    segment.pages.set(first, last);
    committed_ += size;
    reserved -= size;
  }
}

// `for_good`: pages that requests pay for with pages come and go.
Bytes Heap::give_back(Bytes wanted, bool for_good) noexcept {
  Bytes given = 0;
  for (ChunkId id = oldest_; id != 0 && given < wanted;) {
    const ChunkId next = chunks_[id].younger;
    given += discard(id, wanted - given, for_good);
    id = next;
  }
  return given;
}

Bytes Heap::give_back_old() noexcept {
  Bytes given = 0;
  const ChunkId mark = mark_;
  for (ChunkId id = mark == 0 ? 0 : oldest_; id != 0;) {
    const ChunkId next = id == mark ? 0 : chunks_[id].younger;
    given += discard(id, kNoLimit, false);
    id = next;
  }
  mark_ = youngest_;
  return given;
}

void Heap::forget() noexcept {
  std::array<Chunk::Pages, kMaxSegments> pages{};
  for (std::size_t i = 0; i < segment_count_; ++i) {
    if (segments_[i].size == 0) continue;
    unsettle(segments_[i].first);
    const Chunk::Pages known = chunks_[segments_[i].first].pages;
    pages[i] = known == Chunk::none ? known : Chunk::some;
    segments_[i].starts.forget();
  }
  chunks_.forget();
  tables_.forget();
  for (std::size_t i = 0; i < segment_count_; ++i) {
    if (segments_[i].size != 0) settle(whole(i, pages[i]));
  }
}

Bytes Heap::discard(ChunkId id, Bytes wanted, bool for_good) noexcept {
  Chunk& chunk = chunks_[id];
  if (system_.whole_blocks()) return drop_segment(id);
  Segment& segment = segment_of(chunk);
  const Span span = inside(chunk);
  auto* const base = reinterpret_cast<std::byte*>(segment.base.load());
  Bytes given = 0;
  Page last = span.first;
  while (given < wanted) {
    const Page first = segment.pages.find(last, span.last, true);
    if (first == span.last) break;
    last = segment.pages.find(first, span.last, false);
    last = std::min(last, first + ((wanted - given - 1) >> page_bits_) + 1);
    void* const address = base + first * page_;
    const Bytes size = (last - first) * page_;
    segment.huge.forgo(number(address), number(address) + size, for_good);
    system_.decommit(address, size, Access::open);
    segment.pages.clear(first, last);
    given += size;
  }
  committed_ -= given;
  release_pages(given);
  const bool more = segment.pages.find(last, span.last, true) != span.last;
  unsettle(id);
  set_lead(chunk, 0);
  chunk.pages = more ? Chunk::some : Chunk::none;
  settle(id);
  return given;
}

// Gives a segment back that is one hole. Returns its bytes, or 0.
Bytes Heap::drop_segment(ChunkId id) noexcept {
  Chunk& chunk = chunks_[id];
  Segment& segment = segment_of(chunk);
  const Bytes size = segment.size;
  if (chunk.size != size) return 0;
  unsettle(id);
  chunk.state = Chunk::spare;
  chunk.address = 0;
  chunks_.give(id);
  system_.release(reinterpret_cast<void*>(segment.base.load()), size);
  segment.base = 0;
  segment.size = 0;
  addresses_ -= size;
  committed_ -= size;
  return size;
}

// Pre: nothing is taken.
void Heap::fill(Bytes size) {
  size = round_up(size, page_);
  const ChunkId id = allocate(size, page_, Lifetime::unknown).id;
  void* const address = reinterpret_cast<void*>(chunks_[id].address.load());
  const bool populated = system_.populate(address, size);
  release(chunks_[id]);
  if (!populated) {
    give_back(kNoLimit);
    throw Refused{Shortage::no_memory};
  }
  floor_ = size;
}

}  // namespace memcfg
