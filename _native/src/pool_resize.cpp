#include "memcfg/pool.hpp"

// How a pool changes the size of a block where it lies.

#include <algorithm>

#include "memcfg/pool_registry.hpp"

namespace memcfg {
namespace {

// The owner's time in a cache, unless it is revoked.
class Inside {
 public:
  explicit Inside(Cache& cache) noexcept : cache_(cache), is_(cache.lock.enter()) {}
  ~Inside() {
    if (is_) cache_.lock.leave();
  }
  Inside(const Inside&) = delete;
  Inside& operator=(const Inside&) = delete;
  explicit operator bool() const noexcept { return is_; }

 private:
  Cache& cache_;
  const bool is_;
};

}  // namespace

// A block whose size is being changed; nobody else can free or resize it meanwhile.
class Pool::Claim {
 public:
  Claim(Chunk& chunk, Bytes size) : chunk_(chunk), use_(take_use(chunk, size)) {}
  ~Claim() { chunk_.use.store(use_.word(), std::memory_order_release); }
  Claim(const Claim&) = delete;
  Claim& operator=(const Claim&) = delete;

  Use use() const noexcept { return use_; }
  bool change(bool done, Bytes size) noexcept {
    if (done) use_ = Use(size, use_.tag());
    return done;
  }

 private:
  Chunk& chunk_;
  Use use_;
};

// Nobody reads the books while a claim lives: it lives inside the cache, or the lock.
bool Pool::resize(void* address, Bytes size, Bytes new_size) {
  require_valid_size(new_size);
  Cache* const cache = own_cache();
  if (cache != nullptr && std::max(size, new_size) <= SizeClass::kLargest) {
    Chunk& chunk = find_block(address, cache);
    if (const Inside inside(*cache); inside) {
      Claim claim(chunk, size);
      if (claim.change(cache->resize(chunk, claim.use(), new_size), new_size)) {
        return true;
      }
    }
  }
  return resize_slowly(address, size, new_size, cache);
}

bool Pool::resize_slowly(void* address, Bytes size, Bytes new_size, Cache* cache) {
  for (const bool again : {true, false}) {
    try {
      const Lock lock(mutex_);
      return try_resize(address, size, new_size, cache);
    } catch (const Refused& refused) {
      if (refused.cause != Shortage::tracked_limit) return false;
    } catch (const std::bad_alloc&) {
      return false;
    }
    if (again) PoolRegistry::instance().reclaim_quotas();
  }
  return false;
}

bool Pool::try_resize(void* address, Bytes size, Bytes new_size, Cache* cache) {
  const ChunkId id = heap_.find(address);
  if (id == 0) throw bad_free("the address is not that of a block of this pool");
  Chunk& chunk = heap_[id];
  Claim claim(chunk, size);
  if (new_size > kLargestSize) return false;
  const Bytes before = align_up(size);
  const Bytes now = align_up(new_size);
  note_peak(cache);
  if (cache != nullptr) flush_large(*cache);
  if (now > before && !try_grow(chunk, now, now - before)) return false;
  if (now < before) {
    const Bytes least = SizeClass::block(now);
    if (least < chunk.size) heap_.shrink(chunk, least);
    undraw(before - now);
  }
  requested_ += static_cast<std::int64_t>(new_size - size);
  charged_[claim.use().tag()] += static_cast<std::int64_t>(now - before);
  return claim.change(true, new_size);
}

// Draws first, as an allocation does. Throws Refused or std::bad_alloc.
bool Pool::try_grow(Chunk& chunk, Bytes charge, Bytes more) {
  draw(more);
  heap_.set_most_used(std::max(most_used_, drawn_));
  bool fits = false;
  try {
    fits = fit(chunk, charge);
  } catch (...) {
    cancel(more);
    throw;
  }
  fits ? grant(more) : cancel(more);
  return fits;
}

// Post: true, and the chunk has so many bytes, or those of their class. Memory that the
// caches keep makes way: for new pages, as for an allocation's, and where it lies above
// a large block, whose move would cost more.
bool Pool::fit(Chunk& chunk, Bytes charge) {
  if (charge <= chunk.size) return true;
  const Bytes whole = SizeClass::block(charge);
  for (const bool again : {true, false}) {
    try {
      const bool done =
          heap_.extend(chunk, whole) || (whole > charge && heap_.extend(chunk, charge));
      if (done || charge <= SizeClass::kLargest) return done;
    } catch (const Refused&) {
      if (!again) throw;
    }
    if (again) flush_caches();
  }
  return false;
}

}  // namespace memcfg
