#include "memcfg/pool.hpp"

// The tags of a pool, what it says of itself, and the proof of its books.

#include <algorithm>
#include <iterator>
#include <stdexcept>

namespace memcfg {
namespace {

constexpr std::size_t kMostTags = std::size_t{1} << Use::kTagBits;
constexpr auto kRelaxed = std::memory_order_relaxed;

// Post: the next push_back does not throw.
template <typename T>
void make_room_for_one(std::vector<T>& row) {
  if (row.size() == row.capacity()) row.reserve(2 * row.size() + 1);
}

}  // namespace

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
  const Tag fresh = spare_number();
  tags_.emplace(tag, fresh);
  spare_tags_.pop_back();
  return fresh;
}

// The last of the spare numbers. When all are given out, those of tags that hold
// nothing are taken back.
Tag Pool::spare_number() {
  if (spare_tags_.empty() && charged_.size() < kMostTags) {
    make_room_for_one(spare_tags_);
    make_room_for_one(charged_);
    make_room_for_one(arenas_);
    spare_tags_.push_back(static_cast<Tag>(charged_.size()));
    charged_.push_back(0);
    arenas_.push_back(0);
  }
  if (spare_tags_.empty()) take_idle_tags();
  if (spare_tags_.empty()) {
    throw std::invalid_argument("a pool's memory has at most 65535 tags");
  }
  return spare_tags_.back();
}

void Pool::take_idle_tags() {
  const Quiet quiet(*this);
  const Sums sum = sums();
  spare_tags_.reserve(tags_.size());
  for (const auto& cache : caches_) cache->forget_tags();
  for (auto row = tags_.begin(); row != tags_.end();) {
    const bool idle = sum.charged[row->second] == 0 && arenas_[row->second] == 0;
    if (idle) spare_tags_.push_back(row->second);
    row = idle ? tags_.erase(row) : std::next(row);
  }
}

Pool::Sums Pool::sums() const {
  Sums sum{0, 0, requested_, allocations_, deallocations_, charged_};
  for (const auto& cache : caches_) {
    sum.quotas += cache->quota;
    sum.kept += cache->kept_in_all();
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
  flush_large_blocks();
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
  const Bytes below = upstream_ == nullptr ? kNoLimit : upstream_->stats().largest_free;
  if (stats.limit != kNoLimit || below != kNoLimit) {
    const Bytes free = (stats.limit - stats.current) / kAlignment * kAlignment;
    stats.largest_free = heap_.largest_request(free, below);
  }
  stats.largest_hole = heap_.largest_spare();
  stats.holes = heap_.spare();
  stats.idle = heap_.idle();
  stats.metadata = heap_.metadata() + caches_.size() * sizeof(Cache);
  stats.allocations = sum.allocations;
  stats.deallocations = sum.deallocations;
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

std::vector<Stretch> Pool::layout() const {
  const Lock lock(mutex_);
  const Quiet quiet(*this);
  flush_large_blocks();
  return heap_.layout(tag_names());
}

std::vector<Stretch> Pool::pieces() const {
  const Lock lock(mutex_);
  const Quiet quiet(*this);
  flush_large_blocks();
  return heap_.pieces(tag_names());
}

std::vector<std::string> Pool::tag_names() const {
  std::vector<std::string> names(charged_.size());
  for (const auto& [name, tag] : tags_) names[tag] = name;
  return names;
}

std::vector<LiveBlock> Pool::blocks() const {
  std::vector<LiveBlock> rows;
  for (const Stretch& each : layout()) {
    if (each.state != Stretch::block) continue;
    rows.push_back({each.address, each.requested, align_up(each.requested), each.tag});
  }
  return rows;
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

}  // namespace memcfg
