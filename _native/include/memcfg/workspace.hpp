// A workspace: memory for work in cycles, learned, rewound, and safe from it.
#pragma once

#include <atomic>
#include <cstdint>
#include <exception>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "memcfg/resource.hpp"
#include "memcfg/types.hpp"
#include "memcfg/workspace_cycles.hpp"
#include "memcfg/workspace_pages.hpp"

namespace memcfg {

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
  bool touchable() const noexcept override { return upstream_->touchable(); }
  // A block of the cycle that is on; where memory is overwritten, one of upstream, for
  // its address alone would not tell it from those that come after.
  void* allocate(const Request& request) override;
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
