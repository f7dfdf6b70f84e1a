#include "memcfg/thread_caches.hpp"

#include <algorithm>
#include <iterator>
#include <stdexcept>
#include <utility>

namespace memcfg {
namespace {

constexpr std::size_t kMaxTags = std::size_t{1} << Use::kTagBits;

}  // namespace

void BlockCounts::add(const BlockCounts& other) noexcept {
  requested += other.requested;
  allocations += other.allocations;
  deallocations += other.deallocations;
  for (std::size_t i = 0; i < other.charged.size(); ++i) charged[i] += other.charged[i];
}

Tag TagTable::find(std::string_view name) const noexcept {
  if (name.empty()) return 0;
  const auto row = numbers_.find(name);
  return row == numbers_.end() ? kUnknown : row->second;
}

bool TagTable::full() const noexcept {
  return spare_.empty() && count() == kMaxTags;
}

Tag TagTable::add(std::string_view name) {
  if (full()) {
    throw std::invalid_argument("a pool's memory has at most 65535 tags");
  }
  const bool fresh = spare_.empty();
  const Tag tag = fresh ? static_cast<Tag>(count()) : spare_.back();
  if (fresh) arenas_.push_back(0);
  try {
    if (fresh) names_.push_back(nullptr);
    names_[tag] = &numbers_.emplace(name, tag).first->first;
  } catch (...) {
    arenas_.resize(arenas_.size() - (fresh ? 1 : 0));
    names_.resize(arenas_.size());
    throw;
  }
  if (!fresh) spare_.pop_back();
  return tag;
}

void TagTable::recycle(const std::function<bool(Tag)>& idle) {
  spare_.reserve(numbers_.size());
  for (auto row = numbers_.begin(); row != numbers_.end();) {
    const bool gone = arenas_[row->second] == 0 && idle(row->second);
    if (gone) names_[row->second] = nullptr;
    if (gone) spare_.push_back(row->second);
    row = gone ? numbers_.erase(row) : std::next(row);
  }
}

std::vector<std::string> TagTable::names() const {
  std::vector<std::string> names(count());
  for (const auto& [name, tag] : numbers_) names[tag] = name;
  return names;
}

Owners TagTable::owners(const std::vector<std::int64_t>& charged) const {
  Owners rows;
  if (charged[0] != 0) rows.emplace_back("", charged[0]);
  for (const auto& [name, tag] : numbers_) {
    if (charged[tag] != 0) rows.emplace_back(name, charged[tag]);
  }
  return rows;
}

namespace {

constexpr Bytes kMaxKept = Bytes{256} << 10;  // bytes in a thread's cache
constexpr Bytes kMinKept = Bytes{16} << 10;   // bytes; with less there is no cache
constexpr Bytes kKeptShare = 64;              // of the limit: one part in so many
constexpr std::size_t kFlushed = 4;           // blocks at once
constexpr std::uint32_t kOverflows = 16;      // of a cache, until a stack is flushed
constexpr auto kRelaxed = std::memory_order_relaxed;

}  // namespace

Tag ThreadCache::find_named(std::string_view name) noexcept {
  if (last_tag != nullptr && last_tag->first == name) return last_tag->second;
  const auto row = tags.find(name);
  if (row == tags.end()) return TagTable::kUnknown;
  last_tag = &*row;
  return row->second;
}

void ThreadCaches::add(std::shared_ptr<ThreadCache> cache, std::size_t tags) {
  set_bound(*cache, accounting_.limit());
  cache->counts.charged.resize(tags);
  caches_.push_back(std::move(cache));
}

void ThreadCaches::retire(const ThreadCache* cache, BlockCounts& counts) noexcept {
  const auto row = std::find_if(caches_.begin(), caches_.end(), [=](const auto& each) {
    return each.get() == cache;
  });
  if (row == caches_.end()) return;
  flush(**row);  // its owner is here, or gone
  counts.add((*row)->counts);
  caches_.erase(row);
}

void ThreadCaches::revoke() noexcept {
  OwnerLock::revoke([this](auto act) {
    for (const auto& cache : caches_) act(cache->lock);
  });
}

void ThreadCaches::restore() noexcept {
  for (const auto& cache : caches_) cache->lock.restore();
}

void ThreadCaches::reset_owners() noexcept {
  for (const auto& cache : caches_) cache->lock.reset_owner();
}

void ThreadCaches::release_quotas() noexcept {
  const CachesRevoked revoked(*this);
  for (const auto& cache : caches_) set_quota(*cache, 0);
}

void ThreadCaches::flush() noexcept {
  const CachesRevoked revoked(*this);
  for (const auto& cache : caches_) flush(*cache);
}

void ThreadCaches::flush(ThreadCache& cache) noexcept {
  for (ThreadCache::Stack& stack : cache.stacks) flush(cache, stack, stack.count);
  flush_large(cache);
  set_quota(cache, 0);
}

// Gives the blocks that were put first to the heap.
void ThreadCaches::flush(ThreadCache& cache,
                         ThreadCache::Stack& stack,
                         std::size_t count) noexcept {
  for (std::size_t i = 0; i < count; ++i) {
    cache.kept -= stack.chunks[i]->size;
    heap_.release(*stack.chunks[i]);
  }
  stack.drop(count);
}

void ThreadCaches::release_large(ThreadCache& cache) noexcept {
  Chunk& chunk = *std::exchange(cache.large, nullptr);
  set_quota(cache, cache.quota - std::min(cache.quota, chunk.size));
  heap_.release(chunk);
}

void ThreadCaches::flush_large_blocks() noexcept {
  for (const auto& cache : caches_) flush_large(*cache);
}

void ThreadCaches::set_quota(ThreadCache& cache, Bytes quota) noexcept {
  note_peak(nullptr);
  accounting_.release(cache.quota - quota);
  cache.quota = quota;
  cache.min_quota.store(quota, kRelaxed);
}

// Blocks go of a full stack, or now and then, when the cache has too many bytes, of
// another one. The quota follows the blocks.
void ThreadCaches::make_space(ThreadCache& cache, Bytes charge) noexcept {
  ThreadCache::Stack& own = cache.stacks[SizeClass::of(charge)];
  if (own.count == ThreadCache::kDepth) {
    flush(cache, own, kFlushed);
  } else if (cache.kept + SizeClass::block(charge) > cache.max_kept) {
    if (++cache.overflows % kOverflows != 0) return;
    ThreadCache::Stack& next = cache.stacks[cache.next_to_flush()];
    flush(cache, next, (next.count + 1) / 2);
  }
  if (cache.quota > cache.kept_in_all()) set_quota(cache, cache.kept_in_all());
}

void ThreadCaches::set_bound(ThreadCache& cache, Bytes limit) const noexcept {
  const Bytes share = closed_ ? 0 : limit / kKeptShare;
  cache.max_kept = share < kMinKept ? 0 : std::min(kMaxKept, share);
  cache.max_large = std::min(ThreadCache::kMaxLarge, share);
}

void ThreadCaches::set_bounds(Bytes limit) noexcept {
  for (const auto& cache : caches_) set_bound(*cache, limit);
}

void ThreadCaches::close() noexcept {
  closed_ = true;
  set_bounds(accounting_.limit());
  for (const auto& cache : caches_) flush(*cache);
}

void ThreadCaches::open() noexcept {
  closed_ = false;
  set_bounds(accounting_.limit());
}

void ThreadCaches::reset_tags() noexcept {
  for (const auto& cache : caches_) cache->reset_tags();
}

void ThreadCaches::reset_peak() noexcept {
  for (const auto& cache : caches_) cache->min_quota.store(cache->quota, kRelaxed);
  accounting_.reset_peak(quotas());
}

Bytes ThreadCaches::quotas() const noexcept {
  Bytes sum = 0;
  for (const auto& cache : caches_) sum += cache->quota;
  return sum;
}

void ThreadCaches::add_counts(BlockCounts& counts) const noexcept {
  for (const auto& cache : caches_) counts.add(cache->counts);
}

}  // namespace memcfg
