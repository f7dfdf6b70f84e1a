// A workspace: memory for work in cycles, learned, rewound, and safe from it.
#pragma once

#include <atomic>
#include <cstdint>
#include <exception>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "memcfg/resource.hpp"
#include "memcfg/types.hpp"
#include "memcfg/workspace_cycles.hpp"
#include "memcfg/workspace_page.hpp"
#include "memcfg/workspace_rules.hpp"

namespace memcfg {

// Between open() and close() blocks come from the front of one page; what does not fit
// is a block of upstream. A page with live blocks is never used again (unless the rules
// say that it is): it is theirs until the last of them goes, and the next cycle gets
// another one. Outside, and while disabled, a request is a block of upstream that no
// cycle counts.
//
// No lock is held while upstream is called, so upstream may call back.
//
//     current == sum of the live blocks, rounded; every page but the current one and
//     the spare one has a live block; offset() <= size of the page
class Workspace final : public Resource {
 public:
  enum class Kind { page, retired, spilled, pinned, outside, overwritten };
  struct Placement {
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
    Bytes size, offset, cycle, last_cycle, most_cycle, block, retired;
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
  void* allocate(const Request& request) override;
  void deallocate(void* address, Bytes size) override;
  bool release(void* address) noexcept override { return release_of(address, 0); }
  Bytes size_of(const void* address) const override;
  std::vector<LiveBlock> blocks() const override;
  ResourceStats stats() const override;
  void reset_peak() override;
  Owners owners() const override;
  Bytes trim(Bytes keep) override;  // the spare page
  void check() const override;

  // The same as release, for a block of a generation (0: of any). Where memory is used
  // again under live blocks, the address alone does not tell them apart.
  bool release_of(void* address, std::uint64_t generation) noexcept;
  // Nothing: no block of this workspace.
  std::optional<Placement> place_of(const void* address,
                                    std::uint64_t generation) const noexcept;

  // A cycle begins. False: there is no page for it, `refusal` says why, and blocks come
  // from upstream. Throws std::bad_alloc, and what upstream does but out_of_memory; it
  // is not open then. Pre: not open.
  bool open();
  // A cycle ends. Does nothing where none is open.
  End close() noexcept;
  void rethrow_refusal() const;  // pre: there was one

  // Throws as the constructor does; nothing has changed then.
  void initialize();
  void destroy() noexcept;  // pre: not open
  Bytes shrink() noexcept;  // to the last cycle, where no cycle is open; bytes given
  void set_enabled(bool enabled) noexcept;
  bool overwrites() const noexcept { return rules_.overwrites; }
  Numbers numbers() const noexcept;
  std::uint64_t generation() const noexcept;

  // Nothing enters a page and nothing is learned, in all workspaces.
  static void spill_everything(bool spill) noexcept { spill_everything_ = spill; }
  // Every request is one outside of it, in all workspaces.
  static void bypass_everything(bool bypass) noexcept { bypass_everything_ = bypass; }

 private:
  using Fit = WorkspaceCycles::Fit;

  struct Ground {
    Ground(std::byte* base, Bytes size) : page(base, size), taken(size) {}
    WorkspacePage page;
    Bytes taken;                   // bytes that are left of it
    std::uint64_t retired_at = 0;  // cycles that had ended then
    bool retired = false;
    bool cut = false;   // it has been tried to give its end back
    bool busy = false;  // somebody is trying
  };
  using Grounds = std::map<std::uintptr_t, Ground>;  // by address

  struct Spilled {
    Bytes size;
    std::uint64_t generation;
    Kind kind;
    std::size_t mark;
  };

  enum class Next { done, page, upstream };
  struct Attempt {
    Next next;
    void* place = nullptr;
    Kind kind = Kind::outside;  // where it comes from upstream
  };

  Attempt attempt(const Request& request);
  Attempt enter_page(const Request& request, Bytes size);
  void* take_below(const Request& request, Kind kind);
  void book(void* address, Bytes size, Kind kind);
  void fetch_page();
  bool use_spare() noexcept;
  void stay_cold() noexcept;
  void retire() noexcept;
  void drop_page(Grounds& garbage) noexcept;
  void drop_spare(Grounds& garbage) noexcept;
  std::uint64_t leave_cycle() noexcept;
  void pad() noexcept;
  bool end_on(Ground& ground, void* address, std::uint64_t generation) noexcept;
  void settle(Ground& ground, Grounds& garbage) noexcept;
  void cut_retired() noexcept;
  Ground* find_uncut() noexcept;
  bool resize_page(Ground& ground, Bytes taken, Bytes end) noexcept;
  Bytes give(Grounds& garbage) noexcept;
  Ground* ground_of(const void* address) const noexcept;
  bool learn();
  Offset offset() const noexcept;
  Bytes current() const noexcept;
  void require_may_spill(const Request& request) const;

  static std::atomic<bool> spill_everything_;
  static std::atomic<bool> bypass_everything_;

  const std::shared_ptr<Resource> upstream_;
  const std::shared_ptr<Resource> pages_;
  const WorkspaceRules rules_;
  const std::string tag_;
  mutable std::mutex mutex_;  // guards all below
  WorkspaceCycles cycles_;
  mutable Grounds grounds_;
  Ground* page_ = nullptr;   // of the current cycle; null: none yet
  Ground* spare_ = nullptr;  // whose blocks have all gone
  Offset resume_ = 0;        // where the next page goes on
  std::unordered_map<void*, Spilled> spilled_;
  std::uint64_t cycle_spills_ =
      0;                           // live blocks of this cycle that are not in its page
  std::size_t uncut_ = 0;          // retired pages that nobody has tried to cut
  std::uint64_t escaped_ = 0;      // so far
  std::uint64_t escaped_now_ = 0;  // in this cycle
  Bytes elsewhere_ = 0;            // live bytes that are not in the page
  Bytes peak_ = 0;
  std::uint64_t allocations_ = 0;
  std::uint64_t deallocations_ = 0;
  bool open_ = false;
  bool enabled_ = true;
  bool cold_ = false;  // there is no page for this cycle
  std::exception_ptr refusal_;
};

}  // namespace memcfg
