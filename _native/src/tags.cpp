#include "memcfg/tags.hpp"

#include <iterator>
#include <stdexcept>

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
  if (fresh) arenas_.push_back(0);
  const Tag tag = fresh ? static_cast<Tag>(count() - 1) : spare_.back();
  try {
    numbers_.emplace(name, tag);
  } catch (...) {
    if (fresh) arenas_.pop_back();
    throw;
  }
  if (!fresh) spare_.pop_back();
  return tag;
}

void TagTable::recycle(const std::function<bool(Tag)>& idle) {
  spare_.reserve(numbers_.size());
  for (auto row = numbers_.begin(); row != numbers_.end();) {
    const bool gone = arenas_[row->second] == 0 && idle(row->second);
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

}  // namespace memcfg
