// The caches of a pool: one for each thread that uses it.
#pragma once

#include <memory>
#include <vector>

#include "memcfg/heap.hpp"
#include "memcfg/limit_accounting.hpp"
#include "memcfg/tags.hpp"
#include "memcfg/thread_cache.hpp"
#include "memcfg/types.hpp"

namespace memcfg {

// Used under the pool's lock. What says so revokes the caches of other threads while it
// works on them; revoking does not nest.
class ThreadCaches {
 public:
  // Pre: both outlive it.
  ThreadCaches(Heap& heap, LimitAccounting& accounting)
      : heap_(heap), accounting_(accounting) {}
  ThreadCaches(const ThreadCaches&) = delete;
  ThreadCaches& operator=(const ThreadCaches&) = delete;

  // Throws std::bad_alloc, nothing changed.
  void add(std::shared_ptr<ThreadCache> cache, std::size_t tags);
  // Its thread ends: its blocks and quota go, its counts are added.
  void retire(const ThreadCache* cache, BlockCounts& counts) noexcept;

  void revoke() noexcept;  // until `restore` no owner is inside its cache
  void restore() noexcept;
  void reset_owners() noexcept;  // in the child of a fork; pre: revoked

  void release_quotas() noexcept;  // revokes
  void flush() noexcept;           // revokes; blocks and quotas go

  // Pre of those that follow: the caches are revoked.
  void flush_large_blocks() noexcept;
  void set_bounds(Bytes limit) noexcept;  // on the bytes that each may keep
  void reset_tags() noexcept;
  void reset_peak() noexcept;
  Bytes quotas() const noexcept;
  void add_counts(BlockCounts& counts) const noexcept;

  // Pre of those that follow: the cache is revoked or one's own.
  void flush_large(ThreadCache& cache) noexcept {
    if (cache.large != nullptr) release_large(cache);
  }
  // Some of the blocks go, so that another of `charge` bytes can be kept.
  void make_space(ThreadCache& cache, Bytes charge) noexcept;

  // `own`: the calling thread's, whose lowest quota is noted anew; null: none.
  void note_peak(ThreadCache* own) noexcept {
    accounting_.note_peak(min_quotas());
    if (own != nullptr) own->min_quota.store(own->quota, std::memory_order_relaxed);
  }
  Bytes min_quotas() const noexcept {
    Bytes sum = 0;
    for (const auto& cache : caches_) {
      sum += cache->min_quota.load(std::memory_order_relaxed);
    }
    return sum;
  }
  std::size_t size() const noexcept { return caches_.size(); }

 private:
  static void set_bound(ThreadCache& cache, Bytes limit) noexcept;
  void flush(ThreadCache& cache, ThreadCache::Stack& stack, std::size_t count) noexcept;
  void flush(ThreadCache& cache) noexcept;
  void release_large(ThreadCache& cache) noexcept;
  void set_quota(ThreadCache& cache, Bytes quota) noexcept;

  Heap& heap_;
  LimitAccounting& accounting_;
  std::vector<std::shared_ptr<ThreadCache>> caches_;
};

// While it lives, the caches are revoked. Pre: the pool's lock is held as long.
class CachesRevoked {
 public:
  explicit CachesRevoked(ThreadCaches& caches) noexcept : caches_(caches) {
    caches_.revoke();
  }
  ~CachesRevoked() { caches_.restore(); }
  CachesRevoked(const CachesRevoked&) = delete;
  CachesRevoked& operator=(const CachesRevoked&) = delete;

 private:
  ThreadCaches& caches_;
};

}  // namespace memcfg
