#include "memcfg/pool.hpp"

#include <pthread.h>

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <stdexcept>

#include "memcfg/arena.hpp"
#include "memcfg/forks.hpp"
#include "memcfg/pool_history.hpp"

namespace memcfg {
namespace {

constexpr Bytes kManyPages = Bytes{32} << 20;  // bytes; glibc maps such blocks anew
constexpr auto kRelaxed = std::memory_order_relaxed;

std::unique_ptr<const System> blocks_of(const std::shared_ptr<Resource>& upstream) {
  if (upstream == nullptr || upstream->pages() != nullptr) return nullptr;
  return std::make_unique<BlockSystem>(upstream);
}

const System* pages_of(const Resource* upstream, const System* blocks) {
  if (blocks != nullptr) return blocks;
  return upstream == nullptr ? &host_system() : upstream->pages();
}

std::vector<LiveBlock> live_blocks(const std::vector<HeapExtent>& layout) {
  std::vector<LiveBlock> rows;
  for (const HeapExtent& each : layout) {
    if (each.state != HeapExtent::block) continue;
    rows.push_back({each.address, each.requested, align_up(each.requested), each.tag});
  }
  return rows;
}

void require_limit(Bytes limit) {
  if (limit == 0) throw std::invalid_argument("a limit must be positive");
}

// The cache that this thread used last. Initial-exec: one load instead of a call.
struct LastCache {
  std::uint64_t pool = 0;
  ThreadCache* cache = nullptr;
};
#if defined(__ELF__) && defined(__GNUC__)
__attribute__((tls_model("initial-exec")))
#endif
thread_local LastCache last_cache;

void* address_of(const Chunk& chunk) noexcept {
  return reinterpret_cast<void*>(chunk.address.load(kRelaxed));
}

// The owner's time in a cache, unless it is revoked.
class Inside : private NoCopy {
 public:
  explicit Inside(ThreadCache& cache) noexcept
      : cache_(cache), is_(cache.lock.enter()) {}
  ~Inside() {
    if (is_) cache_.lock.leave();
  }
  explicit operator bool() const noexcept { return is_; }

 private:
  ThreadCache& cache_;
  const bool is_;
};

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
      whole_blocks_(system_.whole_blocks()),
      growth_(growth),
      meter_(system_.on_host() ? &host_meter() : nullptr),
      heap_(system_),
      accounting_(limit, meter_),
      caches_(heap_, accounting_) {
  require_limit(limit);
  if (!growth && limit == kNoLimit) {
    throw std::invalid_argument("a pool that does not grow needs a limit");
  }
  counts_.charged.resize(tags_.count());
  heap_.set_budget(meter_);
  set_ceiling(limit);
  try {
    if (!growth && limit > kLargestSize) {
      throw AllocationFailed{OutOfMemoryInfo::no_memory};
    }
    if (!growth) heap_.fill(limit);
  } catch (const AllocationFailed& failed) {
    throw out_of_memory_error(*this, failed.cause, limit);
  }
  note_pages();
  PoolRegistry::instance().add(*this);
}

Pool::~Pool() {
  PoolRegistry::instance().remove(*this);
}

ThreadCache* Pool::own_cache() noexcept {
  return last_cache.pool == id_ ? last_cache.cache : find_cache();
}

ThreadCache* Pool::find_cache() noexcept {
  try {
    ThreadCache* const cache = PoolRegistry::instance().cache_of(*this);
    if (cache != nullptr) last_cache = {id_, cache};
    return cache;
  } catch (const std::bad_alloc&) {
    return nullptr;
  }
}

std::shared_ptr<ThreadCache> Pool::make_cache() {
  auto cache = std::make_shared<ThreadCache>();
  const Lock lock(mutex_);
  caches_.add(cache, counts_.charged.size());
  return cache;
}

void Pool::drop_thread() noexcept {
  last_cache = {};
}

void* Pool::allocate(const Request& request) {
  const bool plain = request.alignment == kAlignment &&
                     request.size - 1 < ThreadCache::kMaxLarge &&  // 0 wraps round
                     request.lifetime != Lifetime::long_lived && !request.zeroed;
  if (!plain) {
    if (request.zeroed) return allocate_zeroed(request);
    require_valid(request);
    return address_of(*allocate_slowly(request, own_cache()).chunk);
  }
  ThreadCache* const cache = own_cache();
  if (cache != nullptr && cache->lock.enter()) {
    const Tag tag = cache->find_tag(request.tag);
    Chunk* chunk = nullptr;
    if (tag != TagTable::kUnknown) {
      const Bytes charge = align_up(request.size);
      chunk = charge <= SizeClass::kLargest
                  ? cache->take(request.size, charge, tag)
                  : cache->take_large(request.size, charge, tag);
    }
    cache->lock.leave();
    if (chunk != nullptr) return address_of(*chunk);
  }
  return address_of(*allocate_slowly(request, cache).chunk);
}

// Calls `act()` under the lock, again as long as there is a way to make room. Why it
// failed, or nothing.
template <typename Act>
std::optional<Pool::Cause> Pool::attempt(Act act) {
  for (int attempts = 0;; ++attempts) {
    try {
      const Lock lock(mutex_);
      act();
      return std::nullopt;
    } catch (const AllocationFailed& failed) {
      if (!make_way(failed.cause, attempts)) return failed.cause;
    }
  }
}

// Whether another attempt may do: first with the quotas of all pools, where the limit
// of all was reached, and with pending frees that are done, then with all pending
// frees.
bool Pool::make_way(Cause cause, int attempts) {
  if (attempts > 0) return attempts == 1 && tell_pending(&PendingFrees::settle);
  const bool all_pools = cause == OutOfMemoryInfo::tracked_limit;
  if (all_pools) PoolRegistry::instance().reclaim_quotas();
  return tell_pending(&PendingFrees::collect) || all_pools;
}

// False: there is nobody to tell. Held meanwhile, so that nobody goes.
bool Pool::tell_pending(void (PendingFrees::*what)()) {
  if (!has_pending_ || stayed_in_parent()) return false;
  const std::lock_guard<std::mutex> lock(pending_mutex_);
  for (PendingFrees* each : pending_) (each->*what)();
  return !pending_.empty();
}

void Pool::add(PendingFrees& pending) {
  const std::lock_guard<std::mutex> lock(pending_mutex_);
  pending_.push_back(&pending);
  has_pending_ = true;
}

void Pool::remove(PendingFrees& pending) noexcept {
  if (stayed_in_parent()) return;
  const std::lock_guard<std::mutex> lock(pending_mutex_);
  pending_.erase(std::remove(pending_.begin(), pending_.end(), &pending),
                 pending_.end());
  has_pending_ = !pending_.empty();
}

Pool::Allocation Pool::allocate_slowly(const Request& request, ThreadCache* cache) {
  Allocation made{};
  const auto cause = attempt([&] { made = try_allocate(request, cache); });
  if (cause) refuse(*cause, request.size, request.tag);
  return made;
}

void Pool::refuse(Cause cause, Bytes requested, std::string_view tag) {
  {
    const Lock lock(mutex_);
    note_failure(requested, tag);
  }
  throw out_of_memory_error(*this, cause, requested);
}

Pool::Allocation Pool::try_allocate(const Request& request, ThreadCache* cache) {
  if (request.size > kLargestSize) {
    throw AllocationFailed{limit() == kNoLimit ? OutOfMemoryInfo::no_memory
                                               : OutOfMemoryInfo::limit_reached};
  }
  const Bytes charge = align_up(request.size);
  const Tag tag = learn(request.tag, cache);
  caches_.note_peak(cache);
  if (cache != nullptr) caches_.flush_large(*cache);
  reserve(charge);
  Allocation made{};
  try {
    made = allocate_chunk(request, charge, cache);
  } catch (...) {
    roll_back(charge);
    throw;
  }
  commit(charge);
  counts_.allocate(request.size, charge, tag);
  caches_.note_peak(cache);
  made.chunk->use.store(Use(request.size, tag).word(), kRelaxed);
  note(History::allocate, address_of(*made.chunk), request.size, tag);
  return made;
}

// From the thread's cache, else from the heap; and if that fails, with the memory of
// all caches, then with any lifetime, then without rounding up to a size class.
Pool::Allocation Pool::allocate_chunk(const Request& request,
                                      Bytes charge,
                                      ThreadCache* cache) {
  const bool plain = charge <= SizeClass::kLargest && request.alignment <= kAlignment;
  if (cache != nullptr && plain && request.lifetime != Lifetime::long_lived) {
    ThreadCache::Stack& stack = cache->stacks[SizeClass::of(charge)];
    if (stack.count > 0) {
      Chunk* const chunk = stack.pop();
      cache->kept -= chunk->size;
      return {chunk, Heap::Fresh::none};
    }
  }
  const Bytes size = SizeClass::block(charge);
  Cause cause{};
  Allocation made = allocate_in_heap(request, size, cause);
  if (made.chunk != nullptr) return made;
  caches_.flush();
  Request last = request;
  last.lifetime = Lifetime::unknown;  // a hint, not a reason to fail
  for (const Request& each : {request, last}) {
    made = allocate_in_heap(each, size, cause);
    if (made.chunk != nullptr) return made;
  }
  made = allocate_in_heap(last, charge, cause);
  if (made.chunk != nullptr) return made;
  throw AllocationFailed{cause};
}

Pool::Allocation Pool::allocate_in_heap(const Request& request,
                                        Bytes size,
                                        Cause& cause) {
  try {
    const Bytes alignment = std::max(request.alignment, kAlignment);
    const auto made = heap_.allocate(size, alignment, request.lifetime);
    return {&heap_[made.id], made.fresh};
  } catch (const AllocationFailed& failed) {
    cause = failed.cause;
    return {nullptr, Heap::Fresh::none};
  }
}

void Pool::reserve(Bytes size) {
  if (!accounting_.fits(size)) caches_.release_quotas();
  accounting_.reserve(size);
  heap_.set_max_used(std::max(accounting_.max_used(), accounting_.charged()));
}

void Pool::commit(Bytes size) noexcept {
  accounting_.commit(size);
  note_pages();
}

void Pool::roll_back(Bytes size) noexcept {
  accounting_.roll_back(size);
  note_pages();
}

void Pool::note_pages() noexcept {
  peak_pages_ = std::max(peak_pages_, committed());
}

// Pages that nobody has touched are zero; of those that the block shares with others,
// only its own bytes are written. The memory of many used pages goes back: the system
// gives them new ones when they are written, which costs no more than writing them
// here, and nothing where that never happens. Not without growth, where it is to stay.
void* Pool::allocate_zeroed(const Request& request) {
  Request any = request;
  any.zeroed = false;
  require_valid(request);
  if (request.size <= SizeClass::kLargest) {
    void* const address = allocate(any);
    zero_block(address, request.size);
    return address;
  }
  const Allocation made = allocate_in_huge_pages(any);
  auto* const bytes = static_cast<std::byte*>(address_of(*made.chunk));
  if (!touchable()) {  // new pages of a device need not be zero
    zero_block(bytes, request.size);
    return bytes;
  }
  const auto begin = reinterpret_cast<std::uintptr_t>(bytes);
  const std::uintptr_t end = begin + request.size;
  const std::uintptr_t first = round_up(begin, system_.page_size());
  const std::uintptr_t last = round_down(end, system_.page_size());
  bool fresh = made.fresh == Heap::Fresh::all && first < last;
  if (!fresh && growth_ && request.size >= kManyPages) {
    fresh = system_.reset_pages(bytes + (first - begin), last - first);
  }
  if (fresh) {
    std::memset(bytes, 0, first - begin);
    std::memset(bytes + (last - begin), 0, end - last);
  } else {
    std::memset(bytes, 0, request.size);
  }
  return bytes;
}

// A block that was just taken; where a device fails, it goes back.
void Pool::zero_block(void* address, Bytes size) {
  try {
    zero(address, size);
  } catch (...) {
    deallocate(address, size);
    throw;
  }
}

// A block of many pages that begins with a huge one, if it can be had: at a border, the
// parts of one are taken in small pages, at hundreds of times the faults.
Pool::Allocation Pool::allocate_in_huge_pages(Request request) {
  const Bytes alignment = request.alignment;
  request.alignment = std::max(alignment, system_.huge_page_size());
  if (request.size >= kManyPages && request.alignment > alignment) {
    ThreadCache* const cache = own_cache();
    Allocation made{};
    if (!attempt([&] { made = try_allocate(request, cache); })) return made;
    // then wherever it fits
  }
  request.alignment = alignment;
  return allocate_slowly(request, own_cache());
}

// The block at an address: often the one that this thread allocated last.
[[gnu::always_inline]] inline Chunk& Pool::find_block(const void* address,
                                                      const ThreadCache* cache) const {
  Chunk* const last = cache == nullptr ? nullptr : cache->last;
  if (last != nullptr && address_of(*last) == address) return *last;
  return look_up(address);
}

Chunk& Pool::look_up(const void* address) const {
  Lock lock(mutex_, std::defer_lock);
  if (whole_blocks_) lock.lock();  // its segments come and go
  const ChunkId id = heap_.find(address);
  if (id == 0) throw bad_free("the address is not that of a block of this pool");
  return heap_[id];
}

Bytes Pool::size_of(const void* address) const {
  const ThreadCache* const cache = last_cache.pool == id_ ? last_cache.cache : nullptr;
  const Use use(find_block(address, cache).use.load(kRelaxed));
  if (use.word() == 0) throw bad_free("the block has been freed already");
  return use.requested();
}

// Nobody else can free or resize the block now. Throws bad_free, nothing changed.
[[gnu::always_inline]] inline Use Pool::take_use(Chunk& chunk, Bytes size) {
  const Use use(chunk.use.exchange(0, std::memory_order_acq_rel));
  if (use.word() == 0 || use.requested() != size) throw_bad_free(chunk, use, size);
  return use;
}

void Pool::throw_bad_free(Chunk& chunk, Use use, Bytes size) {
  if (use.word() == 0) throw bad_free("the block has been freed already");
  chunk.use.store(use.word(), std::memory_order_release);
  require_size(use.requested(), size);
}

// Pre: the chunk is nobody's, and was used as `use` says.
[[gnu::always_inline]] inline void Pool::take_back(Chunk& chunk,
                                                   Use use,
                                                   ThreadCache* cache) noexcept {
  const Bytes charge = align_up(use.requested());
  if (charge <= ThreadCache::kMaxLarge && cache != nullptr && cache->lock.enter()) {
    const bool done = charge <= SizeClass::kLargest
                          ? cache->put(chunk, use, charge)
                          : cache->put_large(chunk, use, charge);
    cache->lock.leave();
    if (done) return;
  }
  deallocate_slowly(chunk, use, cache);
}

void Pool::deallocate(void* address, Bytes size) {
  ThreadCache* const cache = own_cache();
  Chunk& chunk = find_block(address, cache);
  take_back(chunk, take_use(chunk, size), cache);
}

bool Pool::release(void* address) noexcept {
  ThreadCache* const cache = own_cache();
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

void Pool::deallocate_slowly(Chunk& chunk, Use use, ThreadCache* cache) noexcept {
  const Bytes charge = align_up(use.requested());
  const Lock lock(mutex_);
  caches_.note_peak(cache);
  if (cache != nullptr) {
    caches_.flush_large(*cache);
    learn_tags(*cache);
    if (charge > SizeClass::kLargest && cache->put_large(chunk, use, charge)) return;
  }
  note(History::free, address_of(chunk), use.requested(), use.tag());
  accounting_.release(charge);
  counts_.deallocate(use, charge);
  heap_.release(chunk);
  if (cache != nullptr && charge <= SizeClass::kLargest) {
    caches_.make_space(*cache, charge);
  }
}

// A block whose size is being changed; nobody else can free or resize it meanwhile.
class Pool::Claim : private NoCopy {
 public:
  Claim(Chunk& chunk, Bytes size) : chunk_(chunk), use_(take_use(chunk, size)) {}
  ~Claim() { chunk_.use.store(use_.word(), std::memory_order_release); }

  Use use() const noexcept { return use_; }
  bool change(bool done, Bytes size) noexcept {
    if (done) use_ = Use(size, use_.tag());
    return done;
  }

 private:
  Chunk& chunk_;
  Use use_;
};

// Nobody reads the counts while a claim lives: it lives inside the cache, or the lock.
bool Pool::resize(void* address, Bytes size, Bytes new_size) {
  require_valid_size(new_size);
  ThreadCache* const cache = own_cache();
  if (cache != nullptr && std::max(size, new_size) <= SizeClass::kLargest) {
    Chunk& chunk = find_block(address, cache);
    if (const Inside inside(*cache); inside) {
      Claim claim(chunk, size);
      if (claim.change(cache->resize(chunk, claim.use(), new_size), new_size)) {
        return true;
      }
    }
  }
  bool done = false;
  try {
    attempt([&] { done = try_resize(address, size, new_size, cache); });
  } catch (const std::bad_alloc&) {
    return false;
  }
  return done;
}

bool Pool::try_resize(void* address, Bytes size, Bytes new_size, ThreadCache* cache) {
  const ChunkId id = heap_.find(address);
  if (id == 0) throw bad_free("the address is not that of a block of this pool");
  Chunk& chunk = heap_[id];
  Claim claim(chunk, size);
  if (new_size > kLargestSize) return false;
  const Bytes before = align_up(size);
  const Bytes now = align_up(new_size);
  caches_.note_peak(cache);
  if (cache != nullptr) caches_.flush_large(*cache);
  if (now > before && !try_grow(chunk, now, now - before)) return false;
  if (now < before) {
    const Bytes smaller = SizeClass::block(now);
    if (smaller < chunk.size) heap_.shrink(chunk, smaller);
    accounting_.release(before - now);
  }
  counts_.resize(new_size - size, now - before, claim.use().tag());
  note(History::free, address, size, claim.use().tag());
  note(History::allocate, address, new_size, claim.use().tag());
  return claim.change(true, new_size);
}

// Reserves first, as an allocation does. Throws AllocationFailed or std::bad_alloc.
bool Pool::try_grow(Chunk& chunk, Bytes charge, Bytes more) {
  reserve(more);
  bool fits = false;
  try {
    fits = extend(chunk, charge);
  } catch (...) {
    roll_back(more);
    throw;
  }
  fits ? commit(more) : roll_back(more);
  return fits;
}

// Post: true, and the chunk has so many bytes, or those of their class. Memory that the
// caches keep makes way: for new pages, as for an allocation's, and where it lies above
// a large block, whose move would cost more.
bool Pool::extend(Chunk& chunk, Bytes charge) {
  if (charge <= chunk.size) return true;
  const Bytes whole = SizeClass::block(charge);
  for (const bool again : {true, false}) {
    try {
      const bool done =
          heap_.extend(chunk, whole) || (whole > charge && heap_.extend(chunk, charge));
      if (done || charge <= SizeClass::kLargest) return done;
    } catch (const AllocationFailed&) {
      if (!again) throw;
    }
    if (again) caches_.flush();
  }
  return false;
}

// Where all numbers are given out, those of tags that hold nothing are taken back.
Tag Pool::number_of(std::string_view tag) {
  const Tag known = tags_.find(tag);
  if (known != TagTable::kUnknown) return known;
  if (tags_.full()) {
    const CachesRevoked revoked(caches_);
    const BlockCounts counts = total_counts();
    caches_.reset_tags();
    tags_.recycle([&](Tag each) { return counts.charged[each] == 0; });
  }
  counts_.charged.resize(std::max(counts_.charged.size(), tags_.count() + 1));
  return tags_.add(tag);
}

// The same, and the cache knows it too.
Tag Pool::learn(std::string_view tag, ThreadCache* cache) {
  const Tag found = number_of(tag);
  if (cache == nullptr) return found;
  learn_tags(*cache);
  if (found < cache->counts.charged.size() &&
      cache->find_tag(tag) == TagTable::kUnknown) {
    cache->tags.emplace(tag, found);
  }
  return found;
}

// Lets a cache count the tags that are known by now.
void Pool::learn_tags(ThreadCache& cache) noexcept {
  if (cache.counts.charged.size() == counts_.charged.size()) return;
  try {
    cache.counts.charged.resize(counts_.charged.size());
  } catch (const std::bad_alloc&) {  // blocks with those tags do not go through it
  }
}

// The limit and one page; no limit stays none. The pages of a device are large, and
// others see them: no more than the limit.
Bytes Pool::max_pages(Bytes limit) const noexcept {
  const Bytes page = system_.page_size();
  if (kind() == SpaceKind::device && limit != kNoLimit) return round_down(limit, page);
  return saturating_add(limit, page);
}

void Pool::set_ceiling(Bytes limit) noexcept {
  const Bytes pages = max_pages(limit);
  heap_.set_ceiling(pages == kNoLimit ? kNoLimit : pages - arena_pages_);
}

Bytes Pool::set_limit(Bytes limit) {
  require_limit(limit);
  Bytes old = 0;
  const auto cause = attempt([&] {
    old = this->limit();
    if (limit < old) {
      caches_.note_peak(nullptr);
      caches_.flush();
      if (accounting_.charged() > limit) {
        throw AllocationFailed{OutOfMemoryInfo::limit_lowered};
      }
      fit_pages(limit);
    }
    const CachesRevoked revoked(caches_);
    accounting_.set_limit(limit);
    set_ceiling(limit);
    caches_.set_bounds(limit);
    note_pages();
  });
  if (cause) throw out_of_memory_error(*this, *cause, limit);
  return old;
}

// Pre: limit is not above the present one. Throws AllocationFailed when blocks hold
// more pages.
void Pool::fit_pages(Bytes limit) {
  const Bytes ceiling = max_pages(limit);
  if (committed() > ceiling) heap_.decommit_free(committed() - ceiling);
  if (committed() > ceiling) throw AllocationFailed{OutOfMemoryInfo::fragmented};
}

void Pool::reserve_holding(const Arena& arena,
                           Bytes requested,
                           Bytes charge,
                           Bytes pages) {
  const auto cause = attempt([&] {
    caches_.note_peak(nullptr);
    reserve(charge);
    try {
      reserve_arena(pages);
    } catch (...) {
      roll_back(charge);
      throw;
    }
  });
  if (cause) refuse(*cause, requested, arena.owner());
}

// Free pages make way for an arena's. Throws AllocationFailed, nothing taken.
void Pool::reserve_arena(Bytes pages) {
  const Bytes ceiling = heap_.ceiling();
  const Bytes wanted = heap_.committed() + pages;
  if (ceiling != kNoLimit && wanted > ceiling) {
    caches_.flush();
    heap_.decommit_free(wanted - ceiling);
    if (heap_.committed() + pages > ceiling) {
      throw AllocationFailed{OutOfMemoryInfo::fragmented};
    }
  }
  if (meter_ != nullptr && pages > 0 && !meter_->reserve(pages)) {
    caches_.flush();
    heap_.decommit_free(kNoLimit);
    if (!meter_->reserve(pages)) throw AllocationFailed{OutOfMemoryInfo::rss_limit};
  }
  arena_pages_ += pages;
  set_ceiling(limit());
}

void Pool::release_arena(Bytes pages) noexcept {
  if (meter_ != nullptr && pages > 0) meter_->release(pages);
  arena_pages_ -= pages;
  set_ceiling(limit());
}

void Pool::record(std::shared_ptr<PoolHistory> history) {
  const Lock lock(mutex_);
  histories_.push_back(std::move(history));
  histories_.back()->begin();
  if (histories_.size() > 1) return;
  const CachesRevoked revoked(caches_);
  caches_.note_peak(nullptr);
  caches_.close();
}

History Pool::history(const PoolHistory& history) const {
  const Lock lock(mutex_);
  const CachesRevoked revoked(caches_);
  return history.history(holdings());
}

void Pool::end(const PoolHistory& history) noexcept {
  const Lock lock(mutex_);
  const auto found =
      std::find_if(histories_.begin(), histories_.end(), [&](const auto& row) {
        return row.get() == &history;
      });
  if (found == histories_.end()) return;
  histories_.erase(found);
  if (!histories_.empty()) return;
  const CachesRevoked revoked(caches_);
  caches_.open();
}

// Nobody pays for it but who records: the caches are open otherwise.
void Pool::note(std::uint8_t action,
                const void* address,
                Bytes size,
                Tag tag) noexcept {
  for (const auto& each : histories_) {
    each->note(History::Action{action}, address, size, tags_.name(tag));
  }
}

void Pool::note_failure(Bytes size, std::string_view tag) noexcept {
  for (const auto& each : histories_) each->note(History::failure, nullptr, size, tag);
}

std::vector<LiveBlock> Pool::holdings() const {
  std::vector<LiveBlock> rows = live_blocks(heap_.layout(tags_.names(), false));
  for (const Arena* arena : arenas_) {
    if (const auto block = arena->holding()) rows.push_back(*block);
  }
  return rows;
}

Bytes Pool::trim(Bytes keep) {
  tell_pending(&PendingFrees::collect);
  const Lock lock(mutex_);
  caches_.flush();
  const Bytes idle = heap_.idle();
  const Bytes given = idle > keep ? heap_.decommit_free(idle - keep) : 0;
  note_pages();
  if (heap_.allocated() == 0) heap_.reset();
  return given;
}

Bytes Pool::decay() {
  const Lock lock(mutex_);
  {
    const CachesRevoked revoked(caches_);
    caches_.flush_large_blocks();
  }
  const Bytes given = heap_.decommit_old();
  note_pages();
  return given;
}

void Pool::retire(const ThreadCache* cache) noexcept {
  const Lock lock(mutex_);
  caches_.retire(cache, counts_);
}

void Pool::release_quotas() noexcept {
  const Lock lock(mutex_, std::try_to_lock);
  if (lock.owns_lock()) caches_.release_quotas();
}

void Pool::freeze() {
  mutex_.lock();
  caches_.revoke();
}

void Pool::thaw(bool child) noexcept {
  if (child) caches_.reset_owners();
  caches_.restore();
  mutex_.unlock();
}

BlockCounts Pool::total_counts() const {
  BlockCounts counts = counts_;
  caches_.add_counts(counts);
  return counts;
}

ResourceStats Pool::stats() const {
  const Lock lock(mutex_);
  const CachesRevoked revoked(caches_);
  caches_.flush_large_blocks();
  const BlockCounts counts = total_counts();
  ResourceStats stats;
  stats.current = accounting_.in_use(caches_.quotas());
  stats.peak = accounting_.peak(caches_.min_quotas());
  stats.requested = static_cast<Bytes>(counts.requested);
  stats.reserved = committed();
  stats.peak_reserved = std::max(peak_pages_, committed());
  stats.addresses = heap_.addresses();
  stats.limit = limit();
  const Bytes below = upstream_ == nullptr ? kNoLimit : upstream_->stats().largest_free;
  if (stats.limit != kNoLimit || below != kNoLimit) {
    const Bytes free = (stats.limit - stats.current) / kAlignment * kAlignment;
    stats.largest_free = heap_.largest_request(free, below);
  }
  stats.largest_free_chunk = heap_.largest_spare();
  stats.free_bytes = heap_.spare();
  stats.idle = heap_.idle();
  stats.metadata = heap_.metadata() + caches_.size() * sizeof(ThreadCache);
  for (const auto& each : histories_) stats.metadata += each->metadata();
  stats.allocations = counts.allocations;
  stats.deallocations = counts.deallocations;
  return stats;
}

bool Pool::holds(const void* address) const noexcept {
  const Lock lock(mutex_);
  return upstream_ != nullptr && heap_.has_segment_at(address);
}

Bytes Pool::reserved() const {
  const Lock lock(mutex_);
  return committed();
}

void Pool::reset_peak() {
  const Lock lock(mutex_);
  const CachesRevoked revoked(caches_);
  caches_.reset_peak();
  peak_pages_ = committed();
}

Owners Pool::owners() const {
  const Lock lock(mutex_);
  const CachesRevoked revoked(caches_);
  return tags_.owners(total_counts().charged);
}

std::vector<HeapExtent> Pool::layout(bool in_pieces) const {
  const Lock lock(mutex_);
  const CachesRevoked revoked(caches_);
  caches_.flush_large_blocks();
  return heap_.layout(tags_.names(), in_pieces);
}

std::vector<LiveBlock> Pool::blocks() const {
  return live_blocks(layout());
}

void Pool::check() const {
  const Lock lock(mutex_);
  const CachesRevoked revoked(caches_);
  heap_.check();
  const BlockCounts counts = total_counts();
  std::int64_t charged = 0;
  for (const std::int64_t bytes : counts.charged) {
    require(bytes >= 0, "a tag holds less than nothing");
    charged += bytes;
  }
  const Bytes in_use = accounting_.in_use(caches_.quotas());
  require(accounting_.charged() <= limit(), "more is charged than the limit");
  require(static_cast<Bytes>(charged) == in_use, "the tags do not add up");
  require(static_cast<Bytes>(counts.requested) <= in_use,
          "more requested than charged");
  require(in_use % kAlignment == 0, "the bytes in use are not whole lines");
  require(committed() <= max_pages(limit()), "more pages than the limit allows");
  for (const auto& each : histories_) each->check(holdings());
}

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
  end_threads_before_fork();  // one that has a cache takes the registry's lock
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
