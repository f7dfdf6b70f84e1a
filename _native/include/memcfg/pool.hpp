// A pool: the memory of one device under a hard limit.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "memcfg/error.hpp"
#include "memcfg/heap.hpp"
#include "memcfg/host_limits.hpp"
#include "memcfg/resource.hpp"
#include "memcfg/system.hpp"
#include "memcfg/thread_caches.hpp"
#include "memcfg/types.hpp"

namespace memcfg {

class Arena;
struct History;
class PoolHistory;

// While one lives, this thread works for a pool above, whose lock it holds.
class BelowPool : private NoCopy {
 public:
  BelowPool() noexcept { ++depth_; }
  ~BelowPool() { --depth_; }
  static bool here() noexcept { return depth_ > 0; }

 private:
  static inline thread_local int depth_ = 0;
};

// Blocks of a pool that were freed while work that uses them was queued, and go back to
// it when that is done.
class PendingFrees : public NoCopy {
 public:
  virtual ~PendingFrees() = default;
  virtual void collect() noexcept = 0;  // gives back those whose work is done
  virtual void settle() noexcept = 0;   // waits for that of the others, too
};

// A reservation is a block of the resource: addresses and memory at once. The metadata
// are the host's. The memory is counted by whoever is below, not as this process' own.
class BlockSystem final : public BorrowedMetadata {
 public:
  explicit BlockSystem(std::shared_ptr<Resource> upstream)
      : BorrowedMetadata(host_system()), upstream_(std::move(upstream)) {}

  Bytes page_size() const noexcept override { return host_system().page_size(); }
  SpaceKind kind() const noexcept override { return upstream_->kind(); }
  bool stayed_in_parent() const noexcept override {
    return upstream_->stayed_in_parent();
  }
  bool whole_blocks() const noexcept override { return true; }
  void zero(void* address, Bytes size) const override {
    upstream_->zero(address, size);
  }

  void* reserve(Bytes size, Access access) const noexcept override {
    if (access == Access::guarded) return nullptr;
    const BelowPool below;
    try {
      return upstream_->allocate({size, page_size(), Lifetime::long_lived, "pool"});
    } catch (...) {  // whatever the reason: the pool above says what it could not get
      return nullptr;
    }
  }
  void release(void* address, Bytes size) const noexcept override {
    const BelowPool below;
    try {
      upstream_->deallocate(address, size);
    } catch (const bad_free&) {  // somebody gave the pool's memory back behind it
    }
  }

 private:
  std::shared_ptr<Resource> upstream_;
};

// Blocks come from a heap, arenas bring their own addresses; both count against one
// limit. Small blocks go through a cache of the thread, for which part of the limit is
// reserved, so that a thread needs no lock for most of them. At every moment
//
//     charged == in use + uncommitted + sum of the caches' quotas <= limit,
//     heap's pages + arenas' pages <= limit + one page (of a device: <= limit),
//     sum of the tags' bytes == in use,  requested <= in use <= peak.
//
// Before a request fails for the limit or for pages, the caches release what they have,
// and pending frees are waited for.
// The peak is exact while one thread allocates; with several it is never too low, and
// at most the quotas of the others too high.
class Pool final : public Resource {
 public:
  // Pre: limit > 0; kNoLimit is none. `upstream` null: the host's pages. Without growth
  // the whole limit is taken at once. Throws out_of_memory, std::invalid_argument.
  explicit Pool(std::string name,
                Bytes limit = kNoLimit,
                bool growth = true,
                std::shared_ptr<Resource> upstream = nullptr);
  // The same on a system that outlives the pool.
  Pool(std::string name, Bytes limit, const System& system);
  ~Pool() override;

  const std::string& name() const noexcept override { return name_; }
  SpaceKind kind() const noexcept override { return system_.kind(); }
  bool stayed_in_parent() const noexcept override { return system_.stayed_in_parent(); }
  void* allocate(const Request& request) override;
  void zero(void* address, Bytes size) override { system_.zero(address, size); }
  void deallocate(void* address, Bytes size) override;
  bool release(void* address) noexcept override;
  Bytes size_of(const void* address) const override;
  bool holds(const void* address) const noexcept override;
  bool resize(void* address, Bytes size, Bytes new_size) override;
  std::vector<LiveBlock> blocks() const override;
  ResourceStats stats() const override;
  Bytes reserved() const override;
  void reset_peak() override;
  Owners owners() const override;
  Bytes trim(Bytes keep) override;
  void check() const override;

  const System& system() const noexcept { return system_; }
  Bytes limit() const noexcept { return accounting_.limit(); }
  bool growth() const noexcept { return growth_; }

  // The limit before. Throws out_of_memory when more is in use, or when more pages are
  // than the new limit allows; nothing has changed then.
  Bytes set_limit(Bytes limit);

  // What is collected, then settled, before anything is refused; until it is removed.
  // Pre of both: the caller holds no lock that `pending` takes.
  void add(PendingFrees& pending);
  void remove(PendingFrees& pending) noexcept;

  // Gives the free pages back that no request has used since the last call. Returns
  // their bytes.
  Bytes decay();

  // Notes in `history` what happens from now on, until `end`: every block then needs
  // the lock. Throws std::bad_alloc, nothing changed.
  void record(std::shared_ptr<PoolHistory> history);
  // What has been noted. Pre: it is one that the pool records in.
  History history(const PoolHistory& history) const;
  void end(const PoolHistory& history) noexcept;

  // `in_pieces`: free ones split by what has memory.
  std::vector<HeapExtent> layout(bool in_pieces = false) const;

 private:
  static constexpr Bytes kLargestSize = Use::kLargest - kAlignment;  // bytes: 256 TiB

  friend class Arena;
  friend class PoolRegistry;
  friend class CachesOfThread;
  using Cause = OutOfMemoryInfo::Cause;
  using Lock = std::unique_lock<std::mutex>;

  Pool(std::string name,
       Bytes limit,
       bool growth,
       std::shared_ptr<Resource> upstream,
       std::unique_ptr<const System> blocks,
       const System* system);

  // A chunk, and which of the pages inside it nobody has touched.
  struct Allocation {
    Chunk* chunk;
    Heap::Fresh fresh;
  };
  class Claim;  // on a block whose size is being changed

  // Pre of those that follow: the lock is not held.
  ThreadCache* own_cache() noexcept;  // null: no memory for one, or the thread ends
  ThreadCache* find_cache() noexcept;
  std::shared_ptr<ThreadCache> make_cache();
  static void drop_thread() noexcept;  // the running thread has no cache any more
  template <typename Act>
  std::optional<Cause> attempt(Act act);
  bool make_way(Cause cause, int attempts);
  bool tell_pending(void (PendingFrees::*what)());
  Allocation allocate_slowly(const Request& request, ThreadCache* cache);
  [[noreturn]] void refuse(Cause cause, Bytes requested, std::string_view tag);
  void* allocate_zeroed(const Request& request);
  void zero_block(void* address, Bytes size);
  Allocation allocate_in_huge_pages(Request request);
  Chunk& find_block(const void* address, const ThreadCache* cache) const;
  Chunk& look_up(const void* address) const;
  static Use take_use(Chunk& chunk, Bytes size);
  static void throw_bad_free(Chunk& chunk, Use use, Bytes size);
  void take_back(Chunk& chunk, Use use, ThreadCache* cache) noexcept;
  void deallocate_slowly(Chunk& chunk, Use use, ThreadCache* cache) noexcept;
  void reserve_holding(const Arena& arena, Bytes requested, Bytes charge, Bytes pages);
  void retire(const ThreadCache* cache) noexcept;  // its thread ends
  void release_quotas() noexcept;                  // if nobody is at work in the pool
  void freeze();  // takes the lock and revokes all caches, until thaw
  void thaw(bool child) noexcept;

  // Pre of those that follow: the lock is held, and all caches are revoked.
  std::vector<LiveBlock> holdings() const;  // blocks, by address, and arenas

  // Pre of those that follow: the lock is held, and no cache is revoked.
  Allocation try_allocate(const Request& request, ThreadCache* cache);
  Allocation allocate_chunk(const Request& request, Bytes charge, ThreadCache* cache);
  Allocation allocate_in_heap(const Request& request, Bytes size, Cause& cause);
  bool try_resize(void* address, Bytes size, Bytes new_size, ThreadCache* cache);
  bool try_grow(Chunk& chunk, Bytes charge, Bytes more);
  bool extend(Chunk& chunk, Bytes charge);
  void reserve(Bytes size);  // throws AllocationFailed
  void commit(Bytes size) noexcept;
  void roll_back(Bytes size) noexcept;
  void reserve_arena(Bytes pages);
  void fit_pages(Bytes limit);
  Tag number_of(std::string_view tag);
  Tag learn(std::string_view tag, ThreadCache* cache);

  // Pre of those that follow: the lock is held.
  void note(std::uint8_t action, const void* address, Bytes size, Tag tag) noexcept;
  void note_failure(Bytes size, std::string_view tag) noexcept;
  void release_arena(Bytes pages) noexcept;
  void learn_tags(ThreadCache& cache) noexcept;
  void note_pages() noexcept;
  void set_ceiling(Bytes limit) noexcept;
  Bytes max_pages(Bytes limit) const noexcept;
  Bytes committed() const noexcept { return heap_.committed() + arena_pages_; }
  BlockCounts total_counts() const;  // pre: all caches are revoked

  const std::string name_;
  const std::uint64_t id_;  // no other pool of the process ever has it
  const std::shared_ptr<Resource> upstream_;
  const std::unique_ptr<const System> blocks_;  // made from upstream_ where it has none
  const System& system_;
  const bool whole_blocks_;
  const bool growth_;
  HostMeter* const meter_;  // null: the memory is not the host's

  // Not a `ForkLock`, as it is held over calls: so where nobody is pending, such as in
  // any pool of the host, it is not taken.
  std::mutex pending_mutex_;
  std::vector<PendingFrees*> pending_;
  std::atomic<bool> has_pending_{false};

  mutable std::mutex mutex_;  // guards all below, but for heap_.find and the limit
  Heap heap_;
  LimitAccounting accounting_;
  TagTable tags_;
  mutable ThreadCaches caches_;
  BlockCounts counts_;  // without what the caches know
  Bytes arena_pages_ = 0;
  Bytes peak_pages_ = 0;
  std::vector<const Arena*> arenas_;                     // that are not freed
  std::vector<std::shared_ptr<PoolHistory>> histories_;  // some: the caches are closed
};

// One object, made at first need and never destroyed: threads may end after main does.
//
// Locks are taken in the order: mutex of the host's limits, registry, then pools from
// the newest to the oldest. A pool on top of another is newer, and holds its own lock
// while it takes from below.
class PoolRegistry {
 public:
  static PoolRegistry& instance();

  std::uint64_t next_id() noexcept { return ids_.fetch_add(1) + 1; }
  void add(Pool& pool);
  void remove(Pool& pool) noexcept;

  // The running thread's cache of a pool, made if need be. Throws std::bad_alloc.
  ThreadCache* cache_of(Pool& pool);

  // Releases the quotas of the caches of every pool that is not at work; none while
  // this thread is below a pool, whose lock it holds.
  void reclaim_quotas();

 private:
  friend class CachesOfThread;
  using Row =
      std::pair<std::uint64_t, std::shared_ptr<ThreadCache>>;  // pool's id, cache

  PoolRegistry();
  Pool* find(std::uint64_t id) const noexcept;
  void retire(const std::vector<Row>& rows) noexcept;
  void before_fork();
  void after_fork(bool child) noexcept;
  void drop_dead(std::vector<Row>& rows) const noexcept;

  std::atomic<std::uint64_t> ids_{0};
  mutable std::mutex mutex_;
  std::vector<Pool*> pools_;  // from the oldest to the newest
};

}  // namespace memcfg
