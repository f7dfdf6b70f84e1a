#include "memcfg/pool_registry.hpp"

#include <pthread.h>

#include <algorithm>

#include "memcfg/block_system.hpp"

namespace memcfg {

// The caches of one thread, for all pools that it used.
class CachesOfThread {
 public:
  ~CachesOfThread() {
    ended_ = true;
    Pool::drop_thread();
    PoolRegistry::instance().retire(rows_);
  }

  static std::vector<PoolRegistry::Row>* rows() {
    static thread_local CachesOfThread caches;
    return ended_ ? nullptr : &caches.rows_;
  }

 private:
  static thread_local bool ended_;  // blocks may be freed even after that
  std::vector<PoolRegistry::Row> rows_;
};

thread_local bool CachesOfThread::ended_ = false;

PoolRegistry& PoolRegistry::instance() {
  static PoolRegistry* const registry = new PoolRegistry;
  return *registry;
}

PoolRegistry::PoolRegistry() {
  pthread_atfork([] { instance().before_fork(); },
                 [] { instance().after_fork(false); },
                 [] { instance().after_fork(true); });
}

void PoolRegistry::add(Pool& pool) {
  const std::lock_guard<std::mutex> lock(mutex_);
  pools_.push_back(&pool);
}

void PoolRegistry::remove(Pool& pool) noexcept {
  const std::lock_guard<std::mutex> lock(mutex_);
  pools_.erase(std::remove(pools_.begin(), pools_.end(), &pool), pools_.end());
}

Pool* PoolRegistry::find(std::uint64_t id) const noexcept {
  for (Pool* pool : pools_) {
    if (pool->id_ == id) return pool;
  }
  return nullptr;
}

// Takes no lock but the pool's own: a pool on top may hold its lock meanwhile.
ThreadCache* PoolRegistry::cache_of(Pool& pool) {
  std::vector<Row>* const rows = CachesOfThread::rows();
  if (rows == nullptr) return nullptr;
  for (const Row& row : *rows) {
    if (row.first == pool.id_) return row.second.get();
  }
  drop_dead(*rows);
  rows->reserve(rows->size() + 1);
  rows->emplace_back(pool.id_, pool.make_cache());
  return rows->back().second.get();
}

// Drops what a thread has of pools that are gone; another time if the registry is busy.
void PoolRegistry::drop_dead(std::vector<Row>& rows) const noexcept {
  const std::unique_lock<std::mutex> lock(mutex_, std::try_to_lock);
  if (!lock.owns_lock()) return;
  const auto gone = [this](const Row& row) { return find(row.first) == nullptr; };
  rows.erase(std::remove_if(rows.begin(), rows.end(), gone), rows.end());
}

void PoolRegistry::retire(const std::vector<Row>& rows) noexcept {
  const std::lock_guard<std::mutex> lock(mutex_);
  for (const auto& [id, cache] : rows) {
    if (Pool* const pool = find(id)) pool->retire(cache.get());
  }
}

// A pool that is at work, or a registry that is, is passed over: waiting for it here
// could wait for oneself.
void PoolRegistry::reclaim_quotas() {
  if (BelowPool::here()) return;
  const std::unique_lock<std::mutex> lock(mutex_, std::try_to_lock);
  if (!lock.owns_lock()) return;
  for (Pool* pool : pools_) pool->release_quotas();
}

// Nobody may be inside a pool or a cache while the process is copied: in the child only
// the forking thread goes on. The caches of the others stay where they are; their
// blocks go back to the heap when memory is short, or with the pool.
void PoolRegistry::before_fork() {
  host_meter().mutex().lock();
  mutex_.lock();
  for (auto pool = pools_.rbegin(); pool != pools_.rend(); ++pool) (*pool)->freeze();
}

void PoolRegistry::after_fork(bool child) noexcept {
  for (Pool* pool : pools_) pool->thaw(child);
  mutex_.unlock();
  host_meter().mutex().unlock();
}

}  // namespace memcfg
