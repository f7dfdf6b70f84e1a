#include "memcfg/pool.hpp"

#include <algorithm>
#include <stdexcept>

#include "memcfg/block_system.hpp"
#include "memcfg/pool_registry.hpp"

namespace memcfg {
namespace {

constexpr Bytes kLargestSize = Use::kLargest - kAlignment;  // bytes: 256 TiB
constexpr auto kRelaxed = std::memory_order_relaxed;

void require_limit(Bytes limit) {
  if (limit == 0) throw std::invalid_argument("a limit must be positive");
}

std::unique_ptr<const System> blocks_of(const std::shared_ptr<Resource>& upstream) {
  if (upstream == nullptr || upstream->pages() != nullptr) return nullptr;
  return std::make_unique<BlockSystem>(upstream);
}

const System* pages_of(const Resource* upstream, const System* blocks) {
  if (blocks != nullptr) return blocks;
  return upstream == nullptr ? &host_system() : upstream->pages();
}

// The cache that this thread used last. Initial-exec: one load instead of a call.
struct LastCache {
  std::uint64_t pool = 0;
  Cache* cache = nullptr;
};
#if defined(__ELF__) && defined(__GNUC__)
__attribute__((tls_model("initial-exec")))
#endif
thread_local LastCache last_cache;

}  // namespace

Pool::Pool(std::string name,
           Bytes limit,
           bool growth,
           std::shared_ptr<Resource> upstream)
    : Pool(std::move(name), limit, growth, upstream, blocks_of(upstream), nullptr) {}

Pool::Pool(std::string name, Bytes limit, const System& system)
    : Pool(std::move(name), limit, true, nullptr, nullptr, &system) {}

Pool::Pool(std::string name,
           Bytes limit,
           bool growth,
           std::shared_ptr<Resource> upstream,
           std::unique_ptr<const System> blocks,
           const System* system)
    : name_(std::move(name)),
      id_(PoolRegistry::instance().next_id()),
      upstream_(std::move(upstream)),
      blocks_(std::move(blocks)),
      system_(system != nullptr ? *system : *pages_of(upstream_.get(), blocks_.get())),
      growth_(growth),
      meter_(system_.on_host() ? &host_meter() : nullptr),
      limit_(limit),
      heap_(system_),
      charged_(1),
      arenas_(1) {
  require_limit(limit);
  if (!growth && limit == kNoLimit) {
    throw std::invalid_argument("a pool that does not grow needs a limit");
  }
  heap_.set_gate(meter_);
  set_ceiling(limit);
  try {
    if (!growth && limit > kLargestSize) throw Refused{Shortage::no_memory};
    if (!growth) heap_.fill(limit);
  } catch (const Refused& refused) {
    throw refusal(*this, refused.cause, limit);
  }
  note_pages();
  PoolRegistry::instance().add(*this);
}

Pool::~Pool() {
  PoolRegistry::instance().remove(*this);
  undraw(drawn_);
  if (meter_ != nullptr) meter_->count_pages(noted_pages_, 0);
}

inline Cache* Pool::own_cache() noexcept {
  return last_cache.pool == id_ ? last_cache.cache : find_cache();
}

Cache* Pool::find_cache() noexcept {
  try {
    Cache* const cache = PoolRegistry::instance().cache_of(*this);
    if (cache != nullptr) last_cache = {id_, cache};
    return cache;
  } catch (const std::bad_alloc&) {
    return nullptr;
  }
}

void Pool::forget_thread() noexcept {
  last_cache = {};
}

void* Pool::allocate(const Request& request) {
  const bool plain = request.alignment == kAlignment &&
                     request.size - 1 < SizeClass::kLargest &&  // 0 wraps round
                     request.lifetime != Lifetime::long_lived;
  if (!plain) {
    require_valid(request);
    return allocate_slowly(request, own_cache());
  }
  Cache* const cache = own_cache();
  if (cache != nullptr && cache->lock.enter()) {
    const Tag tag = cache->find_tag(request.tag);
    Chunk* chunk = nullptr;
    if (tag != Cache::kUnknown) {
      chunk = cache->take(request.size, align_up(request.size), tag);
    }
    cache->lock.leave();
    if (chunk != nullptr) return reinterpret_cast<void*>(chunk->address.load(kRelaxed));
  }
  return allocate_slowly(request, cache);
}

// A refusal by the limit of all pools makes every pool give up what its caches have.
void* Pool::allocate_slowly(const Request& request, Cache* cache) {
  Shortage::Cause cause{};
  for (const bool again : {true, false}) {
    try {
      const Lock lock(mutex_);
      return try_allocate(request, cache);
    } catch (const Refused& refused) {
      cause = refused.cause;
    }
    if (cause != Shortage::tracked_limit) break;
    if (again) PoolRegistry::instance().reclaim_quotas();
  }
  throw refusal(*this, cause, request.size);
}

void* Pool::try_allocate(const Request& request, Cache* cache) {
  if (request.size > kLargestSize) {
    throw Refused{limit() == kNoLimit ? Shortage::no_memory : Shortage::limit_reached};
  }
  const Bytes charge = align_up(request.size);
  const Tag tag = learn(request.tag, cache);
  note_peak(cache);
  draw(charge);
  heap_.set_most_used(std::max(most_used_, drawn_));
  Chunk* chunk = nullptr;
  try {
    chunk = &place(request, charge, cache);
  } catch (...) {
    cancel(charge);
    throw;
  }
  grant(charge);
  requested_ += static_cast<std::int64_t>(request.size);
  charged_[tag] += static_cast<std::int64_t>(charge);
  ++allocations_;
  note_peak(cache);
  chunk->use.store(Use(request.size, tag).word(), kRelaxed);
  return reinterpret_cast<void*>(chunk->address.load(kRelaxed));
}

// From the thread's cache, else from the heap; and if that refuses, with the memory of
// all caches, then wherever it fits, then without rounding up to a size class.
Chunk& Pool::place(const Request& request, Bytes charge, Cache* cache) {
  const bool plain = charge <= SizeClass::kLargest && request.alignment <= kAlignment;
  if (cache != nullptr && plain && request.lifetime != Lifetime::long_lived) {
    Cache::Stack& stack = cache->stacks[SizeClass::of(charge)];
    if (stack.count > 0) {
      Chunk* const chunk = stack.chunks[--stack.count];
      cache->kept -= chunk->size;
      return *chunk;
    }
  }
  const Bytes size = SizeClass::block(charge);
  Shortage::Cause cause{};
  if (Chunk* chunk = place_in_heap(request, size, cause)) return *chunk;
  flush_caches();
  Request last = request;
  last.lifetime = Lifetime::unknown;  // a hint, not a reason to refuse
  for (const Request& each : {request, last}) {
    if (Chunk* chunk = place_in_heap(each, size, cause)) return *chunk;
  }
  if (Chunk* chunk = place_in_heap(last, charge, cause)) return *chunk;
  throw Refused{cause};
}

Chunk* Pool::place_in_heap(const Request& request, Bytes size, Shortage::Cause& cause) {
  try {
    const Bytes alignment = std::max(request.alignment, kAlignment);
    return &heap_[heap_.allocate(size, alignment, request.lifetime)];
  } catch (const Refused& refused) {
    cause = refused.cause;
    return nullptr;
  }
}

void Pool::draw(Bytes size) {
  if (size > limit() - drawn_) take_quotas();
  if (size > limit() - drawn_) throw Refused{Shortage::limit_reached};
  if (meter_ != nullptr && !meter_->draw(size)) throw Refused{Shortage::tracked_limit};
  drawn_ += size;
  pending_ += size;
}

void Pool::grant(Bytes size) noexcept {
  pending_ -= size;
  note_pages();
}

void Pool::cancel(Bytes size) noexcept {
  grant(size);
  undraw(size);
}

void Pool::undraw(Bytes size) noexcept {
  drawn_ -= size;
  if (meter_ != nullptr) meter_->give_back(size);
}

// Between two notes `drawn_` stands still and no quota falls below the least that its
// cache saw, so no more was in use than drawn_ less pending_ and the sum of those.
void Pool::note_peak(Cache* mine) noexcept {
  Bytes unused = 0;
  for (const auto& cache : caches_) unused += cache->least_quota.load(kRelaxed);
  peak_ = std::max(peak_, drawn_ - pending_ - unused);
  most_used_ = std::max(most_used_, peak_);
  if (mine != nullptr) mine->least_quota.store(mine->quota, kRelaxed);
}

void Pool::note_pages() noexcept {
  if (noted_pages_ == committed()) return;
  if (meter_ != nullptr) meter_->count_pages(noted_pages_, committed());
  noted_pages_ = committed();
  peak_pages_ = std::max(peak_pages_, noted_pages_);
}

// The block at an address: often the one that this thread took last.
Chunk& Pool::find_block(const void* address, const Cache* cache) const {
  const auto place = reinterpret_cast<std::uintptr_t>(address);
  if (cache != nullptr && cache->last != nullptr &&
      cache->last->address.load(kRelaxed) == place) {
    return *cache->last;
  }
  Lock lock(mutex_, std::defer_lock);
  if (system_.whole_blocks()) lock.lock();  // its segments come and go
  const ChunkId id = heap_.find(address);
  if (id == 0) throw bad_free("the address is not that of a block of this pool");
  return heap_[id];
}

void Pool::deallocate(void* address, Bytes size) {
  Cache* const cache = own_cache();
  Chunk& chunk = find_block(address, cache);
  const Use use(chunk.use.exchange(0, std::memory_order_acq_rel));
  if (use.word() == 0) throw bad_free("the block has been freed already");
  if (use.requested() != size) {
    chunk.use.store(use.word(), std::memory_order_release);
    throw bad_free("the block has " + std::to_string(use.requested()) +
                   " bytes, not the " + std::to_string(size) + " that are freed");
  }
  if (size <= SizeClass::kLargest && cache != nullptr && cache->lock.enter()) {
    const bool done = cache->put(chunk, use, align_up(size));
    cache->lock.leave();
    if (done) return;
  }
  deallocate_slowly(chunk, use, cache);
}

void Pool::deallocate_slowly(Chunk& chunk, Use use, Cache* cache) noexcept {
  const Bytes charge = align_up(use.requested());
  const Lock lock(mutex_);
  note_peak(cache);
  undraw(charge);
  requested_ -= static_cast<std::int64_t>(use.requested());
  charged_[use.tag()] -= static_cast<std::int64_t>(charge);
  ++deallocations_;
  heap_.release(chunk);
  if (cache == nullptr) return;
  if (charge <= SizeClass::kLargest) make_room(*cache, charge);
  learn_tags(*cache);
}

// The limit and one page; no limit stays none.
Bytes Pool::most_pages(Bytes limit) const noexcept {
  const Bytes page = system_.page_size();
  return limit > kNoLimit - page ? kNoLimit : limit + page;
}

void Pool::set_ceiling(Bytes limit) noexcept {
  const Bytes most = most_pages(limit);
  heap_.set_ceiling(most == kNoLimit ? kNoLimit : most - arena_pages_);
}

Bytes Pool::set_limit(Bytes limit) {
  require_limit(limit);
  Shortage::Cause cause{};
  try {
    const Lock lock(mutex_);
    const Bytes old = limit_.load();
    if (limit < old) {
      note_peak(nullptr);
      flush_caches();
      if (drawn_ > limit) throw Refused{Shortage::limit_lowered};
      fit_pages(limit);
    }
    const Quiet quiet(*this);
    limit_.store(limit);
    set_ceiling(limit);
    for (const auto& cache : caches_) cache->most_kept = most_kept(limit);
    note_pages();
    return old;
  } catch (const Refused& refused) {
    cause = refused.cause;
  }
  throw refusal(*this, cause, limit);
}

// Pre: limit is not above the present one. Throws Refused when blocks hold more pages.
void Pool::fit_pages(Bytes limit) {
  const Bytes ceiling = most_pages(limit);
  if (committed() > ceiling) heap_.give_back(committed() - ceiling);
  if (committed() > ceiling) throw Refused{Shortage::fragmented};
}

Bytes Pool::trim(Bytes keep) {
  const Lock lock(mutex_);
  flush_caches();
  const Bytes idle = heap_.idle();
  const Bytes given = idle > keep ? heap_.give_back(idle - keep) : 0;
  note_pages();
  if (heap_.taken() == 0) heap_.forget();
  return given;
}

Bytes Pool::decay() {
  const Lock lock(mutex_);
  const Bytes given = heap_.give_back_old();
  note_pages();
  return given;
}

}  // namespace memcfg
