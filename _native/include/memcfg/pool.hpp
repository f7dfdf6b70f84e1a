// A pool: the memory of one device under a hard limit.
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "memcfg/cache.hpp"
#include "memcfg/error.hpp"
#include "memcfg/heap.hpp"
#include "memcfg/host_limits.hpp"
#include "memcfg/resource.hpp"
#include "memcfg/system.hpp"
#include "memcfg/types.hpp"

namespace memcfg {

// Blocks come from a heap, arenas bring their own addresses; both draw on one limit.
// Small blocks go through a cache of the thread, which is charged in advance, so that a
// thread needs no lock for most of them. At every moment
//
//     drawn == in use + pending + sum of the caches' quotas <= limit,
//     heap's pages + arenas' pages <= limit + one page,
//     sum of the tags' bytes == in use,  requested <= in use <= peak.
//
// A request that the limit or the pages refuse makes the caches give back what they
// have before it fails. The peak is exact while one thread allocates; with several it
// is never too low, and at most the quotas of the others too high.
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
  bool touchable() const noexcept override { return system_.touchable(); }
  void* allocate(const Request& request) override;
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
  Bytes limit() const noexcept { return limit_.load(std::memory_order_relaxed); }
  bool growth() const noexcept { return growth_; }

  // The limit before. Throws out_of_memory when more is in use, or when more pages are
  // than the new limit allows; nothing has changed then.
  Bytes set_limit(Bytes limit);

  // Gives the free pages back that no request has used since the last call. Returns
  // their bytes.
  Bytes decay();

  std::vector<Stretch> layout() const;
  std::vector<Stretch> pieces() const;  // the same, holes split by what has memory

 private:
  static constexpr Bytes kLargestSize = Use::kLargest - kAlignment;  // bytes: 256 TiB

  friend class Account;
  friend class PoolRegistry;
  friend class ThreadCaches;
  // Keeps every owner out of its cache. Pre: the pool's lock is held as long.
  class Quiet {
   public:
    explicit Quiet(const Pool& pool) noexcept : pool_(pool) { pool_.revoke_caches(); }
    ~Quiet() { pool_.restore_caches(); }
    Quiet(const Quiet&) = delete;
    Quiet& operator=(const Quiet&) = delete;

   private:
    const Pool& pool_;
  };

  // The pool's numbers with those of its caches.
  struct Sums {
    Bytes quotas = 0;
    Bytes kept = 0;
    std::int64_t requested = 0;
    std::uint64_t allocations = 0;
    std::uint64_t deallocations = 0;
    std::vector<std::int64_t> charged;
  };

  using Lock = std::unique_lock<std::mutex>;

  Pool(std::string name,
       Bytes limit,
       bool growth,
       std::shared_ptr<Resource> upstream,
       std::unique_ptr<const System> blocks,
       const System* system);

  // A block in its owner's hands; fresh: which of the pages inside it are untouched.
  struct Grant {
    void* address;
    Heap::Fresh fresh;
  };
  struct Placement {
    Chunk* chunk;
    Heap::Fresh fresh;
  };
  class Claim;  // on a block whose size is being changed

  // Pre of those that follow: the lock is not held.
  Cache* own_cache() noexcept;  // null: no memory for one, or the thread ends
  Cache* find_cache() noexcept;
  static void forget_thread() noexcept;  // the running thread has no cache any more
  Grant allocate_slowly(const Request& request, Cache* cache);
  void* allocate_zeroed(const Request& request);
  Grant allocate_in_huge_pages(Request request);
  // The block at an address: often the one that this thread took last. Throws
  // bad_free.
  Chunk& find_block(const void* address, const Cache* cache) const {
    Chunk* const last = cache == nullptr ? nullptr : cache->last;
    const auto place = reinterpret_cast<std::uintptr_t>(address);
    const bool same =
        last != nullptr && last->address.load(std::memory_order_relaxed) == place;
    return same ? *last : look_up(address);
  }
  Chunk& look_up(const void* address) const;
  // Nobody else can free or resize the block now. Throws bad_free, nothing changed.
  static Use take_use(Chunk& chunk, Bytes size) {
    const Use use(chunk.use.exchange(0, std::memory_order_acq_rel));
    if (use.word() == 0 || use.requested() != size) refuse_free(chunk, use, size);
    return use;
  }
  static void refuse_free(Chunk& chunk, Use use, Bytes size);
  void take_back(Chunk& chunk, Use use, Cache* cache) noexcept;
  void deallocate_slowly(Chunk& chunk, Use use, Cache* cache) noexcept;
  bool resize_slowly(void* address, Bytes size, Bytes new_size, Cache* cache);
  void retire(const Cache* cache) noexcept;  // its thread ends
  void give_up_quotas() noexcept;            // if nobody is at work in the pool
  void freeze();  // takes the lock and revokes all caches, until thaw
  void thaw(bool child) noexcept;

  // Pre of those that follow: the lock is held, and no cache is revoked.
  Grant try_allocate(const Request& request, Cache* cache);
  Placement place(const Request& request, Bytes charge, Cache* cache);
  Placement place_in_heap(const Request& request, Bytes size, Shortage::Cause& cause);
  bool try_resize(void* address, Bytes size, Bytes new_size, Cache* cache);
  bool try_grow(Chunk& chunk, Bytes charge, Bytes more);
  bool fit(Chunk& chunk, Bytes charge);
  void draw(Bytes size);  // post: pending
  void grant(Bytes size) noexcept;
  void cancel(Bytes size) noexcept;
  void take_quotas() noexcept;
  void flush_caches() noexcept;
  void afford_arena(Bytes pages);
  void release_arena(Bytes pages) noexcept;
  void fit_pages(Bytes limit);

  // Pre of those that follow: the lock is held, and the cache is revoked or one's own.
  void flush(Cache& cache, Cache::Stack& stack, std::size_t count) noexcept;
  void flush_large(Cache& cache) noexcept;
  void make_room(Cache& cache, Bytes charge) noexcept;
  void set_quota(Cache& cache, Bytes quota) noexcept;
  void note_peak(Cache* mine) noexcept;

  // Pre of those that follow: the lock is held.
  void undraw(Bytes size) noexcept;
  Tag learn(std::string_view tag, Cache* cache);
  Tag number(std::string_view tag);  // pre: no cache is revoked
  Tag spare_number();
  void take_idle_tags();
  void learn_tags(Cache& cache) noexcept;
  void revoke_caches() const noexcept;
  void restore_caches() const noexcept;
  void note_pages() noexcept;
  static void require_limit(Bytes limit);  // throws std::invalid_argument
  void set_ceiling(Bytes limit) noexcept;
  void bound_cache(Cache& cache, Bytes limit) const noexcept;
  Bytes most_pages(Bytes limit) const noexcept;
  Bytes committed() const noexcept { return heap_.committed() + arena_pages_; }
  void flush_large_blocks() const noexcept;    // pre: all caches are revoked
  Sums sums() const;                           // likewise
  std::vector<std::string> tag_names() const;  // by number

  const std::string name_;
  const std::uint64_t id_;  // no other pool of the process ever has it
  const std::shared_ptr<Resource> upstream_;
  const std::unique_ptr<const System> blocks_;  // made from upstream_ where it has none
  const System& system_;
  const bool growth_;
  HostMeter* const meter_;  // null: the memory is not the host's
  std::atomic<Bytes> limit_;

  mutable std::mutex mutex_;  // guards all below, but for heap_.find
  Heap heap_;
  Bytes drawn_ = 0;
  Bytes pending_ = 0;  // of it: drawn by requests that are not granted yet
  Bytes peak_ = 0;
  Bytes most_used_ = 0;  // the peak of all time
  Bytes arena_pages_ = 0;
  Bytes peak_pages_ = 0;
  std::int64_t requested_ = 0;  // these four without what the caches know
  std::uint64_t allocations_ = 0;
  std::uint64_t deallocations_ = 0;
  std::vector<std::int64_t> charged_;  // by tag
  std::vector<std::uint32_t> arenas_;  // how many there are, by tag
  std::map<std::string, Tag, std::less<>> tags_;
  std::vector<Tag> spare_tags_;  // numbers that no tag has
  std::vector<std::shared_ptr<Cache>> caches_;
};

}  // namespace memcfg
