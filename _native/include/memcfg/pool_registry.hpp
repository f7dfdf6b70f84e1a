// All pools of the process: what ends with a thread, and what a fork must not tear.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "memcfg/pool.hpp"
#include "memcfg/thread_caches.hpp"

namespace memcfg {

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
