// A workspace: memory for work in cycles, learned, rewound, and safe from it.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "memcfg/resource.hpp"
#include "memcfg/types.hpp"

namespace memcfg {

// The names and the arithmetic are ND4J's (WorkspaceConfiguration, Nd4jWorkspace), with
// kAlignment for its alignment.
struct WorkspaceRules {
  enum Learning { first_loop, over_time, never };
  enum Spill { external, reallocate, fail };

  std::string name;
  Bytes initial = 0;          // bytes; 0: learned
  Bytes minimum = 0;          // bytes, of a learned size
  Bytes maximum = kNoLimit;   // bytes, of any size
  double overallocation = 0;  // share of a size that is added to it
  bool circular = false;      // a ring: the next cycle goes on where the last one ended
  Bytes ring_blocks = 1;      // cycles that a learned ring has room for
  Learning learning = first_loop;
  std::uint64_t learning_cycles = 0;  // over_time: when; 0: when told
  Spill spill = external;
  bool overwrites = false;  // memory is used again under arrays that are alive
  bool reclaims = false;    // the block made last gives its space back when it goes
};

struct WorkspaceSize {
  Bytes size = 0;   // bytes of the page
  Bytes block = 0;  // bytes of one cycle in a ring; 0: no ring
};

// Throws std::invalid_argument for rules that no workspace can follow.
void require_valid(const WorkspaceRules& rules);

// The size that a workspace is made with.
Bytes first_size(const WorkspaceRules& rules) noexcept;

// The size for cycles of at most so many bytes. Pre: most_of_a_cycle > 0.
WorkspaceSize learned_size(const WorkspaceRules& rules, Bytes max_cycle_bytes) noexcept;

// Sizes are bytes, each request rounded up to kAlignment. No lock, no memory.
//
//     last <= maximum, spilled and pinned: what did not fit, since it was last reset
class WorkspaceCycles {
 public:
  enum class Fit { page, spilled, pinned };

  struct Count {
    Bytes bytes = 0;
    std::uint64_t blocks = 0;
  };

  // Pre: the rules outlive it.
  explicit WorkspaceCycles(const WorkspaceRules& rules)
      : rules_(&rules), size_{first_size(rules), 0} {}

  Bytes size() const noexcept { return size_.size; }
  Bytes block() const noexcept { return size_.block; }
  Bytes now() const noexcept { return now_; }
  Bytes last() const noexcept { return last_; }
  Bytes maximum() const noexcept { return max_; }
  std::uint64_t cycles() const noexcept { return cycles_; }
  std::uint64_t steps() const noexcept { return steps_; }
  std::uint64_t generation() const noexcept { return generation_; }
  Count spilled() const noexcept { return spilled_; }
  Count pinned() const noexcept;

  // Whether a request is more than a ring's block has left for this cycle: then it is
  // not to come into the ring.
  bool oversized(Bytes size) const noexcept;

  void begin() noexcept;
  // The next block's mark, which is to be kept with it. Throws std::bad_alloc.
  std::size_t next_mark();
  // That block was made. Pre: next_mark() was called for it.
  void count(Bytes size, Fit fit) noexcept;
  // It has gone.
  void gone(std::size_t mark, std::uint64_t generation) noexcept;
  // The ring restarts with the next block.
  void wrapped() noexcept { wrapped_ = true; }
  void cancel() noexcept;  // the cycle that has just begun: it was none
  // True: the size is another one now, if it may be learned.
  bool end(bool learns) noexcept;
  // Learns from the cycles so far, if nothing is known and it learns at all. True:
  // there is a size now.
  bool learn() noexcept;
  void unlearn() noexcept;  // undoes a learn that came to nothing
  // Drops cycles larger than the last. True: the size is smaller now.
  bool shrink() noexcept;
  void reset() noexcept;    // everything, the size included
  void restore() noexcept;  // the size that the rules name, if none is known

 private:
  struct Pins {
    std::uint64_t step = 0;
    Count count;
  };
  struct Mark {
    Bytes size;
    bool live;
  };

  bool due() const noexcept;
  bool relearn() noexcept;
  bool adopt() noexcept;
  void drop_pins() noexcept;

  const WorkspaceRules* rules_;
  WorkspaceSize size_;
  Bytes now_ = 0;   // of this cycle; where space is given back: what is not
  Bytes peak_ = 0;  // the highest of it
  Bytes last_ = 0;
  Bytes max_ = 0;
  Bytes max_before_ = 0;  // when a size was learned last
  std::uint64_t cycles_ = 0;
  std::uint64_t steps_ = 0;  // rounds of the ring
  std::uint64_t generation_ = 0;
  Count spilled_;
  std::array<Pins, 4> pins_;  // by step: at most three are remembered at once
  bool trimmed_ = false;      // the ring is too small: nothing goes into it
  std::uint64_t trim_step_ = 0;
  bool wrapped_ = false;
  std::vector<Mark> marks_;  // of this cycle's blocks, where space is given back
};

// Metadata of what lies where; no lock, and nobody's memory but its user's.
//
//     held == live records + those that were overwritten and not given back,
//     records of this lap end at or before offset <= size,
//     records of the lap before begin at or behind the last one of this lap
class WorkspacePage {
 public:
  struct Record {
    Offset offset = 0;  // of the first byte
    Bytes size = 0;     // as asked for
    std::uint64_t generation = 0;
    std::size_t mark = 0;  // its user's
    bool live = true;
  };
  enum class Outcome { allocated, full, blocked };

  WorkspacePage(std::byte* base, Bytes size) : base_(base), size_(size) {}

  std::byte* base() const noexcept { return base_; }
  Bytes size() const noexcept { return size_; }
  Offset offset() const noexcept { return offset_; }
  std::size_t live() const noexcept { return live_; }
  Bytes live_bytes() const noexcept { return live_bytes_; }  // each rounded up
  Bytes requested() const noexcept { return requested_; }    // of those that are alive
  std::size_t held() const noexcept { return live_ + overwritten_; }
  bool contains(const void* address) const noexcept {
    const auto* const byte = static_cast<const std::byte*>(address);
    return byte >= base_ && byte < base_ + size_;
  }

  // Hands out the next bytes; the record's offset is set. full: there are none before
  // the end. blocked: somebody of the lap before is alive there, who is not to be
  // passed
  // (`over` is false, or it is of the record's own generation). Nothing has changed
  // then. Throws std::bad_alloc; likewise.
  Outcome take(Record record, Bytes alignment, bool over);
  // What was handed out last. Pre: take() was Outcome::allocated.
  void* last() const noexcept { return base_ + now_.back().offset; }
  // Whether it could from the front of the page, if nobody were alive.
  bool could_take(Bytes size, Bytes alignment) const noexcept;

  // The record of the block that begins there; null: none that is alive.
  const Record* find(const void* address) const noexcept;

  // One block goes: that of the record, or one that was overwritten.
  void end(const Record& record) noexcept;
  bool end_overwritten() noexcept;  // false: there is none

  // Gives the space of the blocks at the end back that have gone.
  void recede() noexcept;

  // The front again. Whoever is alive is overwritten from now on.
  void rewind() noexcept;
  // The front again. Whoever is alive is in the way from now on. Throws std::bad_alloc.
  void wrap();
  // Goes on at a later place. Pre: offset() <= offset <= size().
  void skip_to(Offset offset) noexcept { offset_ = offset; }

  // The end of the last live record; all of the page if somebody was overwritten.
  Offset end_of_live() const noexcept;
  // The page is so large from now on. Pre: size >= end_of_live().
  void resize(Bytes size) noexcept;

  template <typename Act>
  void each_live(Act act) const {
    for (const Record& record : now_) {
      if (record.live) act(record);
    }
    for (std::size_t i = next_; i < before_.size(); ++i) {
      if (before_[i].live) act(before_[i]);
    }
  }

  void check() const;  // throws invariant_broken

 private:
  using Records = std::vector<Record>;

  Offset end_of(const Record& record) const noexcept;
  Offset start_at(Offset offset, Bytes alignment) const noexcept;
  bool fits(Offset start, Bytes size) const noexcept;
  bool is_clear(Offset from, Offset to, std::uint64_t over) const noexcept;
  std::size_t gaps(Offset from, Offset to) const noexcept;
  void pass(Offset from, Offset to) noexcept;
  void gone(const Record& record) noexcept;
  Record* search(const void* address) noexcept;

  std::byte* base_;
  Bytes size_;
  Offset offset_ = 0;
  std::size_t live_ = 0;
  Bytes live_bytes_ = 0;
  Bytes requested_ = 0;
  std::size_t overwritten_ = 0;
  Records now_;           // of this lap, by offset
  Records before_;        // of the lap before, by offset; what is passed is left out:
  std::size_t next_ = 0;  // the first that is not
};

// Metadata; no lock, and nobody is called. What is to be given back is moved to
// `garbage`, a move that needs no memory.
//
//     a page that is retired holds blocks, or somebody is trimming it;
//     live_elsewhere == live bytes of the retired ones; retired bytes <= reserved
class WorkspacePages {
 public:
  enum class State { current, spare, retired };
  struct Entry {
    Entry(std::byte* base, Bytes size) : page(base, size), allocated(size) {}
    WorkspacePage page;
    Bytes allocated;  // bytes that are left of it
    State state = State::current;
    std::uint64_t retired_at = 0;  // generation
    bool waiting = false;          // nobody has tried to trim it
    bool busy = false;             // somebody is trimming it
    Entry* older = nullptr;        // of those that wait
    Entry* younger = nullptr;
  };
  using Entries = std::map<std::uintptr_t, Entry>;  // by address

  static void put(Entries& entries, std::byte* base, Bytes size);  // std::bad_alloc

  Entry* page() const noexcept { return page_; }  // null: none
  Entry* find(const void* address) const noexcept;
  const Entries& all() const noexcept { return entries_; }
  Bytes reserved() const noexcept { return reserved_; }  // each page rounded up
  Bytes retired() const noexcept { return retired_; }    // likewise
  Bytes live_elsewhere() const noexcept { return live_elsewhere_; }

  // The first of `fresh` is the page from now on. Pre: there is none.
  void use(Entries& fresh, Offset from) noexcept;
  bool use_spare(Bytes size,
                 Offset from) noexcept;  // false: there is none of that size

  // The page belongs to its blocks.
  void retire(std::uint64_t generation) noexcept;
  // It does, or goes where it holds none.
  void drop_page(std::uint64_t generation, Entries& garbage) noexcept;
  void drop_spare(Entries& garbage) noexcept;
  // A block of the page has gone: where it was the last, the page becomes the spare
  // one, if it is of that size and there is none, or goes.
  void recycle(Entry& entry, Bytes size, Entries& garbage) noexcept;
  // A block of a retired page has gone.
  void gone(const Entry& entry, Bytes size) noexcept;

  // The page that has been retired longest, if it was before a generation and nobody
  // has tried yet to give back what lies behind its last live block. It is so short
  // from now on. Null: none.
  bool waits(std::uint64_t before) const noexcept {  // whether there may be one
    return oldest_ != nullptr && oldest_->retired_at < before;
  }
  Entry* begin_trim(std::uint64_t before) noexcept;
  void end_trim(Entry& entry, bool done) noexcept;

  void check() const;  // throws invariant_broken

 private:
  void wait(Entry& entry) noexcept;
  void wait_no_more(Entry& entry) noexcept;
  void drop(Entry& entry, Entries& garbage) noexcept;

  mutable Entries entries_;
  Entry* page_ = nullptr;
  Entry* spare_ = nullptr;   // whose blocks have all gone
  Entry* oldest_ = nullptr;  // of those that wait to be trim
  Entry* youngest_ = nullptr;
  Bytes reserved_ = 0;
  Bytes retired_ = 0;
  Bytes live_elsewhere_ = 0;
};

// Between open() and close() blocks come from the front of one page; what does not fit
// is a block of upstream. A page with live blocks is never used again (unless the rules
// say that it is): it is theirs until the last of them goes, and the next cycle gets
// another one. Outside, and while disabled, a request is a block of upstream that no
// cycle counts.
//
// No lock is held while upstream is called, so upstream may call back.
//
//     current == live bytes of the pages, and of blocks of upstream, each rounded;
//     current <= reserved == what upstream was charged; offset() <= size of the page
class Workspace final : public Resource {
 public:
  enum class Kind { page, retired, spilled, pinned, outside, overwritten };
  struct BlockInfo {
    Kind kind = Kind::outside;
    std::uint64_t generation = 0;
    Bytes size = 0;  // as asked for
  };
  struct End {
    // Blocks that are alive behind their cycle; in a ring, when it came round to them.
    std::uint64_t escaped = 0;
    bool was_disabled = false;
  };
  struct Numbers {
    Bytes size, offset, cycle, last_cycle, max_cycle, block, retired;
    WorkspaceCycles::Count spilled, pinned;
    std::uint64_t cycles, steps, generation, live, escaped;
    bool open, enabled;
  };

  // Takes the page if the rules name a size. Throws out_of_memory, std::bad_alloc, and
  // std::invalid_argument for rules that cannot be followed.
  Workspace(std::shared_ptr<Resource> upstream,
            std::shared_ptr<Resource> pages,
            const WorkspaceRules& rules);
  ~Workspace() override;

  const std::string& name() const noexcept override { return upstream_->name(); }
  SpaceKind kind() const noexcept override { return upstream_->kind(); }
  // A block of the cycle that is on; where memory is overwritten, one of upstream, for
  // its address alone would not tell it from those that come after.
  void* allocate(const Request& request) override;
  void zero(void* address, Bytes size) override { upstream_->zero(address, size); }
  void deallocate(void* address, Bytes size) override;
  bool release(void* address) noexcept override { return release_of(address, 0); }
  Bytes size_of(const void* address) const override;
  bool holds(const void* address) const noexcept override;
  std::vector<LiveBlock> blocks() const override;
  ResourceStats stats() const override;
  Bytes reserved() const override;
  void reset_peak() override;
  Owners owners() const override;
  Bytes trim(Bytes keep) override;  // pages that no block needs, and ends of others
  void check() const override;

  // The same as allocate, for a generation: outside of any cycle, if it is not on.
  void* allocate_of(const Request& request, std::uint64_t generation);
  // The same as release, for a block of a generation (0: of any).
  bool release_of(void* address, std::uint64_t generation) noexcept;
  // Nothing: no block of this workspace.
  std::optional<BlockInfo> find_block(const void* address,
                                      std::uint64_t generation) const noexcept;

  // A cycle begins. False: there is no page for it, the refusal says why, and blocks
  // come from upstream. Throws what upstream does, out_of_memory only if nothing is to
  // be spilled, and std::invalid_argument where one is open; nothing has changed then.
  bool open();
  void cancel() noexcept;  // the cycle that has just begun: it was none
  // A cycle ends. Does nothing where none is open.
  End close() noexcept;
  void rethrow_out_of_memory() const;  // pre: there was one

  // Throws as the constructor does; nothing has changed then.
  void initialize();
  void destroy() noexcept;  // pre: not open
  Bytes shrink() noexcept;  // to the last cycle, where no cycle is open; bytes given
  void set_enabled(bool enabled) noexcept;
  bool enabled() const noexcept;
  Numbers numbers() const noexcept;
  std::uint64_t generation() const noexcept;

  // Nothing enters a page and nothing is learned, in all workspaces.
  static void spill_everything(bool spill) noexcept { spill_everything_ = spill; }
  // Every request is one outside of it, in all workspaces.
  static void bypass_everything(bool bypass) noexcept { bypass_everything_ = bypass; }

 private:
  using Fit = WorkspaceCycles::Fit;

  using Entries = WorkspacePages::Entries;
  using Entry = WorkspacePages::Entry;

  struct Spilled {
    Bytes size;
    std::uint64_t generation;
    Kind kind;
    std::size_t mark;
  };

  enum class Next { done, page, upstream };
  struct Attempt {
    Next next;
    void* address = nullptr;
    Kind kind = Kind::outside;  // where it comes from upstream
  };

  Attempt attempt(const Request& request, std::uint64_t generation);
  Attempt enter_page(const Request& request, Bytes size);
  bool wraps_for(const Request& request) const noexcept;
  std::uint64_t in_the_way() const noexcept;
  void* take_below(const Request& request, Kind kind);
  void add_spilled(void* address, Bytes size, Kind kind);
  void note_block() noexcept;
  void require_may_spill(const Request& request) const;
  bool end_on(Entry& entry, void* address, std::uint64_t generation) noexcept;
  Bytes end_spilled(void* address) noexcept;

  bool wants_page();
  void fetch_page();
  bool stay_cold();
  std::uint64_t leave_cycle() noexcept;
  void pad() noexcept;
  void trim_retired(std::uint64_t before) noexcept;
  Bytes release_pages(Entries& garbage) noexcept;
  bool learn();
  void require_closed() const;
  Offset offset() const noexcept;
  Bytes current() const noexcept;
  Bytes reserved_now() const noexcept;

  static std::atomic<bool> spill_everything_;
  static std::atomic<bool> bypass_everything_;

  const std::shared_ptr<Resource> upstream_;
  const std::shared_ptr<Resource> source_;  // of the pages
  const WorkspaceRules rules_;
  const std::string tag_;
  mutable std::mutex mutex_;  // guards all below
  WorkspaceCycles cycles_;
  WorkspacePages pages_;
  Offset resume_ = 0;  // where the next page goes on
  std::unordered_map<void*, Spilled> spilled_;
  Bytes spilled_bytes_ = 0;         // of these, each rounded up
  std::uint64_t cycle_spills_ = 0;  // of these: alive, and of this cycle
  std::uint64_t live_ = 0;          // blocks that a cycle counts
  std::uint64_t escaped_ = 0;       // so far
  std::uint64_t escaped_now_ = 0;   // in this cycle
  Bytes peak_ = 0;
  Bytes peak_reserved_ = 0;
  std::uint64_t allocations_ = 0;
  std::uint64_t deallocations_ = 0;
  bool open_ = false;
  bool enabled_ = true;
  bool cold_ = false;  // there is no page for this cycle
  std::exception_ptr out_of_memory_;
};

}  // namespace memcfg
