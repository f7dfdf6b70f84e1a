#include "memcfg/pool.hpp"

#include <algorithm>
#include <stdexcept>

#include "memcfg/block_system.hpp"
#include "memcfg/pool_registry.hpp"

namespace memcfg {
namespace {

constexpr auto kRelaxed = std::memory_order_relaxed;

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

void* address_of(const Chunk& chunk) noexcept {
  return reinterpret_cast<void*>(chunk.address.load(kRelaxed));
}

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
  heap_.set_budget(meter_);
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
}

Cache* Pool::own_cache() noexcept {
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
                     request.size - 1 < Cache::kMostLarge &&  // 0 wraps round
                     request.lifetime != Lifetime::long_lived && !request.zeroed;
  if (!plain) {
    if (request.zeroed) return allocate_zeroed(request);
    require_valid(request);
    return allocate_slowly(request, own_cache()).address;
  }
  Cache* const cache = own_cache();
  if (cache != nullptr && cache->lock.enter()) {
    const Tag tag = cache->find_tag(request.tag);
    Chunk* chunk = nullptr;
    if (tag != Cache::kUnknown) {
      const Bytes charge = align_up(request.size);
      chunk = charge <= SizeClass::kLargest
                  ? cache->take(request.size, charge, tag)
                  : cache->take_large(request.size, charge, tag);
    }
    cache->lock.leave();
    if (chunk != nullptr) return address_of(*chunk);
  }
  return allocate_slowly(request, cache).address;
}

// A refusal by the limit of all pools makes every pool give up what its caches have.
Pool::Grant Pool::allocate_slowly(const Request& request, Cache* cache) {
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

Pool::Grant Pool::try_allocate(const Request& request, Cache* cache) {
  if (request.size > kLargestSize) {
    throw Refused{limit() == kNoLimit ? Shortage::no_memory : Shortage::limit_reached};
  }
  const Bytes charge = align_up(request.size);
  const Tag tag = learn(request.tag, cache);
  note_peak(cache);
  if (cache != nullptr && cache->large != nullptr) flush_large(*cache);
  draw(charge);
  heap_.set_most_used(std::max(most_used_, drawn_));
  Placement placement{};
  try {
    placement = place(request, charge, cache);
  } catch (...) {
    cancel(charge);
    throw;
  }
  grant(charge);
  requested_ += static_cast<std::int64_t>(request.size);
  charged_[tag] += static_cast<std::int64_t>(charge);
  ++allocations_;
  note_peak(cache);
  placement.chunk->use.store(Use(request.size, tag).word(), kRelaxed);
  return {address_of(*placement.chunk), placement.fresh};
}

// From the thread's cache, else from the heap; and if that refuses, with the memory of
// all caches, then wherever it fits, then without rounding up to a size class.
Pool::Placement Pool::place(const Request& request, Bytes charge, Cache* cache) {
  const bool plain = charge <= SizeClass::kLargest && request.alignment <= kAlignment;
  if (cache != nullptr && plain && request.lifetime != Lifetime::long_lived) {
    Cache::Stack& stack = cache->stacks[SizeClass::of(charge)];
    if (stack.count > 0) {
      Chunk* const chunk = stack.chunks[--stack.count];
      cache->kept -= chunk->size;
      return {chunk, Heap::Fresh::none};
    }
  }
  const Bytes size = SizeClass::block(charge);
  Shortage::Cause cause{};
  Placement placement = place_in_heap(request, size, cause);
  if (placement.chunk != nullptr) return placement;
  flush_caches();
  Request last = request;
  last.lifetime = Lifetime::unknown;  // a hint, not a reason to refuse
  for (const Request& each : {request, last}) {
    placement = place_in_heap(each, size, cause);
    if (placement.chunk != nullptr) return placement;
  }
  placement = place_in_heap(last, charge, cause);
  if (placement.chunk != nullptr) return placement;
  throw Refused{cause};
}

Pool::Placement Pool::place_in_heap(const Request& request,
                                    Bytes size,
                                    Shortage::Cause& cause) {
  try {
    const Bytes alignment = std::max(request.alignment, kAlignment);
    const Heap::Grant grant = heap_.allocate(size, alignment, request.lifetime);
    return {&heap_[grant.id], grant.fresh};
  } catch (const Refused& refused) {
    cause = refused.cause;
    return {nullptr, Heap::Fresh::none};
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
  peak_pages_ = std::max(peak_pages_, committed());
}

Chunk& Pool::look_up(const void* address) const {
  Lock lock(mutex_, std::defer_lock);
  if (system_.whole_blocks()) lock.lock();  // its segments come and go
  const ChunkId id = heap_.find(address);
  if (id == 0) throw bad_free("the address is not that of a block of this pool");
  return heap_[id];
}

Bytes Pool::size_of(const void* address) const {
  const Cache* const cache = last_cache.pool == id_ ? last_cache.cache : nullptr;
  const Use use(find_block(address, cache).use.load(kRelaxed));
  if (use.word() == 0) throw bad_free("the block has been freed already");
  return use.requested();
}

void Pool::refuse_free(Chunk& chunk, Use use, Bytes size) {
  if (use.word() == 0) throw bad_free("the block has been freed already");
  chunk.use.store(use.word(), std::memory_order_release);
  require_size(use.requested(), size);
}

// Pre: the chunk is nobody's, and was used as `use` says.
inline void Pool::take_back(Chunk& chunk, Use use, Cache* cache) noexcept {
  const Bytes charge = align_up(use.requested());
  if (charge <= Cache::kMostLarge && cache != nullptr && cache->lock.enter()) {
    const bool done = charge <= SizeClass::kLargest
                          ? cache->put(chunk, use, charge)
                          : cache->put_large(chunk, use, charge);
    cache->lock.leave();
    if (done) return;
  }
  deallocate_slowly(chunk, use, cache);
}

void Pool::deallocate(void* address, Bytes size) {
  Cache* const cache = own_cache();
  Chunk& chunk = find_block(address, cache);
  take_back(chunk, take_use(chunk, size), cache);
}

bool Pool::release(void* address) noexcept {
  Cache* const cache = own_cache();
  try {
    Chunk& chunk = find_block(address, cache);
    const Use use(chunk.use.exchange(0, std::memory_order_acq_rel));
    if (use.word() == 0) return false;
    take_back(chunk, use, cache);
    return true;
  } catch (const bad_free&) {
    return false;
  }
}

void Pool::deallocate_slowly(Chunk& chunk, Use use, Cache* cache) noexcept {
  const Bytes charge = align_up(use.requested());
  const Lock lock(mutex_);
  note_peak(cache);
  if (cache != nullptr) {
    if (cache->large != nullptr) flush_large(*cache);
    learn_tags(*cache);
    if (charge > SizeClass::kLargest && cache->put_large(chunk, use, charge)) return;
  }
  undraw(charge);
  requested_ -= static_cast<std::int64_t>(use.requested());
  charged_[use.tag()] -= static_cast<std::int64_t>(charge);
  ++deallocations_;
  heap_.release(chunk);
  if (cache != nullptr && charge <= SizeClass::kLargest) make_room(*cache, charge);
}

}  // namespace memcfg
