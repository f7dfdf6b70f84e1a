#include "memcfg/workspace.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <stdexcept>
#include <string>
#include <tuple>
#include <utility>

#include "memcfg/error.hpp"
#include "memcfg/forks.hpp"

namespace memcfg {
namespace {

constexpr double kRingReserve = 1.3;  // of a block over the cycle it was learned from

// Whole bytes of a multiple, or kNoLimit where there are too many.
Bytes times(Bytes size, double factor) noexcept {
  const double product = static_cast<double>(size) * factor;
  constexpr double kMax = 9e18;  // fits Bytes
  return product < kMax ? static_cast<Bytes>(product) : kNoLimit;
}

Bytes product(Bytes size, Bytes count) noexcept {
  return size > kNoLimit / count ? kNoLimit : size * count;
}

Bytes overallocated(const WorkspaceRules& rules, Bytes size) noexcept {
  return saturating_add(size, times(size, rules.overallocation));
}

}  // namespace

void require_valid(const WorkspaceRules& rules) {
  if (rules.maximum == 0 || rules.minimum > rules.maximum ||
      rules.initial > rules.maximum) {
    throw std::invalid_argument("a workspace's sizes do not fit its largest size");
  }
  if (!(rules.overallocation >= 0) || std::isinf(rules.overallocation)) {
    throw std::invalid_argument("an overallocation is a share, 0 or more");
  }
  if (rules.ring_blocks == 0 || (rules.ring_blocks > 1 && !rules.circular)) {
    throw std::invalid_argument("a workspace that is no ring has one block");
  }
  if (rules.circular && rules.reclaims) {
    throw std::invalid_argument(
        "a ring cannot free space before its cycle comes round");
  }
}

Bytes first_size(const WorkspaceRules& rules) noexcept {
  return std::min(overallocated(rules, rules.initial), rules.maximum);
}

WorkspaceSize learned_size(const WorkspaceRules& rules,
                           Bytes max_cycle_bytes) noexcept {
  WorkspaceSize learned;
  if (rules.circular) {
    learned.block = times(max_cycle_bytes, kRingReserve);
    learned.block =
        saturating_add(learned.block, kAlignment - learned.block % kAlignment);
    learned.size = product(learned.block, rules.ring_blocks);
  } else {
    learned.size = overallocated(rules, max_cycle_bytes);
  }
  learned.size = std::min(std::max(learned.size, rules.minimum), rules.maximum);
  learned.block = std::min(learned.block, learned.size);
  return learned;
}

namespace {

constexpr std::uint64_t kPinnedSteps = 2;  // rounds of the ring: ND4J's delay

}  // namespace

WorkspaceCycles::Count WorkspaceCycles::pinned() const noexcept {
  Count all;
  for (const Pins& pins : pins_) {
    all.bytes += pins.count.bytes;
    all.blocks += pins.count.blocks;
  }
  return all;
}

bool WorkspaceCycles::oversized(Bytes size) const noexcept {
  return trimmed_ || (size_.block != 0 && saturating_add(size, now_) > size_.block);
}

void WorkspaceCycles::begin() noexcept {
  ++generation_;
  now_ = peak_ = 0;
  marks_.clear();
  if (!rules_->circular || wrapped_) spilled_ = {};
  wrapped_ = false;
}

std::size_t WorkspaceCycles::next_mark() {
  if (rules_->reclaims && marks_.size() == marks_.capacity()) {
    marks_.reserve(2 * marks_.size() + 16);
  }
  return marks_.size();
}

void WorkspaceCycles::count(Bytes size, Fit fit) noexcept {
  if (rules_->reclaims) marks_.push_back({size, true});
  now_ += size;
  peak_ = std::max(peak_, now_);
  if (fit == Fit::spilled) {
    spilled_.bytes += size;
    ++spilled_.blocks;
  }
  if (fit == Fit::pinned) {
    Pins& pins = pins_[steps_ % pins_.size()];
    pins.step = steps_;
    pins.count.bytes += size;
    ++pins.count.blocks;
    if (rules_->spill == WorkspaceRules::reallocate && !trimmed_) {
      trimmed_ = true;
      trim_step_ = steps_;
    }
  }
}

void WorkspaceCycles::gone(std::size_t mark, std::uint64_t generation) noexcept {
  if (!rules_->reclaims || generation != generation_ || mark >= marks_.size()) return;
  marks_[mark].live = false;
  while (!marks_.empty() && !marks_.back().live) {
    now_ -= marks_.back().size;
    marks_.pop_back();
  }
}

void WorkspaceCycles::cancel() noexcept {
  now_ = peak_ = 0;
  marks_.clear();
}

bool WorkspaceCycles::end(bool learns) noexcept {
  last_ = peak_;
  max_ = std::max(max_, last_);
  now_ = peak_ = 0;
  marks_.clear();
  ++cycles_;
  if (rules_->circular && cycles_ > 1 && (cycles_ - 1) % rules_->ring_blocks == 0) {
    ++steps_;
  }
  const bool changed = learns && relearn();
  drop_pins();
  return changed;
}

bool WorkspaceCycles::due() const noexcept {
  if (rules_->learning == WorkspaceRules::first_loop) return true;
  return rules_->learning_cycles != 0 && cycles_ >= rules_->learning_cycles;
}

bool WorkspaceCycles::relearn() noexcept {
  if (rules_->learning == WorkspaceRules::never) return false;
  if (size_.size == 0) return due() && learn();
  if (rules_->spill != WorkspaceRules::reallocate) return false;
  if (!rules_->circular) {
    return size_.size < max_ && size_.size < rules_->maximum && adopt();
  }
  if (!trimmed_ || trim_step_ + kPinnedSteps >= steps_) return false;
  return adopt();
}

bool WorkspaceCycles::learn() noexcept {
  if (rules_->learning == WorkspaceRules::never) return false;
  return size_.size == 0 && max_ != 0 && adopt();
}

void WorkspaceCycles::unlearn() noexcept {
  size_ = {};
  max_ = max_before_;
}

bool WorkspaceCycles::adopt() noexcept {
  max_before_ = max_;
  size_ = learned_size(*rules_, max_);
  if (rules_->circular) max_ = size_.block;
  trimmed_ = false;
  return true;
}

bool WorkspaceCycles::shrink() noexcept {
  if (last_ == 0 || size_.size == 0 || rules_->initial != 0) return false;
  const WorkspaceSize smaller = learned_size(*rules_, last_);
  if (smaller.size >= size_.size) return false;
  max_ = rules_->circular ? smaller.block : last_;
  size_ = smaller;
  return true;
}

void WorkspaceCycles::drop_pins() noexcept {
  for (Pins& pins : pins_) {
    if (pins.step + kPinnedSteps < steps_) pins.count = {};
  }
}

void WorkspaceCycles::reset() noexcept {
  const std::uint64_t generation = generation_;
  *this = WorkspaceCycles(*rules_);
  size_ = {};
  generation_ = generation + 1;  // what was made so far is of before
}

void WorkspaceCycles::restore() noexcept {
  if (size_.size == 0) size_ = {first_size(*rules_), 0};
}

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

namespace {

const WorkspaceRules& checked(const WorkspaceRules& rules) {
  require_valid(rules);
  return rules;
}

}  // namespace

std::atomic<bool> Workspace::spill_everything_{false};
std::atomic<bool> Workspace::bypass_everything_{false};

Workspace::Workspace(std::shared_ptr<Resource> upstream,
                     std::shared_ptr<Resource> pages,
                     const WorkspaceRules& rules)
    : upstream_(std::move(upstream)),
      source_(std::move(pages)),
      rules_(checked(rules)),
      tag_("workspace " + rules.name),
      cycles_(rules_) {
  if (cycles_.size() > 0) fetch_page();
}

// A page on which somebody is alive stays: whoever holds the address was told nothing.
Workspace::~Workspace() {
  Entries garbage;
  pages_.drop_page(cycles_.generation(), garbage);
  pages_.drop_spare(garbage);
  release_pages(garbage);
}

bool Workspace::open() {
  bool warm = true;
  if (wants_page()) {
    try {
      fetch_page();
    } catch (const out_of_memory&) {
      warm = stay_cold();
    }
  }
  const ForkLock lock(mutex_);
  require_closed();
  cycles_.begin();
  cycle_spills_ = 0;
  open_ = enabled_ = true;
  cold_ = !warm;
  return warm;
}

// Whether a cycle that begins has yet to get its page.
bool Workspace::wants_page() {
  const ForkLock lock(mutex_);
  require_closed();
  cycles_.restore();
  return cycles_.size() > 0 && pages_.page() == nullptr;
}

void Workspace::require_closed() const {
  if (open_) throw std::invalid_argument("the workspace is open already");
}

void Workspace::cancel() noexcept {
  const ForkLock lock(mutex_);
  open_ = false;
  cycles_.cancel();
}

Workspace::End Workspace::close() noexcept {
  Entries garbage;
  End end;
  std::uint64_t generation = 0;
  bool trims = false;
  {
    const ForkLock lock(mutex_);
    if (!open_) return end;
    end.was_disabled = !enabled_;
    open_ = false;
    enabled_ = true;
    generation = cycles_.generation();
    trims = pages_.waits(generation);
    end.escaped = leave_cycle();
    if (cycles_.end(!spill_everything_)) {
      pages_.drop_page(generation, garbage);
      pages_.drop_spare(garbage);
      resume_ = 0;
    } else {
      pad();
    }
  }
  release_pages(garbage);
  if (trims) trim_retired(generation);
  return end;
}

// How many blocks have escaped.
std::uint64_t Workspace::leave_cycle() noexcept {
  std::uint64_t escaped = std::exchange(escaped_now_, 0);
  if (!rules_.circular) {
    resume_ = 0;
    escaped += std::exchange(cycle_spills_, 0);
    if (Entry* const entry = pages_.page()) {
      escaped += entry->page.live();
      if (entry->page.live() > 0 && !rules_.overwrites) {
        pages_.retire(cycles_.generation());
      } else {
        entry->page.rewind();
      }
    }
  }
  escaped_ += escaped;
  return escaped;
}

void Workspace::pad() noexcept {
  const Bytes block = cycles_.block();
  if (block == 0) return;
  const Offset padded = (offset() + block - 1) / block * block;
  const Offset end = std::min(padded, cycles_.size());
  if (Entry* const entry = pages_.page()) {
    entry->page.skip_to(end);
  } else {
    resume_ = end;
  }
}

// A page of the size that is known, unless there is one.
void Workspace::fetch_page() {
  Bytes size = 0;
  {
    const ForkLock lock(mutex_);
    size = cycles_.size();
    if (pages_.page() != nullptr || size == 0) return;
    if (pages_.use_spare(size, resume_)) return;
  }
  const Request request{size, kAlignment, Lifetime::long_lived, tag_};
  auto* const base = static_cast<std::byte*>(source_->allocate(request));
  Entries fresh;
  try {
    WorkspacePages::put(fresh, base, size);
  } catch (...) {
    source_->deallocate(base, size);
    throw;
  }
  {
    const ForkLock lock(mutex_);
    if (pages_.page() == nullptr && cycles_.size() == size) pages_.use(fresh, resume_);
    peak_reserved_ = std::max(peak_reserved_, reserved_now());
  }
  release_pages(fresh);
}

// There is no page for this cycle, unless somebody else has brought one. Pre: the
// refusal is being handled; it goes on where nothing is to be spilled.
bool Workspace::stay_cold() {
  {
    const ForkLock lock(mutex_);
    if (pages_.page() != nullptr) return true;
    cold_ = true;
    out_of_memory_ = std::current_exception();
  }
  if (rules_.spill == WorkspaceRules::fail) throw;
  return false;
}

// A page that is still held when the cycle after its own has ended is held for long:
// what lies behind its last live block goes.
void Workspace::trim_retired(std::uint64_t before) noexcept {
  Entries garbage;
  for (;;) {
    Entry* entry = nullptr;
    {
      const ForkLock lock(mutex_);
      entry = pages_.begin_trim(before);
    }
    if (entry == nullptr) break;
    bool done = false;
    try {
      done = source_->resize(entry->page.base(), entry->allocated, entry->page.size());
    } catch (...) {  // it stays as it is
    }
    const ForkLock lock(mutex_);
    pages_.end_trim(*entry, done);
    pages_.recycle(*entry, cycles_.size(), garbage);
  }
  release_pages(garbage);
}

// Bytes that were given.
Bytes Workspace::release_pages(Entries& garbage) noexcept {
  Bytes released = 0;
  for (auto& [address, entry] : garbage) {
    if (source_->release(entry.page.base())) released += entry.allocated;
  }
  garbage.clear();
  return released;
}

void Workspace::initialize() {
  if (!learn()) return;
  try {
    fetch_page();
  } catch (...) {
    const ForkLock lock(mutex_);
    cycles_.unlearn();
    throw;
  }
}

bool Workspace::learn() {
  const ForkLock lock(mutex_);
  return !spill_everything_ && cycles_.learn();
}

void Workspace::destroy() noexcept {
  Entries garbage;
  {
    const ForkLock lock(mutex_);
    pages_.drop_page(cycles_.generation(), garbage);
    pages_.drop_spare(garbage);
    cycles_.reset();
    resume_ = 0;
    cycle_spills_ = escaped_ = escaped_now_ = 0;
  }
  release_pages(garbage);
  trim_retired(generation());
}

Bytes Workspace::shrink() noexcept {
  Entries garbage;
  const Bytes before = reserved();
  {
    const ForkLock lock(mutex_);
    pages_.drop_spare(garbage);
    if (!open_ && cycles_.shrink()) {
      pages_.drop_page(cycles_.generation(), garbage);
      resume_ = 0;
    }
  }
  release_pages(garbage);
  trim_retired(generation() + 1);
  return before - std::min(before, reserved());
}

Bytes Workspace::trim(Bytes keep) {
  Entries garbage;
  const Bytes before = reserved();
  {
    const ForkLock lock(mutex_);
    if (reserved_now() - current() > keep) pages_.drop_spare(garbage);
  }
  release_pages(garbage);
  if (keep == 0) trim_retired(generation() + 1);
  return before - std::min(before, reserved());
}

void Workspace::set_enabled(bool enabled) noexcept {
  const ForkLock lock(mutex_);
  enabled_ = enabled;
}

void Workspace::rethrow_out_of_memory() const {
  std::exception_ptr out_of_memory_error;
  {
    const ForkLock lock(mutex_);
    out_of_memory_error = out_of_memory_;
  }
  std::rethrow_exception(out_of_memory_error);
}

void* Workspace::allocate(const Request& request) {
  return allocate_of(request, rules_.overwrites ? 0 : generation());
}

void* Workspace::allocate_of(const Request& request, std::uint64_t generation) {
  require_valid(request);
  for (;;) {
    const Attempt made = attempt(request, generation);
    if (made.next == Next::upstream) return take_below(request, made.kind);
    if (made.next == Next::done) {
      if (request.zeroed) zero(made.address, request.size);
      return made.address;
    }
    try {
      fetch_page();
    } catch (const out_of_memory&) {
      stay_cold();
    }
  }
}

Workspace::Attempt Workspace::attempt(const Request& request,
                                      std::uint64_t generation) {
  const ForkLock lock(mutex_);
  if (!open_ || !enabled_ || bypass_everything_) return {Next::upstream};
  if (generation != cycles_.generation()) return {Next::upstream};
  if (request.size > kNoLimit - kAlignment) return {Next::upstream};  // no rounding
  const Bytes size = align_up(request.size);
  if (cycles_.oversized(size)) return {Next::upstream, nullptr, Kind::pinned};
  if (cycles_.size() == 0 || cold_ || spill_everything_) {
    return {Next::upstream, nullptr, Kind::spilled};
  }
  if (pages_.page() == nullptr && !pages_.use_spare(cycles_.size(), resume_)) {
    return {Next::page};
  }
  return enter_page(request, size);
}

// Pre: the lock is held, there is a page.
Workspace::Attempt Workspace::enter_page(const Request& request, Bytes size) {
  using Outcome = WorkspacePage::Outcome;
  WorkspacePage& page = pages_.page()->page;
  WorkspacePage::Record record;
  record.size = request.size;
  record.generation = cycles_.generation();
  record.mark = cycles_.next_mark();
  Outcome outcome = page.take(record, request.alignment, rules_.overwrites);
  if (outcome == Outcome::full && wraps_for(request)) {
    page.wrap();
    cycles_.wrapped();
    outcome = page.take(record, request.alignment, rules_.overwrites);
  }
  if (outcome == Outcome::full) return {Next::upstream, nullptr, Kind::spilled};
  if (outcome == Outcome::blocked) {
    resume_ = page.offset();
    escaped_now_ += in_the_way();
    pages_.retire(cycles_.generation());
    return {Next::page};
  }
  cycles_.count(size, Fit::page);
  ++live_;
  note_block();
  return {Next::done, page.last()};
}

bool Workspace::wraps_for(const Request& request) const noexcept {
  return rules_.circular &&
         pages_.page()->page.could_take(request.size, request.alignment);
}

// The blocks that a ring has come round to, and those behind them: all but this
// cycle's.
std::uint64_t Workspace::in_the_way() const noexcept {
  std::uint64_t count = 0;
  pages_.page()->page.each_live([&](const WorkspacePage::Record& record) {
    if (record.generation != cycles_.generation()) ++count;
  });
  return count;
}

void* Workspace::take_below(const Request& request, Kind kind) {
  if (kind != Kind::outside) require_may_spill(request);
  Request below = request;
  below.tag = tag_;
  void* const address = upstream_->allocate(below);
  try {
    add_spilled(address, request.size, kind);
  } catch (...) {
    upstream_->release(address);
    throw;
  }
  return address;
}

void Workspace::add_spilled(void* address, Bytes size, Kind kind) {
  const ForkLock lock(mutex_);
  const Bytes rounded = align_up(size);
  if (end_spilled(address) > 0) ++deallocations_;  // it went back behind our back
  const std::size_t mark = cycles_.next_mark();
  spilled_.emplace(address, Spilled{size, cycles_.generation(), kind, mark});
  if (kind != Kind::outside) {
    cycles_.count(rounded, kind == Kind::pinned ? Fit::pinned : Fit::spilled);
    ++cycle_spills_;
    ++live_;
  }
  spilled_bytes_ += rounded;
  note_block();
}

void Workspace::note_block() noexcept {
  ++allocations_;
  peak_ = std::max(peak_, current());
  peak_reserved_ = std::max(peak_reserved_, reserved_now());
}

// A workspace that is still learning has nothing that could be full.
void Workspace::require_may_spill(const Request& request) const {
  if (rules_.spill != WorkspaceRules::fail) return;
  const ForkLock lock(mutex_);
  if (cycles_.size() == 0) return;
  if (cold_) std::rethrow_exception(out_of_memory_);
  OutOfMemoryInfo report;
  report.cause = OutOfMemoryInfo::workspace_full;
  report.requested = request.size;
  report.rounded = align_up(request.size);
  report.in_use = offset();
  report.reserved = report.limit = cycles_.size();
  report.largest_free = report.limit - std::min(report.limit, report.in_use);
  report.device = tag_;
  throw out_of_memory(std::move(report));
}

bool Workspace::release_of(void* address, std::uint64_t generation) noexcept {
  Entries garbage;
  Bytes below = 0;  // of a block of upstream
  {
    const ForkLock lock(mutex_);
    if (Entry* const entry = pages_.find(address)) {
      if (!end_on(*entry, address, generation)) return false;
      --live_;
      pages_.recycle(*entry, cycles_.size(), garbage);
    } else {
      below = end_spilled(address);
      if (below == 0) return false;
    }
    ++deallocations_;
  }
  release_pages(garbage);
  return below == 0 || upstream_->release(address);
}

// Pre: the lock is held. False: nobody is alive there.
bool Workspace::end_on(Entry& entry, void* address, std::uint64_t generation) noexcept {
  WorkspacePage& page = entry.page;
  const WorkspacePage::Record* const found = page.find(address);
  if (found == nullptr || (generation != 0 && found->generation != generation)) {
    return generation != 0 && page.end_overwritten();
  }
  const WorkspacePage::Record record = *found;
  page.end(record);
  pages_.gone(entry, record.size);
  cycles_.gone(record.mark, record.generation);
  if (rules_.reclaims && &entry == pages_.page()) page.recede();
  return true;
}

// The size of the block of upstream there; 0: there is none. Pre: the lock is held.
Bytes Workspace::end_spilled(void* address) noexcept {
  const auto found = spilled_.find(address);
  if (found == spilled_.end()) return 0;
  const Spilled block = found->second;
  spilled_.erase(found);
  spilled_bytes_ -= align_up(block.size);
  if (block.kind == Kind::outside) return block.size;
  --live_;
  const bool now = block.generation == cycles_.generation();
  if (now && cycle_spills_ > 0) --cycle_spills_;
  cycles_.gone(block.mark, block.generation);
  return block.size;
}

void Workspace::deallocate(void* address, Bytes size) {
  require_size(size_of(address), size);
  if (!release(address)) throw bad_free("the block there has just been freed");
}

Bytes Workspace::size_of(const void* address) const {
  const auto found = find_block(address, 0);
  if (!found) throw bad_free("no block of the workspace starts there");
  return found->size;
}

bool Workspace::holds(const void* address) const noexcept {
  const ForkLock lock(mutex_);
  const Entry* const entry = pages_.find(address);
  return entry != nullptr ? entry->page.base() == address
                          : spilled_.count(const_cast<void*>(address)) > 0;
}

std::optional<Workspace::BlockInfo> Workspace::find_block(
    const void* address, std::uint64_t generation) const noexcept {
  const ForkLock lock(mutex_);
  if (const Entry* const entry = pages_.find(address)) {
    const WorkspacePage::Record* const found = entry->page.find(address);
    if (found != nullptr && (generation == 0 || found->generation == generation)) {
      const bool retired = entry->state == WorkspacePages::State::retired;
      const Kind kind = retired ? Kind::retired : Kind::page;
      return BlockInfo{kind, found->generation, found->size};
    }
    if (generation != 0) return BlockInfo{Kind::overwritten, generation, 0};
    return std::nullopt;
  }
  const auto found = spilled_.find(const_cast<void*>(address));
  if (found == spilled_.end()) return std::nullopt;
  const Spilled& block = found->second;
  return BlockInfo{block.kind, block.generation, block.size};
}

std::vector<LiveBlock> Workspace::blocks() const {
  std::vector<LiveBlock> blocks;
  const auto add = [&](std::uintptr_t address, Bytes size) {
    LiveBlock block;
    block.address = address;
    block.requested = size;
    block.size = align_up(size);
    block.tag = tag_;
    blocks.push_back(std::move(block));
  };
  {
    const ForkLock lock(mutex_);
    for (const auto& [address, entry] : pages_.all()) {
      const std::uintptr_t base = address;
      entry.page.each_live([&](const WorkspacePage::Record& record) {
        add(base + record.offset, record.size);
      });
    }
    for (const auto& [address, block] : spilled_) {
      add(reinterpret_cast<std::uintptr_t>(address), block.size);
    }
  }
  sort_by_address(blocks);
  return blocks;
}

Offset Workspace::offset() const noexcept {
  const Entry* const entry = pages_.page();
  return entry == nullptr ? resume_ : entry->page.offset();
}

Bytes Workspace::current() const noexcept {
  const Entry* const entry = pages_.page();
  const Bytes here = entry == nullptr ? 0 : entry->page.live_bytes();
  return here + pages_.live_elsewhere() + spilled_bytes_;
}

Bytes Workspace::reserved_now() const noexcept {
  return pages_.reserved() + spilled_bytes_;
}

Bytes Workspace::reserved() const {
  const ForkLock lock(mutex_);
  return reserved_now();
}

ResourceStats Workspace::stats() const {
  ResourceStats stats;
  stats.largest_free = upstream_->stats().largest_free;
  const ForkLock lock(mutex_);
  for (const auto& [address, entry] : pages_.all()) {
    stats.requested += entry.page.requested();
  }
  for (const auto& [address, block] : spilled_) stats.requested += block.size;
  stats.current = current();
  stats.peak = peak_;
  stats.reserved = stats.addresses = reserved_now();
  stats.peak_reserved = peak_reserved_;
  stats.idle = stats.reserved - stats.current;
  stats.allocations = allocations_;
  stats.deallocations = deallocations_;
  return stats;
}

bool Workspace::enabled() const noexcept {
  const ForkLock lock(mutex_);
  return enabled_;
}

std::uint64_t Workspace::generation() const noexcept {
  const ForkLock lock(mutex_);
  return cycles_.generation();
}

Workspace::Numbers Workspace::numbers() const noexcept {
  const ForkLock lock(mutex_);
  Numbers numbers{};
  numbers.size = cycles_.size();
  numbers.offset = offset();
  numbers.cycle = cycles_.now();
  numbers.last_cycle = cycles_.last();
  numbers.max_cycle = cycles_.maximum();
  numbers.block = cycles_.block();
  numbers.spilled = cycles_.spilled();
  numbers.pinned = cycles_.pinned();
  numbers.cycles = cycles_.cycles();
  numbers.steps = cycles_.steps();
  numbers.generation = cycles_.generation();
  numbers.escaped = escaped_ + escaped_now_;
  numbers.open = open_;
  numbers.enabled = enabled_;
  numbers.live = live_;
  numbers.retired = pages_.retired();
  return numbers;
}

void Workspace::reset_peak() {
  const ForkLock lock(mutex_);
  peak_ = current();
  peak_reserved_ = reserved_now();
}

Owners Workspace::owners() const {
  const ForkLock lock(mutex_);
  if (current() == 0) return {};
  return {{tag_, current()}};
}

void Workspace::check() const {
  const ForkLock lock(mutex_);
  pages_.check();
  Bytes bytes = 0;
  std::uint64_t live = 0;
  std::uint64_t now = 0;
  for (const auto& [address, block] : spilled_) {
    bytes += align_up(block.size);
    if (block.kind == Kind::outside) continue;
    ++live;
    if (block.generation == cycles_.generation()) ++now;
  }
  require(bytes == spilled_bytes_, "blocks of upstream do not add up");
  require(!open_ || now == cycle_spills_, "spilled blocks are not those counted");
  for (const auto& [address, entry] : pages_.all()) live += entry.page.held();
  require(live == live_, "live blocks are not those counted");
  require(current() <= peak_ && peak_ <= peak_reserved_, "a peak is too low");
  require(current() <= reserved_now(), "more in use than reserved");
  require(offset() <= std::max(cycles_.size(), resume_), "the offset is too high");
}

}  // namespace memcfg
