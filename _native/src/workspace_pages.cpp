#include "memcfg/workspace_pages.hpp"

#include <algorithm>
#include <tuple>
#include <utility>

#include "memcfg/error.hpp"

namespace memcfg {
namespace {

std::uintptr_t as_number(const void* address) {
  return reinterpret_cast<std::uintptr_t>(address);
}

}  // namespace

void WorkspacePages::put(Entries& entries, std::byte* base, Bytes size) {
  entries.emplace(std::piecewise_construct,
                  std::forward_as_tuple(as_number(base)),
                  std::forward_as_tuple(base, size));
}

WorkspacePages::Entry* WorkspacePages::find(const void* address) const noexcept {
  if (page_ != nullptr && page_->page.contains(address)) return page_;
  auto found = entries_.upper_bound(as_number(address));
  if (found == entries_.begin()) return nullptr;
  --found;
  return found->second.page.contains(address) ? &found->second : nullptr;
}

void WorkspacePages::use(Entries& fresh, Offset from) noexcept {
  page_ = &entries_.insert(fresh.extract(fresh.begin())).position->second;
  page_->page.skip_to(std::min(from, page_->page.size()));
  reserved_ += align_up(page_->allocated);
}

bool WorkspacePages::use_spare(Bytes size, Offset from) noexcept {
  if (spare_ == nullptr || spare_->page.size() != size) return false;
  page_ = std::exchange(spare_, nullptr);
  page_->state = State::current;
  page_->page.skip_to(std::min(from, size));
  return true;
}

void WorkspacePages::retire(std::uint64_t generation) noexcept {
  Entry& entry = *std::exchange(page_, nullptr);
  entry.state = State::retired;
  entry.retired_at = generation;
  retired_ += align_up(entry.allocated);
  live_elsewhere_ += entry.page.live_bytes();
  wait(entry);
}

void WorkspacePages::drop_page(std::uint64_t generation, Entries& garbage) noexcept {
  if (page_ == nullptr) return;
  if (page_->page.held() > 0) return retire(generation);
  drop(*std::exchange(page_, nullptr), garbage);
}

void WorkspacePages::drop_spare(Entries& garbage) noexcept {
  if (spare_ != nullptr) drop(*std::exchange(spare_, nullptr), garbage);
}

void WorkspacePages::drop(Entry& entry, Entries& garbage) noexcept {
  reserved_ -= align_up(entry.allocated);
  garbage.insert(entries_.extract(as_number(entry.page.base())));
}

void WorkspacePages::recycle(Entry& entry, Bytes size, Entries& garbage) noexcept {
  if (entry.state != State::retired || entry.page.held() > 0 || entry.busy) return;
  wait_no_more(entry);
  retired_ -= align_up(entry.allocated);
  if (spare_ != nullptr || entry.allocated != size) return drop(entry, garbage);
  entry.state = State::spare;
  entry.page.rewind();
  spare_ = &entry;
}

void WorkspacePages::gone(const Entry& entry, Bytes size) noexcept {
  if (entry.state == State::retired) live_elsewhere_ -= align_up(size);
}

void WorkspacePages::wait(Entry& entry) noexcept {
  entry.waiting = true;
  entry.younger = nullptr;
  entry.older = std::exchange(youngest_, &entry);
  (entry.older == nullptr ? oldest_ : entry.older->younger) = &entry;
}

void WorkspacePages::wait_no_more(Entry& entry) noexcept {
  if (!std::exchange(entry.waiting, false)) return;
  (entry.older == nullptr ? oldest_ : entry.older->younger) = entry.younger;
  (entry.younger == nullptr ? youngest_ : entry.younger->older) = entry.older;
}

WorkspacePages::Entry* WorkspacePages::begin_trim(std::uint64_t before) noexcept {
  while (oldest_ != nullptr && oldest_->retired_at < before) {
    Entry& entry = *oldest_;
    wait_no_more(entry);
    const Bytes end = std::max(entry.page.end_of_live(), kAlignment);
    if (end >= entry.allocated) continue;
    entry.busy = true;
    entry.page.resize(end);  // before somebody else can be where it ended
    return &entry;
  }
  return nullptr;
}

void WorkspacePages::end_trim(Entry& entry, bool done) noexcept {
  entry.busy = false;
  if (!done) return entry.page.resize(entry.allocated);
  const Bytes released = align_up(entry.allocated) - align_up(entry.page.size());
  reserved_ -= released;
  retired_ -= released;
  entry.allocated = entry.page.size();
}

void WorkspacePages::check() const {
  Bytes reserved = 0;
  Bytes retired = 0;
  Bytes live = 0;
  std::size_t waiting = 0;
  for (const auto& [address, entry] : entries_) {
    entry.page.check();
    reserved += align_up(entry.allocated);
    if (entry.waiting) ++waiting;
    const bool current = &entry == page_;
    require((entry.state == State::current) == current, "two pages are current");
    require((entry.state == State::spare) == (&entry == spare_), "two are spare");
    if (entry.state != State::retired) continue;
    retired += align_up(entry.allocated);
    live += entry.page.live_bytes();
    require(entry.page.held() > 0 || entry.busy, "a page is kept for nobody");
  }
  for (const Entry* each = oldest_; each != nullptr; each = each->younger) --waiting;
  require(waiting == 0, "pages to be trim are not those listed");
  require(reserved == reserved_ && retired == retired_, "the pages do not add up");
  require(live == live_elsewhere_, "live bytes are not those counted");
  require(spare_ == nullptr || spare_->page.held() == 0, "the spare page is in use");
}

}  // namespace memcfg
