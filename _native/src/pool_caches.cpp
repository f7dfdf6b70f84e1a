#include "memcfg/pool.hpp"

// What a pool does with the caches of its threads.

#include <algorithm>
#include <utility>

namespace memcfg {
namespace {

constexpr Bytes kMostKept = Bytes{256} << 10;  // bytes in a thread's cache
constexpr Bytes kLeastKept = Bytes{16} << 10;  // bytes; with less there is no cache
constexpr Bytes kKeptShare = 64;               // of the limit: one part in so many
constexpr std::size_t kFlushed = 4;            // blocks at once
constexpr std::uint32_t kOverflows = 16;       // of a cache, until a stack makes room
constexpr auto kRelaxed = std::memory_order_relaxed;

}  // namespace

void Pool::set_quota(Cache& cache, Bytes quota) noexcept {
  note_peak(nullptr);
  undraw(cache.quota - quota);
  cache.quota = quota;
  cache.least_quota.store(quota, kRelaxed);
}

void Pool::take_quotas() noexcept {
  const Quiet quiet(*this);
  for (const auto& cache : caches_) set_quota(*cache, 0);
}

void Pool::flush_caches() noexcept {
  const Quiet quiet(*this);
  for (const auto& cache : caches_) {
    for (Cache::Stack& stack : cache->stacks) flush(*cache, stack, stack.count);
    flush_large(*cache);
    set_quota(*cache, 0);
  }
}

// Gives the blocks that were put first to the heap.
void Pool::flush(Cache& cache, Cache::Stack& stack, std::size_t count) noexcept {
  Chunk** const chunks = stack.chunks.data();
  for (std::size_t i = 0; i < count; ++i) {
    cache.kept -= chunks[i]->size;
    heap_.release(*chunks[i]);
  }
  std::copy(chunks + count, chunks + stack.count, chunks);
  stack.count -= static_cast<std::uint32_t>(count);
}

void Pool::flush_large(Cache& cache) noexcept {
  if (cache.large == nullptr) return;
  Chunk& chunk = *std::exchange(cache.large, nullptr);
  set_quota(cache, cache.quota - std::min(cache.quota, chunk.size));
  heap_.release(chunk);
}

// Those who tell of holes call it as well. Nothing else that they tell changes, and no
// pool is a const object.
void Pool::flush_large_blocks() const noexcept {
  for (const auto& cache : caches_) const_cast<Pool*>(this)->flush_large(*cache);
}

// Some blocks go: of a full stack, or now and then, when the cache has too many bytes,
// of another one. The quota follows the blocks.
void Pool::make_room(Cache& cache, Bytes charge) noexcept {
  Cache::Stack& own = cache.stacks[SizeClass::of(charge)];
  if (own.count == Cache::kDepth) {
    flush(cache, own, kFlushed);
  } else if (cache.kept + SizeClass::block(charge) > cache.most_kept) {
    if (++cache.overflows % kOverflows != 0) return;
    Cache::Stack& next = cache.stacks[cache.next_to_go()];
    flush(cache, next, (next.count + 1) / 2);
  }
  if (cache.quota > cache.kept_in_all()) set_quota(cache, cache.kept_in_all());
}

void Pool::bound_cache(Cache& cache, Bytes limit) const noexcept {
  const Bytes share = limit / kKeptShare;
  cache.most_kept = share < kLeastKept ? 0 : std::min(kMostKept, share);
  cache.most_large = std::min(Cache::kMostLarge, share);
}

void Pool::retire(const Cache* cache) noexcept {
  const Lock lock(mutex_);
  const auto row =
      std::find_if(caches_.begin(), caches_.end(), [cache](const auto& each) {
        return each.get() == cache;
      });
  if (row == caches_.end()) return;
  Cache& last = **row;  // its owner is here, or gone
  for (Cache::Stack& stack : last.stacks) flush(last, stack, stack.count);
  flush_large(last);
  set_quota(last, 0);
  requested_ += last.requested;
  allocations_ += last.allocations;
  deallocations_ += last.deallocations;
  for (std::size_t i = 0; i < last.charged.size(); ++i) charged_[i] += last.charged[i];
  caches_.erase(row);
}

void Pool::revoke_caches() const noexcept {
  OwnerLock::revoke([this](auto act) {
    for (const auto& cache : caches_) act(cache->lock);
  });
}

void Pool::restore_caches() const noexcept {
  for (const auto& cache : caches_) cache->lock.restore();
}

void Pool::freeze() {
  mutex_.lock();
  revoke_caches();
}

void Pool::thaw(bool child) noexcept {
  if (child) {
    for (const auto& cache : caches_) cache->lock.forget_owner();
  }
  restore_caches();
  mutex_.unlock();
}

void Pool::give_up_quotas() noexcept {
  const Lock lock(mutex_, std::try_to_lock);
  if (lock.owns_lock()) take_quotas();
}

}  // namespace memcfg
