#include "memcfg/pool.hpp"

#include <algorithm>
#include <stdexcept>

#include "memcfg/block_system.hpp"
#include "memcfg/pool_registry.hpp"

namespace memcfg {
namespace {

constexpr Bytes kMostKept = Bytes{256} << 10;  // bytes in a thread's cache
constexpr std::size_t kFlushed = 4;            // blocks at once
constexpr std::uint32_t kOverflows = 16;       // of a cache, until a stack makes room
constexpr Bytes kKeptShare = 64;               // of the limit: one part in so many
constexpr Bytes kLeastKept = Bytes{16} << 10;  // bytes; with less there is no cache
constexpr Bytes kLargestSize = Use::kLargest - kAlignment;  // bytes: 256 TiB
constexpr std::size_t kMostTags = std::size_t{1} << Use::kTagBits;

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

// Keeps every owner out of its cache. Pre: the pool's lock is held as long.
class Pool::Quiet {
 public:
  explicit Quiet(const Pool& pool) noexcept : pool_(pool) { pool_.revoke_caches(); }
  ~Quiet() { pool_.restore_caches(); }
  Quiet(const Quiet&) = delete;
  Quiet& operator=(const Quiet&) = delete;

 private:
  const Pool& pool_;
};

// The pool's numbers with those of its caches.
struct Pool::Sums {
  Bytes quotas = 0;
  Bytes kept = 0;
  std::int64_t requested = 0;
  std::uint64_t allocations = 0;
  std::uint64_t deallocations = 0;
  std::vector<std::int64_t> charged;
};

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
      charged_(1) {
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
  for (bool again : {true, false}) {
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
  peak_pages_ = std::max(peak_pages_, committed());
}

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
  if (cache.quota > cache.kept) set_quota(cache, cache.kept);
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

Tag Pool::learn(std::string_view tag, Cache* cache) {
  const Tag found = number(tag);
  if (cache == nullptr) return found;
  learn_tags(*cache);
  if (found < cache->charged.size() && cache->find_tag(tag) == Cache::kUnknown) {
    cache->tags.emplace(tag, found);
  }
  return found;
}

// Makes room in a cache's books for the tags that are known by now.
void Pool::learn_tags(Cache& cache) noexcept {
  if (cache.charged.size() == charged_.size()) return;
  try {
    cache.charged.resize(charged_.size());
  } catch (const std::bad_alloc&) {  // blocks with those tags do not go through it
  }
}

Tag Pool::number(std::string_view tag) {
  if (tag.empty()) return 0;
  const auto row = tags_.find(tag);
  if (row != tags_.end()) return row->second;
  if (charged_.size() == kMostTags) {
    throw std::invalid_argument("a pool knows at most 65535 tags");
  }
  const Tag fresh = static_cast<Tag>(charged_.size());
  charged_.push_back(0);
  try {
    tags_.emplace(tag, fresh);
  } catch (...) {
    charged_.pop_back();
    throw;
  }
  return fresh;
}

Bytes Pool::most_kept(Bytes limit) const noexcept {
  const Bytes share = limit / kKeptShare;
  return share < kLeastKept ? 0 : std::min(kMostKept, share);
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

Pool::Sums Pool::sums() const {
  Sums sum{0, 0, requested_, allocations_, deallocations_, charged_};
  for (const auto& cache : caches_) {
    sum.quotas += cache->quota;
    sum.kept += cache->kept;
    sum.requested += cache->requested;
    sum.allocations += cache->allocations;
    sum.deallocations += cache->deallocations;
    for (std::size_t i = 0; i < cache->charged.size(); ++i) {
      sum.charged[i] += cache->charged[i];
    }
  }
  return sum;
}

ResourceStats Pool::stats() const {
  const Lock lock(mutex_);
  const Quiet quiet(*this);
  const Sums sum = sums();
  Bytes least = 0;
  for (const auto& cache : caches_) least += cache->least_quota.load(kRelaxed);
  ResourceStats stats;
  stats.current = drawn_ - pending_ - sum.quotas;
  stats.peak = std::max(peak_, drawn_ - pending_ - least);
  stats.requested = static_cast<Bytes>(sum.requested);
  stats.reserved = committed();
  stats.peak_reserved = std::max(peak_pages_, committed());
  stats.addresses = heap_.addresses();
  stats.limit = limit();
  if (stats.limit != kNoLimit) {
    const Bytes free = (stats.limit - stats.current) / kAlignment * kAlignment;
    stats.largest_free = heap_.largest_request(free);
  }
  stats.largest_hole = heap_.largest_idle();
  stats.holes = heap_.idle();
  stats.metadata = heap_.metadata() + caches_.size() * sizeof(Cache);
  stats.allocations = sum.allocations;
  stats.deallocations = sum.deallocations;
  return stats;
}

void Pool::reset_peak() {
  const Lock lock(mutex_);
  const Quiet quiet(*this);
  for (const auto& cache : caches_) cache->least_quota.store(cache->quota, kRelaxed);
  peak_ = drawn_ - pending_ - sums().quotas;
  peak_pages_ = committed();
}

Owners Pool::owners() const {
  const Lock lock(mutex_);
  const Quiet quiet(*this);
  const Sums sum = sums();
  Owners rows;
  if (sum.charged[0] != 0) rows.emplace_back("", sum.charged[0]);
  for (const auto& [name, tag] : tags_) {
    if (sum.charged[tag] != 0) rows.emplace_back(name, sum.charged[tag]);
  }
  return rows;
}

Bytes Pool::trim(Bytes keep) {
  const Lock lock(mutex_);
  flush_caches();
  const Bytes idle = heap_.idle();
  return idle > keep ? heap_.give_back(idle - keep) : 0;
}

std::vector<Stretch> Pool::layout() const {
  const Lock lock(mutex_);
  const Quiet quiet(*this);
  return heap_.layout();
}

void Pool::check() const {
  const Lock lock(mutex_);
  const Quiet quiet(*this);
  heap_.check();
  const Sums sum = sums();
  std::int64_t charged = 0;
  for (const std::int64_t bytes : sum.charged) {
    require(bytes >= 0, "a tag holds less than nothing");
    charged += bytes;
  }
  const Bytes in_use = drawn_ - pending_ - sum.quotas;
  require(drawn_ <= limit(), "more is drawn than the limit");
  require(static_cast<Bytes>(charged) == in_use, "the tags do not add up");
  require(static_cast<Bytes>(sum.requested) <= in_use, "more requested than charged");
  require(in_use % kAlignment == 0, "the bytes in use are not whole lines");
  require(committed() <= most_pages(limit()), "more pages than the limit and one");
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
  set_quota(last, 0);
  requested_ += last.requested;
  allocations_ += last.allocations;
  deallocations_ += last.deallocations;
  for (std::size_t i = 0; i < last.charged.size(); ++i) charged_[i] += last.charged[i];
  caches_.erase(row);
}

void Pool::revoke_caches() const noexcept {
  if (caches_.empty()) return;
  for (const auto& cache : caches_) cache->lock.revoke();
  OwnerLock::pass_barrier();
  for (const auto& cache : caches_) cache->lock.wait();
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

Account::Account(std::shared_ptr<Pool> pool, const std::string& owner)
    : pool_(std::move(pool)), owner_(owner) {
  const Pool::Lock lock(pool_->mutex_);
  tag_ = pool_->number(owner);
}

Account::~Account() {
  settle(holding_);
}

void Account::draw(const Holding& more) {
  Shortage::Cause cause{};
  for (bool again : {true, false}) {
    try {
      const Pool::Lock lock(pool_->mutex_);
      pool_->note_peak(nullptr);
      pool_->draw(more.charged);
      try {
        pool_->afford_arena(more.reserved);
      } catch (...) {
        pool_->cancel(more.charged);
        throw;
      }
      return;
    } catch (const Refused& refused) {
      cause = refused.cause;
    }
    if (cause != Shortage::tracked_limit) break;
    if (again) PoolRegistry::instance().reclaim_quotas();
  }
  throw refusal(*pool_, cause, more.requested);
}

// The pages of holes make way for an arena's. Throws Refused, nothing taken.
void Pool::afford_arena(Bytes more) {
  const Bytes room = heap_.ceiling();
  if (room != kNoLimit) {
    const Bytes wanted = heap_.committed() + more;
    if (wanted > room) {
      flush_caches();
      heap_.give_back(wanted - room);
    }
    if (heap_.committed() + more > room) throw Refused{Shortage::fragmented};
  }
  if (meter_ != nullptr && more > 0 && !meter_->admits(more)) {
    flush_caches();
    heap_.give_back(kNoLimit);
    if (!meter_->admits(more)) throw Refused{Shortage::rss_limit};
  }
  arena_pages_ += more;
  set_ceiling(limit());
}

void Account::refuse(const Holding& more, Shortage::Cause cause) {
  {
    const Pool::Lock lock(pool_->mutex_);
    pool_->arena_pages_ -= more.reserved;
    pool_->cancel(more.charged);
    pool_->set_ceiling(pool_->limit());
  }
  throw refusal(*pool_, cause, more.requested);
}

void Account::book(const Holding& more) noexcept {
  const Pool::Lock lock(pool_->mutex_);
  holding_.requested += more.requested;
  holding_.charged += more.charged;
  holding_.reserved += more.reserved;
  pool_->requested_ += static_cast<std::int64_t>(more.requested);
  pool_->charged_[tag_] += static_cast<std::int64_t>(more.charged);
  ++pool_->allocations_;
  pool_->grant(more.charged);
  pool_->note_peak(nullptr);
}

void Account::settle(Holding less) noexcept {
  const Pool::Lock lock(pool_->mutex_);
  pool_->note_peak(nullptr);
  holding_.requested -= less.requested;
  holding_.charged -= less.charged;
  holding_.reserved -= less.reserved;
  pool_->requested_ -= static_cast<std::int64_t>(less.requested);
  pool_->charged_[tag_] -= static_cast<std::int64_t>(less.charged);
  pool_->arena_pages_ -= less.reserved;
  pool_->set_ceiling(pool_->limit());
  pool_->undraw(less.charged);
}

}  // namespace memcfg
