#include "memcfg/ledger.hpp"

#include <algorithm>
#include <stdexcept>

#include "memcfg/error.hpp"

namespace memcfg {
namespace {

constexpr Bytes kNode = 4 * sizeof(void*);  // a map node, beside its value

std::int64_t signed_of(Bytes size) noexcept {
  return static_cast<std::int64_t>(size);
}

[[noreturn]] void throw_bad_address() {
  throw bad_free("the address is no block of this resource (any more)");
}

}  // namespace

void Tally::add(std::int64_t count) noexcept {
  current += count;
  total += count;
  peak = std::max(peak, current);
}

void Tally::absorb(const Tally& inner) noexcept {
  peak = std::max(peak, current + inner.peak);
  current += inner.current;
  total += inner.total;
}

void Counters::add(Bytes size) noexcept {
  bytes.add(signed_of(size));
  blocks.add(1);
}

void Counters::remove(Bytes size) noexcept {
  bytes.remove(signed_of(size));
  blocks.remove(1);
}

void Counters::resize(Bytes before, Bytes now) noexcept {
  if (now > before) {
    bytes.add(signed_of(now - before));
  } else {
    bytes.remove(signed_of(before - now));
  }
}

void Counters::absorb(const Counters& inner) noexcept {
  bytes.absorb(inner.bytes);
  blocks.absorb(inner.blocks);
}

void Ledger::add(
    void* address, const Request& request, Bytes reserved, Note note, Bytes* dropped) {
  const Bytes rounded = align_up(request.size);
  const ForkLock lock(mutex_);
  if (const auto stale = entries_.find(address); stale != entries_.end()) {
    if (dropped != nullptr) *dropped = stale->second.size;
    erase(stale);
  }
  const Rows::iterator row = row_of(request.tag);
  Entries::iterator entry = entries_.end();
  try {
    entry = entries_.emplace(address, Entry{request.size, reserved, row, false, note})
                .first;
    if (watcher_) watcher_->added(address, request, entry->second.note);
  } catch (...) {
    if (entry != entries_.end()) entries_.erase(entry);
    drop_if_idle(row);
    throw;
  }
  row->second.add(rounded);
  all_.add(rounded);
  if (!regions_.empty()) regions_.back().add(rounded);
  requested_ += request.size;
  reserved_ += reserved;
  peak_reserved_ = std::max(peak_reserved_, reserved_);
}

Bytes Ledger::remove(void* address, Bytes size) {
  const ForkLock lock(mutex_);
  const Entries::iterator found = find(address, size);
  const Bytes reserved = found->second.reserved;
  erase(found);
  return reserved;
}

Ledger::Entries::iterator Ledger::find(void* address, Bytes size) {
  const Entries::iterator found = entries_.find(address);
  if (found == entries_.end()) throw_bad_address();
  if (found->second.resizing) throw bad_free("the block's size is being changed");
  require_size(found->second.size, size);
  return found;
}

bool Ledger::has(const void* address) const noexcept {
  const ForkLock lock(mutex_);
  return entries_.count(const_cast<void*>(address)) > 0;
}

Bytes Ledger::size_of(const void* address) const {
  const ForkLock lock(mutex_);
  const auto found = entries_.find(const_cast<void*>(address));
  if (found == entries_.end()) throw_bad_address();
  return found->second.size;
}

void Ledger::begin_resize(void* address, Bytes size) {
  const ForkLock lock(mutex_);
  find(address, size)->second.resizing = true;
}

// The block may have gone behind the ledger meanwhile, and its address be out again.
void Ledger::finish_resize(void* address, Bytes size) {
  const ForkLock lock(mutex_);
  const auto found = entries_.find(address);
  if (found == entries_.end() || !found->second.resizing) return;
  Entry& entry = found->second;
  const Bytes before = align_up(entry.size);
  const Bytes now = align_up(size);
  entry.row->second.resize(before, now);
  all_.resize(before, now);
  if (!regions_.empty()) regions_.back().resize(before, now);
  requested_ += size - entry.size;
  reserved_ += now - before;
  peak_reserved_ = std::max(peak_reserved_, reserved_);
  entry.reserved += now - before;
  entry.resizing = false;
  if (watcher_ && size != entry.size) {
    watcher_->resized(address, entry.size, size, entry.note);
  }
  entry.size = size;
}

std::vector<LiveBlock> Ledger::blocks(const std::function<double()>& now) const {
  std::vector<LiveBlock> rows;
  {
    const ForkLock lock(mutex_);
    const double moment = now ? now() : 0;
    rows.reserve(entries_.size());
    for (const auto& [address, entry] : entries_) {
      LiveBlock row;
      row.address = reinterpret_cast<std::uintptr_t>(address);
      row.requested = entry.size;
      row.size = align_up(entry.size);
      row.tag = entry.row->first;
      const Note& note = entry.note;
      if (note.stack) row.stack = static_cast<std::int64_t>(note.stack->second.number);
      if (now) row.seconds = moment - note.seconds;
      row.thread = note.thread;
      rows.push_back(std::move(row));
    }
  }
  sort_by_address(rows);
  return rows;
}

void Ledger::erase(Entries::iterator found) noexcept {
  const Entry entry = found->second;
  const Bytes rounded = align_up(entry.size);
  if (watcher_) watcher_->removed(found->first, entry.size, entry.note);
  entries_.erase(found);
  entry.row->second.remove(rounded);
  all_.remove(rounded);
  if (!regions_.empty()) regions_.back().remove(rounded);
  requested_ -= entry.size;
  reserved_ -= entry.reserved;
  drop_if_idle(entry.row);
}

Ledger::Rows::iterator Ledger::row_of(std::string_view tag) {
  const auto found = rows_.find(tag);
  return found != rows_.end() ? found : rows_.try_emplace(std::string(tag)).first;
}

void Ledger::drop_if_idle(Rows::iterator row) noexcept {
  const Counters& counters = row->second;
  const bool remembered = tags_kept_ == Tags::ever && counters.blocks.total > 0;
  if (counters.blocks.current == 0 && !remembered) rows_.erase(row);
}

ResourceStats Ledger::stats() const {
  const ForkLock lock(mutex_);
  ResourceStats stats;
  stats.current = static_cast<Bytes>(all_.bytes.current);
  stats.peak = static_cast<Bytes>(all_.bytes.peak);
  stats.requested = requested_;
  stats.reserved = reserved_;
  stats.peak_reserved = peak_reserved_;
  stats.addresses = reserved_;
  stats.metadata = metadata();
  stats.allocations = static_cast<std::uint64_t>(all_.blocks.total);
  stats.deallocations = stats.allocations - entries_.size();
  return stats;
}

Bytes Ledger::metadata() const noexcept {
  return entries_.size() * (sizeof(*entries_.begin()) + kNode) +
         entries_.bucket_count() * sizeof(void*) +
         rows_.size() * (sizeof(*rows_.begin()) + kNode);
}

void Ledger::reset_peak() {
  const ForkLock lock(mutex_);
  all_.bytes.peak = all_.bytes.current;
  all_.blocks.peak = all_.blocks.current;
  peak_reserved_ = reserved_;
}

Owners Ledger::owners() const {
  const ForkLock lock(mutex_);
  Owners owners;
  for (const auto& [tag, counters] : rows_) {
    const std::int64_t bytes = counters.bytes.current;
    if (bytes > 0) owners.emplace_back(tag, static_cast<Bytes>(bytes));
  }
  return owners;
}

void Ledger::push() {
  const ForkLock lock(mutex_);
  regions_.emplace_back();
}

Counters Ledger::pop() {
  const ForkLock lock(mutex_);
  if (regions_.empty()) throw std::invalid_argument("no region is open");
  const Counters inner = regions_.back();
  regions_.pop_back();
  if (!regions_.empty()) regions_.back().absorb(inner);
  return inner;
}

std::vector<std::pair<std::string, Counters>> Ledger::by_tag() const {
  const ForkLock lock(mutex_);
  return {rows_.begin(), rows_.end()};
}

void Ledger::check() const {
  const ForkLock lock(mutex_);
  Counters blocks;
  Bytes requested = 0;
  Bytes reserved = 0;
  for (const auto& row : entries_) {
    const Entry& entry = row.second;
    blocks.add(align_up(entry.size));
    requested += entry.size;
    reserved += entry.reserved;
    require(entry.size <= entry.reserved, "a block has less memory than was asked for");
  }
  Counters tags;
  for (const auto& row : rows_) tags.absorb(row.second);
  require(blocks.bytes.current == all_.bytes.current, "the blocks do not add up");
  require(blocks.blocks.current == all_.blocks.current, "a block is not counted");
  require(tags.bytes.current == all_.bytes.current, "the tags do not add up");
  require(tags.blocks.current == all_.blocks.current, "a tag misses a block");
  require(requested == requested_, "the requests do not add up");
  require(reserved == reserved_, "the memory taken does not add up");
  require(all_.bytes.current <= all_.bytes.peak, "the peak is below the bytes in use");
  require(reserved_ <= peak_reserved_, "the peak is below the memory taken");
}

}  // namespace memcfg
