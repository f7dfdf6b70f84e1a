#include "memcfg/workspace_pages.hpp"

#include <algorithm>
#include <string>
#include <tuple>
#include <utility>

#include "memcfg/error.hpp"

namespace memcfg {
namespace {

using Record = WorkspacePage::Record;

// The one that begins there, among records by offset from the one numbered `first` on.
Record* at(std::vector<Record>& records, std::size_t first, Offset offset) {
  const auto from = records.begin() + static_cast<std::ptrdiff_t>(first);
  const auto found = std::lower_bound(
      from, records.end(), offset, [](const Record& record, Offset wanted) {
        return record.offset < wanted;
      });
  return found != records.end() && found->offset == offset ? &*found : nullptr;
}

// For so many more records. Throws std::bad_alloc.
void reserve_more(std::vector<Record>& records, std::size_t more) {
  if (records.capacity() - records.size() >= more) return;
  records.reserve(2 * records.size() + more + 15);
}

}  // namespace

WorkspacePage::Outcome WorkspacePage::take(Record record, Bytes alignment, bool over) {
  const Offset start = start_at(offset_, alignment);
  if (!fits(start, record.size)) return Outcome::full;
  const Offset end = start + align_up(record.size);
  if (!is_clear(start, end, over ? record.generation : 0)) return Outcome::blocked;
  reserve_more(now_, 1 + gaps(start, end));
  pass(start, end);
  record.offset = start;
  now_.push_back(record);
  offset_ = end_of(record);
  ++live_;
  live_bytes_ += align_up(record.size);
  requested_ += record.size;
  return Outcome::allocated;
}

bool WorkspacePage::could_take(Bytes size, Bytes alignment) const noexcept {
  return fits(start_at(0, alignment), size);
}

Offset WorkspacePage::start_at(Offset offset, Bytes alignment) const noexcept {
  const auto base = reinterpret_cast<std::uintptr_t>(base_);
  return round_up(base + offset, std::max(alignment, kAlignment)) - base;
}

bool WorkspacePage::fits(Offset start, Bytes size) const noexcept {
  return start <= size_ && size <= size_ - start;
}

// Where the next one can begin: the page's last line may be short.
Offset WorkspacePage::end_of(const Record& record) const noexcept {
  return std::min(record.offset + align_up(record.size), size_);
}

// Nobody of the lap before is alive in [from, to) but those of generations before
// `over`.
bool WorkspacePage::is_clear(Offset from,
                             Offset to,
                             std::uint64_t over) const noexcept {
  for (std::size_t i = next_; i < before_.size() && before_[i].offset < to; ++i) {
    const Record& record = before_[i];
    if (record.live && end_of(record) > from && record.generation >= over) return false;
  }
  return true;
}

// Live records of the lap before that end at or before `from`: this lap left them out.
std::size_t WorkspacePage::gaps(Offset from, Offset to) const noexcept {
  std::size_t count = 0;
  for (std::size_t i = next_; i < before_.size() && before_[i].offset < to; ++i) {
    if (before_[i].live && end_of(before_[i]) <= from) ++count;
  }
  return count;
}

// Passes the records of the lap before that begin before `to`. What this lap has left
// out is one of its records from now on; others that are alive are overwritten.
void WorkspacePage::pass(Offset from, Offset to) noexcept {
  for (; next_ < before_.size() && before_[next_].offset < to; ++next_) {
    const Record& record = before_[next_];
    if (!record.live) continue;
    if (end_of(record) <= from) {
      now_.push_back(record);
    } else {
      gone(record);
      ++overwritten_;
    }
  }
}

void WorkspacePage::gone(const Record& record) noexcept {
  --live_;
  live_bytes_ -= align_up(record.size);
  requested_ -= record.size;
}

Record* WorkspacePage::search(const void* address) noexcept {
  const auto offset =
      static_cast<Offset>(static_cast<const std::byte*>(address) - base_);
  if (!now_.empty() && now_.back().offset == offset) return &now_.back();
  Record* const found = at(now_, 0, offset);
  return found != nullptr ? found : at(before_, next_, offset);
}

const Record* WorkspacePage::find(const void* address) const noexcept {
  const Record* const found = const_cast<WorkspacePage*>(this)->search(address);
  return found != nullptr && found->live ? found : nullptr;
}

void WorkspacePage::end(const Record& record) noexcept {
  gone(record);
  search(base_ + record.offset)->live = false;
}

bool WorkspacePage::end_overwritten() noexcept {
  if (overwritten_ == 0) return false;
  --overwritten_;
  return true;
}

void WorkspacePage::recede() noexcept {
  while (!now_.empty() && !now_.back().live) {
    now_.pop_back();
    offset_ = now_.empty() ? 0 : end_of(now_.back());
  }
}

void WorkspacePage::rewind() noexcept {
  overwritten_ += live_;
  live_ = live_bytes_ = requested_ = 0;
  offset_ = 0;
  next_ = 0;
  now_.clear();
  before_.clear();
}

void WorkspacePage::wrap() {
  now_.insert(
      now_.end(), before_.begin() + static_cast<std::ptrdiff_t>(next_), before_.end());
  before_.swap(now_);
  now_.clear();
  next_ = 0;
  offset_ = 0;
}

Offset WorkspacePage::end_of_live() const noexcept {
  if (overwritten_ > 0) return size_;
  Offset end = 0;
  each_live([&](const Record& record) { end = std::max(end, end_of(record)); });
  return end;
}

void WorkspacePage::resize(Bytes size) noexcept {
  const auto behind = [size](const Record& record) {
    return record.offset + record.size > size;
  };
  while (!now_.empty() && behind(now_.back())) now_.pop_back();
  while (before_.size() > next_ && behind(before_.back())) before_.pop_back();
  offset_ = std::min(offset_, size);
  size_ = size;
}

void WorkspacePage::check() const {
  std::size_t live = 0;
  Offset end = 0;
  for (const Record& record : now_) {
    require(record.offset >= end, "blocks of a lap overlap");
    end = end_of(record);
    if (record.live) ++live;
  }
  require(end <= offset_ && offset_ <= size_, "blocks lie behind the offset");
  for (std::size_t i = next_; i < before_.size(); ++i) {
    require(before_[i].offset >= end, "a block overlaps one of the lap before");
    end = end_of(before_[i]);
    if (before_[i].live) ++live;
  }
  require(end <= size_, "a block leaves the page");
  require(live == live_, "live blocks are not those counted");
}

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
