#include "memcfg/heap.hpp"

#include <algorithm>
#include <limits>

namespace memcfg {
namespace {

constexpr Bytes kFirstSegment = Bytes{64} << 20;  // bytes of addresses
constexpr Bytes kFirstBlock = Bytes{2} << 20;     // bytes, where memory comes with them
constexpr Bytes kSlack = Bytes{128} << 10;        // bytes
constexpr Bytes kSmall = Bytes{64} << 10;         // bytes
constexpr Bytes kShare = 24;                      // one part in so many

// Pre, of both: the alignment is a power of two.
constexpr Bytes down(Bytes size, Bytes alignment) noexcept {
  return size & ~(alignment - 1);
}
constexpr Bytes up(Bytes size, Bytes alignment) noexcept {
  return down(size + alignment - 1, alignment);
}

int bits_of(Bytes power) noexcept {
  return __builtin_ctzll(power);
}

constexpr Bytes plus(Bytes size, Bytes more) noexcept {
  return size > kNoLimit - more ? kNoLimit : size + more;
}

}  // namespace

Heap::Heap(const System& system)
    : system_(system),
      page_(system.page_size()),
      page_bits_(bits_of(page_)),
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
  const ChunkId hole = find_hole(plus(size, alignment - kAlignment));
  const ChunkId id = carve(hole, size, alignment, lifetime);
  try {
    commit(id);
  } catch (const Refused&) {
    taken_ += size;  // release takes it off again
    release(chunks_[id]);
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
  void* const base = reserve(up(least, page_), size);
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
  for (size = segment_size(least);; size = std::max(least, up(size / 2, page_))) {
    if (void* const base = system_.reserve(size, Access::open)) return base;
    if (size == least) break;
  }
  if (system_.whole_blocks() && give_back(kNoLimit) > 0) {
    if (void* const base = system_.reserve(size, Access::open)) return base;
  }
  throw Refused{system_.whole_blocks() ? Shortage::no_memory : Shortage::no_addresses};
}

Bytes Heap::segment_size(Bytes least) {
  if (!system_.whole_blocks()) return std::max({least, addresses_, kFirstSegment});
  afford(least);
  const Bytes room = down(ceiling_ - committed_, page_);
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
  const ChunkId id = chunks_.take();
  segment.first = id;  // for ever: cut and join leave the lowest chunk its number
  Chunk& chunk = chunks_[id];
  chunk.address = segment.base.load();
  chunk.size = size;
  chunk.below = chunk.above = 0;
  chunk.segment = static_cast<std::uint8_t>(slot);
  chunk.state = Chunk::hole;
  chunk.pages = Chunk::none;
  chunk.lead = 0;
  if (system_.whole_blocks()) {
    chunk.pages = Chunk::all;
    segment.pages.set(0, size >> page_bits_);
    committed_ += size;
  }
  settle(id);
}

std::size_t Heap::free_slot() const {
  for (std::size_t i = 0; i < kMaxSegments; ++i) {
    if (segments_[i].size == 0) return i;
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
                                   ? down(end - size, alignment)
                                   : up(begin, alignment);
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
  set_lead(low, lead);
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
  if (oldest_ == id) oldest_ = chunk.younger;
  if (youngest_ == id) youngest_ = chunk.older;
}

// Bytes at the low end of a hole behind which every page is known to be committed.
Bytes Heap::lead_of(const Chunk& hole) noexcept {
  return hole.pages == Chunk::all ? hole.size : Bytes{hole.lead} * kAlignment;
}

void Heap::set_lead(Chunk& hole, Bytes lead) noexcept {
  constexpr Bytes kMost = std::numeric_limits<std::uint32_t>::max();
  hole.lead = static_cast<std::uint32_t>(std::min(lead / kAlignment, kMost));
}

// Post: every page that the chunk touches is committed.
void Heap::commit(ChunkId id) {
  Chunk& chunk = chunks_[id];
  if (lead_of(chunk) < chunk.size) {
    const Span span = touched(chunk);
    const Page missing =
        span.last - span.first - segment_of(chunk).pages.count(span.first, span.last);
    if (missing > 0) {
      afford(missing * page_);
      commit_runs(id);
    }
  }
  chunk.pages = Chunk::all;
}

// Holes pay for the new pages where they can, and for some of those to come: to pay for
// each request by itself would make many slow instead of few. Throws Refused where they
// cannot.
void Heap::afford(Bytes more) {
  const Bytes wanted = plus(committed_, more);
  const Bytes allowed = std::min(allowance(), ceiling_);
  if (wanted > allowed) give_back(wanted - allowed + spare() / 2);
  if (plus(committed_, more) > ceiling_) throw Refused{Shortage::fragmented};
  if (gate_ == nullptr || gate_->admits(more)) return;
  give_back(kNoLimit);
  if (!gate_->admits(more)) throw Refused{Shortage::rss_limit};
}

// How much may be committed before holes must pay: a share more than was once in use,
// or, where rounding and caches take that share, a little more than was once taken.
Bytes Heap::allowance() const noexcept {
  return std::max({most_used_ + most_used_ / kShare, most_taken_ + kSlack, floor_});
}

void Heap::commit_runs(ChunkId id) {
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
        throw Refused{Shortage::no_memory};
      }
    }
    segment.pages.set(first, last);
    committed_ += size;
  }
}

Bytes Heap::give_back(Bytes wanted) noexcept {
  Bytes given = 0;
  for (ChunkId id = oldest_; id != 0 && given < wanted;) {
    const ChunkId next = chunks_[id].younger;
    given += discard(id, wanted - given);
    id = next;
  }
  return given;
}

Bytes Heap::discard(ChunkId id, Bytes wanted) noexcept {
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
    system_.decommit(base + first * page_, (last - first) * page_, Access::open);
    segment.pages.clear(first, last);
    given += (last - first) * page_;
  }
  committed_ -= given;
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
  size = up(size, page_);
  const ChunkId id = allocate(size, page_, Lifetime::unknown);
  void* const address = reinterpret_cast<void*>(chunks_[id].address.load());
  const bool populated = system_.populate(address, size);
  release(chunks_[id]);
  if (!populated) {
    give_back(kNoLimit);
    throw Refused{Shortage::no_memory};
  }
  floor_ = size;
}

Bytes Heap::metadata() const noexcept {
  Bytes sum = chunks_.bytes() + tables_.bytes();
  for (const Segment& segment : segments_) {
    sum += segment.starts.bytes() + segment.pages.bytes();
  }
  return sum;
}

// Of a whole-block system only a segment that is one hole can go.
Page Heap::idle_pages(const Chunk& hole) const noexcept {
  if (system_.whole_blocks() && hole.size != segment_of(hole).size) return 0;
  const Span span = inside(hole);
  return segment_of(hole).pages.count(span.first, span.last);
}

Bytes Heap::idle() const noexcept {
  Page pages = 0;
  for (ChunkId id = oldest_; id != 0; id = chunks_[id].younger) {
    pages += idle_pages(chunks_[id]);
  }
  return pages << page_bits_;
}

Bytes Heap::largest_idle() const noexcept {
  Page pages = 0;
  for (ChunkId id = oldest_; id != 0; id = chunks_[id].younger) {
    pages = std::max(pages, idle_pages(chunks_[id]));
  }
  return pages << page_bits_;
}

// Idle pages pay for new ones, and pages that a hole shares with its neighbours are
// paid for: less than one page in all.
Bytes Heap::largest_request(Bytes most) const noexcept {
  if (ceiling_ == kNoLimit) return most;
  const Bytes room = down(ceiling_ - (committed_ - idle()), page_);
  Bytes size = down(std::min(most, plus(room, page_)), kAlignment);
  for (; size > 0; size -= kAlignment) {
    const ChunkId hole = best_fit(size);
    if (size <= (hole == 0 ? room : room_in(chunks_[hole], room))) break;
  }
  return size;
}

// The most bytes at the low end of a hole that commit no more than `room` pages' bytes.
Bytes Heap::room_in(const Chunk& hole, Bytes room) const noexcept {
  const Span span = inside(hole);
  const Bytes paged = (span.last - span.first) << page_bits_;
  if (paged <= room) return hole.size;
  const Offset offset = hole.address - segment_of(hole).base;
  return (span.first << page_bits_) - offset + room;
}

std::vector<Stretch> Heap::layout() const {
  std::vector<Stretch> rows;
  for (const ChunkId first : first_chunks()) {
    for (ChunkId id = first; id != 0; id = chunks_[id].above) {
      rows.push_back(stretch(chunks_[id]));
    }
  }
  return rows;
}

Stretch Heap::stretch(const Chunk& chunk) const noexcept {
  const std::uintptr_t address = chunk.address;
  if (chunk.state == Chunk::hole) {
    return {address, chunk.size, idle_pages(chunk) << page_bits_, Stretch::hole};
  }
  const auto state = chunk.use == 0 ? Stretch::kept : Stretch::block;
  return {address, chunk.size, chunk.size, state};
}

std::vector<ChunkId> Heap::first_chunks() const {
  std::vector<ChunkId> ids;
  for (const Segment& segment : segments_) {
    if (segment.size != 0) ids.push_back(segment.first);
  }
  std::sort(ids.begin(), ids.end(), [this](ChunkId a, ChunkId b) {
    return chunks_[a].address < chunks_[b].address;
  });
  return ids;
}

void Heap::check() const {
  Totals sum;
  for (const ChunkId id : first_chunks()) check_segment(id, sum);
  require(sum.taken == taken_, "the taken chunks do not add up");
  require(sum.taken + sum.holes == addresses_, "the chunks do not fill the addresses");
  require(sum.pages << page_bits_ == committed_, "the committed pages do not add up");
  require(committed_ <= ceiling_, "more is committed than the ceiling");
  require(warm_.check() + cold_.check() == sum.hole_count,
          "the trees do not have all the holes");
}

void Heap::check_segment(ChunkId first, Totals& sum) const {
  const Segment& segment = segment_of(chunks_[first]);
  sum.pages += segment.pages.count(0, segment.size >> page_bits_);
  std::uintptr_t place = segment.base;
  ChunkId below = 0;
  for (ChunkId id = first; id != 0; below = id, id = chunks_[id].above) {
    const Chunk& chunk = chunks_[id];
    require(chunk.address == place && chunk.below == below, "a gap between chunks");
    require(chunk.size > 0 && chunk.size % kAlignment == 0, "a chunk's odd size");
    place += chunk.size;
    check_chunk(id);
    if (chunk.state == Chunk::taken) {
      sum.taken += chunk.size;
    } else {
      sum.holes += chunk.size;
      ++sum.hole_count;
    }
  }
  require(place == segment.base + segment.size, "the chunks do not fill a segment");
}

void Heap::check_chunk(ChunkId id) const {
  const Chunk& chunk = chunks_[id];
  const Segment& segment = segment_of(chunk);
  const bool found = find(reinterpret_cast<void*>(chunk.address.load())) == id;
  require(found == (chunk.state == Chunk::taken), "a start is missing, or left over");
  const Span out = touched(chunk);
  const Span in = inside(chunk);
  if (chunk.state == Chunk::taken || chunk.pages == Chunk::all) {
    require(segment.pages.count(out.first, out.last) == out.last - out.first,
            "a page of a block is not committed");
  }
  if (chunk.state == Chunk::taken) return;
  require(chunk.state == Chunk::hole, "a spare chunk among the others");
  require(chunk.above == 0 || chunks_[chunk.above].state == Chunk::taken,
          "two holes touch");
  require(chunk.pages != Chunk::none || segment.pages.count(in.first, in.last) == 0,
          "a hole has more pages than it says");
}

}  // namespace memcfg
