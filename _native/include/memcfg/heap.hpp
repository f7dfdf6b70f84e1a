// A heap: blocks of any size in reserved addresses, best fit, neighbours coalesced.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "memcfg/error.hpp"
#include "memcfg/free_chunks.hpp"
#include "memcfg/huge_pages.hpp"
#include "memcfg/metadata.hpp"
#include "memcfg/page_map.hpp"
#include "memcfg/resource.hpp"
#include "memcfg/starts.hpp"
#include "memcfg/system.hpp"
#include "memcfg/types.hpp"

namespace memcfg {

// Why a heap refuses; nothing has changed.
struct AllocationFailed {
  OutOfMemoryInfo::Cause cause;
};

// One range of a heap's addresses, as it is now.
struct HeapExtent {
  enum State { free, cached, block };  // cached: kept by a thread for its next request
  std::uintptr_t address;
  Bytes size;       // bytes
  Bytes committed;  // bytes of its pages that have memory
  State state;
  Bytes requested;  // bytes, as asked for; 0 unless it is a block
  std::string tag;  // who holds the block
};

// Memory that several heaps reserve pages from, before they commit them.
class PageBudget {
 public:
  virtual ~PageBudget() = default;
  virtual bool reserve(Bytes more) noexcept = 0;  // false: nothing has changed
  virtual void release(Bytes size) noexcept = 0;  // pre: reserved
};

// Chunks fill each segment of addresses without a gap; two free chunks never touch.
// Memory stands behind pages, not chunks: a block commits the pages it touches, a free
// chunk keeps what it was left with until the memory is wanted elsewhere. So a request
// that no free chunk fits costs addresses; the pages of free chunks pay for it
// (`allowance`).
//
//     allocated + free chunks == addresses, allocated <= committed + less than a page a
//     block's end, committed <= ceiling, committed == page size × bits set, committed
//     == what is reserved of the budget, where there is one.
//
// Used under one lock, but for `find`.
class Heap {
 public:
  explicit Heap(const System& system);
  ~Heap();

  // Which of the pages inside a chunk were committed for it; nobody has touched those.
  enum class Fresh { none, some, all };
  struct Allocation {
    ChunkId id;
    Fresh fresh;
  };

  // Pre: size and alignment are multiples of kAlignment, alignment a power of two.
  // Throws AllocationFailed or std::bad_alloc; nothing has changed then.
  Allocation allocate(Bytes size, Bytes alignment, Lifetime lifetime);

  // Makes a chunk so large, from the free chunk above it; false where that is too
  // small. Pre: allocated, and size is a larger multiple of kAlignment. Throws as
  // allocate does.
  bool extend(Chunk& chunk, Bytes size);

  // Leaves the chunk `size` bytes; the rest becomes a free chunk, or a part of one.
  // False: there is no memory for its metadata, and nothing has changed. Pre:
  // allocated, and size is a smaller multiple of kAlignment.
  bool shrink(Chunk& chunk, Bytes size) noexcept;

  // Pre: allocated. The chunk becomes a free chunk, or a part of one.
  void release(Chunk& chunk) noexcept;

  // The chunk that starts at an address and is allocated; 0 when there is none. Any
  // thread.
  ChunkId find(const void* address) const noexcept;
  Chunk& operator[](ChunkId id) const noexcept { return chunks_[id]; }

  // Whether a reservation of addresses begins there.
  bool has_segment_at(const void* address) const noexcept;

  // No more than so much memory is to be committed. Pre: committed() <= ceiling.
  void set_ceiling(Bytes ceiling) noexcept { ceiling_ = ceiling; }
  Bytes ceiling() const noexcept { return ceiling_; }

  // The maximum of bytes that its owner ever counted as in use.
  void set_max_used(Bytes size) noexcept { max_used_ = size; }

  // Where pages that are committed one by one are reserved, until the heap goes. Pre:
  // nothing is committed.
  void set_budget(PageBudget* budget) noexcept { budget_ = budget; }

  // Reserves, commits and populates `size` bytes at once, and keeps them committed
  // while the ceiling allows. Throws AllocationFailed.
  void fill(Bytes size);

  // Gives at least so many bytes of the free chunks' pages back if there are as many.
  // Returns the bytes given back.
  Bytes decommit_free(Bytes wanted) noexcept { return decommit_free(wanted, false); }

  // The same of the free chunks that were free chunks when it was last called.
  Bytes decommit_old() noexcept;

  // The metadata shrink to what the segments need. Pre: nothing is allocated.
  void reset() noexcept;

  Bytes allocated() const noexcept { return allocated_; }  // bytes
  Bytes committed() const noexcept { return committed_; }  // bytes
  Bytes addresses() const noexcept { return addresses_; }  // bytes
  Bytes metadata() const noexcept;                         // bytes

  // Committed bytes that decommit_free could give.
  Bytes idle() const noexcept;
  // Committed bytes in no chunk that is allocated, and the most of them in one
  // free chunk.
  Bytes spare() const noexcept { return committed_ - std::min(committed_, allocated_); }
  Bytes largest_spare() const noexcept;
  // The largest request of at most `most` bytes that allocate would grant now, when the
  // system has `below` bytes more.
  Bytes largest_request(Bytes maximum, Bytes below) const noexcept;

  // `tags`: their names, by number. `in_pieces`: each free chunk in pieces that have
  // memory throughout or nowhere.
  std::vector<HeapExtent> layout(const std::vector<std::string>& tags = {},
                                 bool in_pieces = false) const;
  void check() const;  // throws invariant_broken

 private:
  struct Segment {
    std::atomic<std::uintptr_t> base{0};
    std::atomic<Bytes> size{0};
    ChunkId first = 0;
    Starts starts;
    PageMap pages;
    HugePages huge;
  };
  struct Span {
    Page first, last;  // [first, last)
  };
  struct Totals {
    Bytes allocated = 0;
    Bytes free = 0;
    Page pages = 0;
    std::size_t free_count = 0;
  };
  static constexpr std::size_t kMaxSegments = 128;

  Span touched(const Chunk& chunk) const noexcept;  // pages with a byte of it
  Span inside(const Chunk& chunk) const noexcept;   // pages with no byte of another
  Page idle_pages(const Chunk& free_chunk) const noexcept;
  Bytes committed_in(const Chunk& free_chunk) const noexcept;
  Bytes bytes_within(const Chunk& free_chunk, Bytes budget) const noexcept;
  ChunkId id_of(const Chunk& chunk) const noexcept;
  Segment& segment_of(const Chunk& chunk) const noexcept;

  ChunkId find_free(Bytes size);
  ChunkId best_fit(Bytes size) const noexcept;
  FreeChunks& free_list_of(const Chunk& free_chunk) noexcept;
  void add_segment(Bytes minimum);
  void open_segment(std::size_t slot, void* base, Bytes size);
  ChunkId whole_segment(std::size_t slot, Chunk::Pages pages) noexcept;
  void* reserve(Bytes minimum, Bytes& size);
  Bytes segment_size(Bytes minimum);
  std::size_t free_slot();
  ChunkId split_aligned(ChunkId id,
                        Bytes size,
                        Bytes alignment,
                        Lifetime lifetime) noexcept;
  ChunkId split(ChunkId id, Bytes size) noexcept;
  void coalesce(ChunkId id, ChunkId above) noexcept;
  Allocation allocate_from(ChunkId free_chunk,
                           Bytes size,
                           Bytes alignment,
                           Lifetime lifetime);
  Bytes huge_alignment(const Chunk& free_chunk, Bytes size) const noexcept;
  void advise_huge(const Chunk& chunk) noexcept;
  void publish(ChunkId id) noexcept;
  void free(Chunk& chunk, bool committed) noexcept;
  void insert_free(ChunkId id) noexcept;
  void remove_free(ChunkId id) noexcept;

  // Bytes at the low end of a free chunk behind which every page is known to be
  // committed.
  static Bytes lead_of(const Chunk& free_chunk) noexcept {
    return free_chunk.pages == Chunk::all ? free_chunk.size
                                          : Bytes{free_chunk.lead} * kAlignment;
  }
  static void set_lead(Chunk& free_chunk, Bytes lead) noexcept {
    constexpr Bytes kMax = std::numeric_limits<std::uint32_t>::max();
    free_chunk.lead = static_cast<std::uint32_t>(std::min(lead / kAlignment, kMax));
  }
  Fresh commit_chunk(ChunkId id);
  Fresh commit(ChunkId id);
  void commit_runs(ChunkId id, Bytes reserved);
  void afford(Bytes more);
  void reserve_pages(Bytes more);
  void release_pages(Bytes size) noexcept;
  Bytes allowance() const noexcept;
  Bytes decommit_free(Bytes wanted, bool for_good) noexcept;
  Bytes decommit_older(Bytes wanted, Bytes shortest, bool for_good) noexcept;
  Bytes discard(ChunkId id, Bytes wanted, Bytes shortest, bool for_good) noexcept;
  Bytes drop_segment(ChunkId id) noexcept;

  HeapExtent extent(const Chunk& chunk, const std::vector<std::string>& tags) const;
  void append_runs(const HeapExtent& whole,
                   const Chunk& chunk,
                   std::vector<HeapExtent>& rows) const;
  std::vector<ChunkId> first_chunks() const;  // of the segments, in address order
  void check_segment(ChunkId first, Totals& sum) const;
  void check_chunk(ChunkId id) const;

  const System& system_;
  const Bytes page_;     // bytes, a power of two
  const int page_bits_;  // page_ == 1 << page_bits_
  Store<Chunk> chunks_;
  Store<StartTable> tables_;
  FreeChunks warm_;  // free chunks whose every page is committed
  FreeChunks cold_;  // the others
  mutable std::array<Segment, kMaxSegments> segments_;
  std::atomic<std::size_t> segment_count_{0};  // slots ever used
  ChunkId oldest_ = 0;                         // free chunks that have pages to give
  ChunkId youngest_ = 0;
  ChunkId mark_ = 0;  // the youngest of them when give_back_old was last called
  Bytes allocated_ = 0;
  Bytes max_allocated_ = 0;  // highest taken_ so far
  Bytes max_used_ = 0;
  Bytes committed_ = 0;
  Bytes addresses_ = 0;
  Bytes floor_ = 0;  // bytes that stay committed for speed, whatever is allocated
  Bytes ceiling_ = kNoLimit;
  PageBudget* budget_ = nullptr;
};

// Called for each block: small enough to be worth no call.
inline Heap::Segment& Heap::segment_of(const Chunk& chunk) const noexcept {
  return segments_[chunk.segment];
}

inline ChunkId Heap::find(const void* address) const noexcept {
  const std::uintptr_t start = reinterpret_cast<std::uintptr_t>(address);
  for (std::size_t i = segment_count_.load(std::memory_order_acquire); i-- > 0;) {
    const Segment& segment = segments_[i];
    const Offset offset = start - segment.base.load(std::memory_order_relaxed);
    if (offset >= segment.size.load(std::memory_order_relaxed)) continue;
    const ChunkId id = segment.starts.find(tables_, offset);
    const bool starts =
        id != 0 && chunks_[id].address.load(std::memory_order_relaxed) == start;
    return starts ? id : 0;
  }
  return 0;
}

inline Heap::Span Heap::inside(const Chunk& chunk) const noexcept {
  const Offset offset = chunk.address - segment_of(chunk).base;
  const Page first = (offset + page_ - 1) >> page_bits_;
  return {first, std::max(first, (offset + chunk.size) >> page_bits_)};
}

inline ChunkId Heap::id_of(const Chunk& chunk) const noexcept {
  return chunk.below != 0 ? chunks_[chunk.below].above : segment_of(chunk).first;
}

}  // namespace memcfg
