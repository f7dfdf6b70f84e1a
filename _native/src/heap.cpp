#include "memcfg/heap.hpp"

#include <algorithm>
#include <array>

namespace memcfg {
namespace {

constexpr Bytes kSmall = Bytes{64} << 10;  // bytes
constexpr Bytes kLarge = Bytes{4} << 20;   // bytes; as NumPy's own allocator

constexpr Bytes kFirstSegment = Bytes{64} << 20;  // bytes of addresses
constexpr Bytes kFirstBlock = Bytes{2} << 20;     // bytes, where memory comes with them

constexpr Bytes kSlack = Bytes{128} << 10;  // bytes
constexpr Bytes kShare = 24;                // one part in so many
constexpr Bytes kPayers = 32;               // runs that pay for a request

std::uintptr_t number(const void* address) noexcept {
  return reinterpret_cast<std::uintptr_t>(address);
}

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
  const std::uintptr_t start = number(address);
  return std::any_of(segments_.begin(), segments_.end(), [=](const Segment& segment) {
    return segment.size != 0 && segment.base == start;
  });
}

Heap::Span Heap::touched(const Chunk& chunk) const noexcept {
  const Offset offset = chunk.address - segment_of(chunk).base;
  return {offset >> page_bits_, ((offset + chunk.size - 1) >> page_bits_) + 1};
}

Heap::Allocation Heap::allocate(Bytes size, Bytes alignment, Lifetime lifetime) {
  const Bytes needed = saturating_add(size, alignment - kAlignment);
  ChunkId free_chunk = find_free(needed);
  if (size >= kLarge && chunks_[free_chunk].pages == Chunk::none) {
    const Bytes unit = huge_alignment(chunks_[free_chunk], size);
    try {
      return allocate_from(free_chunk, size, std::max(unit, alignment), lifetime);
    } catch (const AllocationFailed&) {
      if (unit <= alignment) throw;
    }
    free_chunk = find_free(needed);  // a page less may do where it begins
  }
  return allocate_from(free_chunk, size, alignment, lifetime);
}

// Pre: the block fits the free chunk.
Heap::Allocation Heap::allocate_from(ChunkId free_chunk,
                                     Bytes size,
                                     Bytes alignment,
                                     Lifetime lifetime) {
  chunks_.secure(2);
  tables_.secure(1);
  const ChunkId id = split_aligned(free_chunk, size, alignment, lifetime);
  const Fresh fresh = commit_chunk(id);
  if (fresh != Fresh::none) advise_huge(chunks_[id]);
  publish(id);
  return {id, fresh};
}

// Post: the chunk, just split off, has its pages and counts as allocated; or it is a
// free chunk again, and AllocationFailed is thrown.
Heap::Fresh Heap::commit_chunk(ChunkId id) {
  const Bytes size = chunks_[id].size;
  Fresh fresh{};
  try {
    fresh = commit(id);
  } catch (const AllocationFailed&) {
    allocated_ += size;  // free takes it off again
    free(chunks_[id], false);
    throw;
  }
  allocated_ += size;
  max_allocated_ = std::max(max_allocated_, allocated_);
  return fresh;
}

bool Heap::extend(Chunk& chunk, Bytes size) {
  const ChunkId free_chunk = chunk.above;
  const Bytes more = size - chunk.size;
  if (free_chunk == 0 || chunks_[free_chunk].state != Chunk::free) return false;
  if (chunks_[free_chunk].size < more) return false;
  chunks_.secure(2);
  const ChunkId piece = split_aligned(free_chunk, more, kAlignment, Lifetime::unknown);
  const Fresh fresh = commit_chunk(piece);
  coalesce(id_of(chunk), piece);
  if (fresh != Fresh::none) advise_huge(chunk);
  return true;
}

bool Heap::shrink(Chunk& chunk, Bytes size) noexcept {
  try {
    chunks_.secure(1);
  } catch (const std::bad_alloc&) {
    return false;
  }
  const ChunkId rest = split(id_of(chunk), size);
  chunks_[rest].state = Chunk::fresh;
  free(chunks_[rest], true);
  return true;
}

// Of a large block in a free chunk without memory: that of huge pages, if there is
// budget, as a unit that the block has a part of is no huge page. 0: any.
Bytes Heap::huge_alignment(const Chunk& free_chunk, Bytes size) const noexcept {
  const Bytes unit = segment_of(free_chunk).huge.unit();
  if (unit == 0) return 0;
  const std::uintptr_t first = round_up(free_chunk.address, unit);
  return first - free_chunk.address <= free_chunk.size - size ? unit : 0;
}

void Heap::advise_huge(const Chunk& chunk) noexcept {
  if (chunk.size < kLarge) return;
  segment_of(chunk).huge.advise(chunk.address, chunk.address + chunk.size);
}

ChunkId Heap::find_free(Bytes size) {
  if (const ChunkId id = best_fit(size)) return id;
  add_segment(size);
  return best_fit(size);
}

// Small requests take the smallest free chunk that fits, so that they lie close
// together. Large ones take one with memory if they can: new pages would cost more than
// the place.
ChunkId Heap::best_fit(Bytes size) const noexcept {
  const ChunkId warm = warm_.best_fit(size);
  if (warm != 0 && size > kSmall) return warm;
  const ChunkId cold = cold_.best_fit(size);
  if (warm == 0 || cold == 0) return warm + cold;
  return chunks_[warm].size <= chunks_[cold].size ? warm : cold;
}

FreeChunks& Heap::free_list_of(const Chunk& free_chunk) noexcept {
  return free_chunk.pages == Chunk::all ? warm_ : cold_;
}

// Pre: two chunks are secured. What is left of the free chunk on either side stays one.
ChunkId Heap::split_aligned(ChunkId id,
                            Bytes size,
                            Bytes alignment,
                            Lifetime lifetime) noexcept {
  remove_free(id);
  const std::uintptr_t begin = chunks_[id].address;
  const std::uintptr_t end = begin + chunks_[id].size;
  const std::uintptr_t start = lifetime == Lifetime::short_lived
                                   ? round_down(end - size, alignment)
                                   : round_up(begin, alignment);
  if (start > begin) {
    const ChunkId rest = id;
    id = split(id, start - begin);
    insert_free(rest);
  }
  if (start + size < end) insert_free(split(id, size));
  chunks_[id].state = Chunk::fresh;
  return id;
}

// Leaves `size` bytes in the chunk; the rest becomes one above it.
ChunkId Heap::split(ChunkId id, Bytes size) noexcept {
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

// Pre: neither is in the free lists. The upper one becomes a part of the lower one.
void Heap::coalesce(ChunkId id, ChunkId above) noexcept {
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
  chunks_.release(above);
}

void Heap::publish(ChunkId id) noexcept {
  Chunk& chunk = chunks_[id];
  chunk.state = Chunk::allocated;
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
  if (chunk.state == Chunk::allocated) {
    segment.starts.erase(tables_, chunk.address - segment.base);
  }
  allocated_ -= chunk.size;
  chunk.state = Chunk::free;
  if (const ChunkId above = chunk.above; above && chunks_[above].state == Chunk::free) {
    remove_free(above);
    coalesce(id, above);
  }
  if (const ChunkId below = chunk.below; below && chunks_[below].state == Chunk::free) {
    remove_free(below);
    coalesce(below, id);
    id = below;
  }
  if (!committed) {
    chunks_[id].pages = Chunk::some;
    set_lead(chunks_[id], 0);
  }
  insert_free(id);
}

// Makes a free chunk findable: by size, and by age if it has pages to give.
void Heap::insert_free(ChunkId id) noexcept {
  Chunk& chunk = chunks_[id];
  const Span span = inside(chunk);
  if (span.first == span.last) chunk.pages = Chunk::all;
  free_list_of(chunk).insert(id);
  chunk.older = chunk.younger = 0;
  if (chunk.pages == Chunk::none || span.first == span.last) return;
  chunk.older = youngest_;
  (youngest_ != 0 ? chunks_[youngest_].younger : oldest_) = id;
  youngest_ = id;
}

void Heap::remove_free(ChunkId id) noexcept {
  Chunk& chunk = chunks_[id];
  free_list_of(chunk).remove(id);
  if (chunk.older != 0) chunks_[chunk.older].younger = chunk.younger;
  if (chunk.younger != 0) chunks_[chunk.younger].older = chunk.older;
  if (mark_ == id) mark_ = chunk.older;
  if (oldest_ == id) oldest_ = chunk.younger;
  if (youngest_ == id) youngest_ = chunk.older;
}

// Post: there is a free chunk of `minimum` bytes, or AllocationFailed is thrown.
void Heap::add_segment(Bytes minimum) {
  if (minimum > kNoLimit / 4) throw AllocationFailed{OutOfMemoryInfo::no_addresses};
  const std::size_t slot = free_slot();
  chunks_.secure(3);  // the segment's, and two for what is split off from it
  Bytes size = 0;
  void* const base = reserve(round_up(minimum, page_), size);
  try {
    open_segment(slot, base, size);
  } catch (...) {
    system_.release(base, size);
    throw;
  }
}

// As large as all segments before it together, so that addresses double; as much of
// that as the system grants, and no less than `minimum`.
void* Heap::reserve(Bytes minimum, Bytes& size) {
  for (size = segment_size(minimum);;
       size = std::max(minimum, round_up(size / 2, page_))) {
    if (void* const base = system_.reserve(size, Access::open)) return base;
    if (size == minimum) break;
  }
  if (system_.whole_blocks() && decommit_free(kNoLimit) > 0) {
    if (void* const base = system_.reserve(size, Access::open)) return base;
  }
  throw AllocationFailed{system_.whole_blocks() ? OutOfMemoryInfo::upstream_exhausted
                                                : OutOfMemoryInfo::no_addresses};
}

Bytes Heap::segment_size(Bytes minimum) {
  if (!system_.whole_blocks()) return std::max({minimum, addresses_, kFirstSegment});
  afford(minimum);
  const Bytes left = round_down(ceiling_ - committed_, page_);
  return std::max(minimum, std::min(std::max(addresses_, kFirstBlock), left));
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
  insert_free(whole_segment(slot, system_.whole_blocks() ? Chunk::all : Chunk::none));
}

// A segment as one free chunk. Pre: a chunk is secured.
ChunkId Heap::whole_segment(std::size_t slot, Chunk::Pages pages) noexcept {
  Segment& segment = segments_[slot];
  const ChunkId id = chunks_.take();
  segment.first = id;  // for ever: cut and join leave the lowest chunk its number
  Chunk& chunk = chunks_[id];
  chunk.address = segment.base.load();
  chunk.size = segment.size;
  chunk.below = chunk.above = 0;
  chunk.segment = static_cast<std::uint8_t>(slot);
  chunk.state = Chunk::free;
  chunk.pages = pages;
  chunk.lead = 0;
  return id;
}

// Where none is free, segments that are one free chunk make budget.
std::size_t Heap::free_slot() {
  for (const bool again : {true, false}) {
    for (std::size_t i = 0; i < kMaxSegments; ++i) {
      if (segments_[i].size == 0) return i;
    }
    if (again && system_.whole_blocks()) decommit_free(kNoLimit);
  }
  throw AllocationFailed{OutOfMemoryInfo::no_addresses};
}

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
// each request by itself would make many slow instead of few, and made the 99th
// percentile of mixed sizes ten times longer. Throws AllocationFailed where they
// cannot.
void Heap::afford(Bytes more) {
  const Bytes wanted = saturating_add(committed_, more);
  const Bytes allowed = std::min(allowance(), ceiling_);
  if (wanted > allowed) decommit_free(wanted - allowed + spare() / 2, true);
  if (saturating_add(committed_, more) > ceiling_)
    throw AllocationFailed{OutOfMemoryInfo::fragmented};
}

void Heap::reserve_pages(Bytes more) {
  if (budget_ == nullptr || budget_->reserve(more)) return;
  decommit_free(kNoLimit);
  if (!budget_->reserve(more)) throw AllocationFailed{OutOfMemoryInfo::rss_limit};
}

void Heap::release_pages(Bytes size) noexcept {
  if (budget_ != nullptr && size > 0) budget_->release(size);
}

// How much may be committed before free chunks must pay: a share more than was once in
// use, or, where rounding and caches take that share, a little more than was once
// allocated.
Bytes Heap::allowance() const noexcept {
  return std::max({max_used_ + max_used_ / kShare, max_allocated_ + kSlack, floor_});
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
      decommit_free(kNoLimit);
      if (!system_.commit(address, size, Access::open)) {
        chunks_[id].pages = Chunk::some;  // what was committed before stays
        release_pages(reserved);
        throw AllocationFailed{OutOfMemoryInfo::no_memory};
      }
    }
    segment.pages.set(first, last);
    committed_ += size;
    reserved -= size;
  }
}

// `for_good`: pages that requests pay for with pages come and go. A request waits for
// that, and each run of pages is a call of the system: a few long runs pay before many
// short ones.
Bytes Heap::decommit_free(Bytes wanted, bool for_good) noexcept {
  const Bytes first = for_good ? decommit_older(wanted, wanted / kPayers, true) : 0;
  return first < wanted ? first + decommit_older(wanted - first, 0, for_good) : first;
}

// From the oldest to the youngest free chunk, runs of at least `shortest` bytes.
Bytes Heap::decommit_older(Bytes wanted, Bytes shortest, bool for_good) noexcept {
  Bytes decommitted = 0;
  for (ChunkId id = oldest_; id != 0 && decommitted < wanted;) {
    const ChunkId next = chunks_[id].younger;
    if (chunks_[id].size >= shortest) {
      decommitted += discard(id, wanted - decommitted, shortest, for_good);
    }
    id = next;
  }
  return decommitted;
}

Bytes Heap::decommit_old() noexcept {
  Bytes decommitted = 0;
  const ChunkId mark = mark_;
  for (ChunkId id = mark == 0 ? 0 : oldest_; id != 0;) {
    const ChunkId next = id == mark ? 0 : chunks_[id].younger;
    decommitted += discard(id, kNoLimit, 0, false);
    id = next;
  }
  mark_ = youngest_;
  return decommitted;
}

void Heap::reset() noexcept {
  std::array<Chunk::Pages, kMaxSegments> pages{};
  for (std::size_t i = 0; i < segment_count_; ++i) {
    if (segments_[i].size == 0) continue;
    remove_free(segments_[i].first);
    const Chunk::Pages known = chunks_[segments_[i].first].pages;
    pages[i] = known == Chunk::none ? known : Chunk::some;
    segments_[i].starts.reset();
  }
  chunks_.reset();
  tables_.reset();
  for (std::size_t i = 0; i < segment_count_; ++i) {
    if (segments_[i].size != 0) insert_free(whole_segment(i, pages[i]));
  }
}

Bytes Heap::discard(ChunkId id, Bytes wanted, Bytes shortest, bool for_good) noexcept {
  Chunk& chunk = chunks_[id];
  if (system_.whole_blocks()) return drop_segment(id);
  Segment& segment = segment_of(chunk);
  const Span span = inside(chunk);
  auto* const base = reinterpret_cast<std::byte*>(segment.base.load());
  Bytes decommitted = 0;
  Page last = span.first;
  while (decommitted < wanted) {
    const Page first = segment.pages.find(last, span.last, true);
    if (first == span.last) break;
    last = segment.pages.find(first, span.last, false);
    if ((last - first) * page_ < shortest) continue;
    last = std::min(last, first + ((wanted - decommitted - 1) >> page_bits_) + 1);
    void* const address = base + first * page_;
    const Bytes size = (last - first) * page_;
    segment.huge.forgo(number(address), number(address) + size, for_good);
    system_.decommit(address, size, Access::open);
    segment.pages.clear(first, last);
    decommitted += size;
  }
  const bool more = segment.pages.find(span.first, span.last, true) != span.last;
  if (decommitted == 0 && more) return 0;
  committed_ -= decommitted;
  release_pages(decommitted);
  remove_free(id);
  set_lead(chunk, 0);
  chunk.pages = more ? Chunk::some : Chunk::none;
  insert_free(id);
  return decommitted;
}

// Gives a segment back that is one free chunk. Returns its bytes, or 0.
Bytes Heap::drop_segment(ChunkId id) noexcept {
  Chunk& chunk = chunks_[id];
  Segment& segment = segment_of(chunk);
  const Bytes size = segment.size;
  if (chunk.size != size) return 0;
  remove_free(id);
  chunk.state = Chunk::spare;
  chunk.address = 0;
  chunks_.release(id);
  system_.release(reinterpret_cast<void*>(segment.base.load()), size);
  segment.base = 0;
  segment.size = 0;
  addresses_ -= size;
  committed_ -= size;
  return size;
}

// Pre: nothing is allocated.
void Heap::fill(Bytes size) {
  size = round_up(size, page_);
  const Bytes alignment = system_.whole_blocks() ? kAlignment : page_;  // a new block
  const ChunkId id = allocate(size, alignment, Lifetime::unknown).id;
  void* const address = reinterpret_cast<void*>(chunks_[id].address.load());
  const bool populated = system_.populate(address, size);
  release(chunks_[id]);
  if (!populated) {
    decommit_free(kNoLimit);
    throw AllocationFailed{OutOfMemoryInfo::no_memory};
  }
  floor_ = size;
}

Bytes Heap::metadata() const noexcept {
  Bytes sum = chunks_.bytes() + tables_.bytes();
  for (const Segment& segment : segments_) {
    sum += segment.starts.bytes() + segment.pages.bytes() + segment.huge.bytes();
  }
  return sum;
}

// Of a whole-block system only a segment that is one free chunk can go.
Page Heap::idle_pages(const Chunk& free_chunk) const noexcept {
  if (system_.whole_blocks() && free_chunk.size != segment_of(free_chunk).size)
    return 0;
  const Span span = inside(free_chunk);
  return segment_of(free_chunk).pages.count(span.first, span.last);
}

Bytes Heap::idle() const noexcept {
  Page pages = 0;
  for (ChunkId id = oldest_; id != 0; id = chunks_[id].younger) {
    pages += idle_pages(chunks_[id]);
  }
  return pages << page_bits_;
}

// All of a free chunk but for the pages inside it that are not committed.
Bytes Heap::committed_in(const Chunk& free_chunk) const noexcept {
  const Span span = inside(free_chunk);
  const Page missing = span.last - span.first -
                       segment_of(free_chunk).pages.count(span.first, span.last);
  return free_chunk.size - (missing << page_bits_);
}

Bytes Heap::largest_spare() const noexcept {
  const ChunkId warm = warm_.largest();
  Bytes maximum = warm == 0 ? 0 : chunks_[warm].size;
  for (ChunkId id = oldest_; id != 0; id = chunks_[id].younger) {
    maximum = std::max(maximum, committed_in(chunks_[id]));
  }
  if (maximum >= 2 * page_) return maximum;
  // The free chunks that are not listed have less: the ends of two pages at most.
  for (const Segment& segment : segments_) {
    ChunkId id = segment.size == 0 ? 0 : segment.first;
    for (; id != 0; id = chunks_[id].above) {
      const Chunk& chunk = chunks_[id];
      if (chunk.state == Chunk::free) maximum = std::max(maximum, committed_in(chunk));
    }
  }
  return maximum;
}

// Idle pages pay for new ones, and pages that a free chunk shares with its neighbours
// are paid for: less than one page in all. Idle blocks pay for a new block only if the
// system below coalesces them, which nobody promises.
Bytes Heap::largest_request(Bytes maximum, Bytes below) const noexcept {
  const Bytes ceiling = std::min(ceiling_, saturating_add(committed_, below));
  if (ceiling == kNoLimit) return maximum;
  const Bytes paid = system_.whole_blocks() ? 0 : idle();
  const Bytes budget = round_down(ceiling - (committed_ - paid), page_);
  Bytes size = round_down(std::min(maximum, saturating_add(budget, page_)), kAlignment);
  for (; size > 0; size -= kAlignment) {
    const ChunkId free_chunk = best_fit(size);
    const Bytes fits =
        free_chunk == 0 ? budget : bytes_within(chunks_[free_chunk], budget);
    if (size <= fits) return size;
    if (best_fit(fits) == free_chunk) return fits;  // as all sizes between the two
  }
  return 0;
}

// The most bytes at the low end of a free chunk that commit no more than `budget`
// pages' bytes.
Bytes Heap::bytes_within(const Chunk& free_chunk, Bytes budget) const noexcept {
  const Span span = inside(free_chunk);
  const Bytes paged = (span.last - span.first) << page_bits_;
  if (paged <= budget) return free_chunk.size;
  const Offset offset = free_chunk.address - segment_of(free_chunk).base;
  return (span.first << page_bits_) - offset + budget;
}

HeapExtent Heap::extent(const Chunk& chunk,
                        const std::vector<std::string>& tags) const {
  const std::uintptr_t address = chunk.address;
  if (chunk.state == Chunk::free) {
    return {address, chunk.size, committed_in(chunk), HeapExtent::free, 0, {}};
  }
  const Use use(chunk.use);
  if (use.word() == 0) {
    return {address, chunk.size, chunk.size, HeapExtent::cached, 0, {}};
  }
  const std::string tag = use.tag() < tags.size() ? tags[use.tag()] : std::string();
  return {address, chunk.size, chunk.size, HeapExtent::block, use.requested(), tag};
}

std::vector<HeapExtent> Heap::layout(const std::vector<std::string>& tags,
                                     bool in_pieces) const {
  std::vector<HeapExtent> rows;
  for (const ChunkId first : first_chunks()) {
    for (ChunkId id = first; id != 0; id = chunks_[id].above) {
      const HeapExtent whole = extent(chunks_[id], tags);
      if (!in_pieces || whole.committed == 0 || whole.committed == whole.size) {
        rows.push_back(whole);
      } else {
        append_runs(whole, chunks_[id], rows);
      }
    }
  }
  return rows;
}

// The parts of a free chunk that lie in pages of its neighbours have memory, as these
// have.
void Heap::append_runs(const HeapExtent& whole,
                       const Chunk& chunk,
                       std::vector<HeapExtent>& rows) const {
  const Segment& segment = segment_of(chunk);
  const Span span = inside(chunk);
  std::uintptr_t start = whole.address;
  const auto add = [&](std::uintptr_t end, bool committed) {
    const Bytes size = end - start;
    if (size > 0) {
      rows.push_back({start, size, committed ? size : 0, HeapExtent::free, 0, {}});
    }
    start = end;
  };
  for (Page page = span.first; page < span.last;) {
    const Page bare = segment.pages.find(page, span.last, false);
    page = segment.pages.find(bare, span.last, true);
    add(segment.base + (bare << page_bits_), true);
    add(segment.base + (page << page_bits_), false);
  }
  add(whole.address + whole.size, true);
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
  require(sum.allocated == allocated_, "the allocated chunks do not add up");
  require(sum.allocated + sum.free == addresses_,
          "the chunks do not fill the addresses");
  require(sum.pages << page_bits_ == committed_, "the committed pages do not add up");
  require(committed_ <= ceiling_, "more is committed than the ceiling");
  require(warm_.check() + cold_.check() == sum.free_count,
          "the trees do not have all the free chunks");
}

void Heap::check_segment(ChunkId first, Totals& sum) const {
  const Segment& segment = segment_of(chunks_[first]);
  segment.huge.check();
  sum.pages += segment.pages.count(0, segment.size >> page_bits_);
  std::uintptr_t expected = segment.base;
  ChunkId below = 0;
  for (ChunkId id = first; id != 0; below = id, id = chunks_[id].above) {
    const Chunk& chunk = chunks_[id];
    require(chunk.address == expected && chunk.below == below, "a gap between chunks");
    require(chunk.size > 0 && chunk.size % kAlignment == 0, "a chunk's odd size");
    expected += chunk.size;
    check_chunk(id);
    if (chunk.state == Chunk::allocated) {
      sum.allocated += chunk.size;
    } else {
      sum.free += chunk.size;
      ++sum.free_count;
    }
  }
  require(expected == segment.base + segment.size, "the chunks do not fill a segment");
}

void Heap::check_chunk(ChunkId id) const {
  const Chunk& chunk = chunks_[id];
  const Segment& segment = segment_of(chunk);
  const bool found = find(reinterpret_cast<void*>(chunk.address.load())) == id;
  require(found == (chunk.state == Chunk::allocated),
          "a start is missing, or left over");
  const Span out = touched(chunk);
  const Span in = inside(chunk);
  if (chunk.state == Chunk::allocated || chunk.pages == Chunk::all) {
    require(segment.pages.count(out.first, out.last) == out.last - out.first,
            "a page of a block is not committed");
  }
  if (chunk.state == Chunk::allocated) return;
  require(chunk.state == Chunk::free, "a spare chunk among the others");
  require(chunk.above == 0 || chunks_[chunk.above].state == Chunk::allocated,
          "two free chunks touch");
  require(chunk.pages != Chunk::none || segment.pages.count(in.first, in.last) == 0,
          "a free chunk has more pages than it says");
}

}  // namespace memcfg
