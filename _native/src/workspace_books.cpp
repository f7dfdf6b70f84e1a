// What a workspace tells of itself.
#include <algorithm>

#include "memcfg/error.hpp"
#include "memcfg/fork_lock.hpp"
#include "memcfg/workspace.hpp"

namespace memcfg {

void Workspace::deallocate(void* address, Bytes size) {
  require_size(size_of(address), size);
  if (!release(address)) throw bad_free("the block there has just been freed");
}

Bytes Workspace::size_of(const void* address) const {
  const auto place = place_of(address, 0);
  if (!place) throw bad_free("no block of the workspace starts there");
  return place->size;
}

bool Workspace::holds(const void* address) const noexcept {
  const ForkLock lock(mutex_);
  const Ground* const ground = pages_.find(address);
  return ground != nullptr ? ground->page.base() == address
                           : spilled_.count(const_cast<void*>(address)) > 0;
}

std::optional<Workspace::Placement> Workspace::place_of(
    const void* address, std::uint64_t generation) const noexcept {
  const ForkLock lock(mutex_);
  if (const Ground* const ground = pages_.find(address)) {
    const WorkspacePage::Record* const found = ground->page.find(address);
    if (found != nullptr && (generation == 0 || found->generation == generation)) {
      const bool retired = ground->state == WorkspacePages::State::retired;
      const Kind kind = retired ? Kind::retired : Kind::page;
      return Placement{kind, found->generation, found->size};
    }
    if (generation != 0) return Placement{Kind::overwritten, generation, 0};
    return std::nullopt;
  }
  const auto found = spilled_.find(const_cast<void*>(address));
  if (found == spilled_.end()) return std::nullopt;
  const Spilled& block = found->second;
  return Placement{block.kind, block.generation, block.size};
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
    for (const auto& [address, ground] : pages_.all()) {
      const std::uintptr_t base = address;
      ground.page.each_live([&](const WorkspacePage::Record& record) {
        add(base + record.offset, record.size);
      });
    }
    for (const auto& [address, block] : spilled_) {
      add(reinterpret_cast<std::uintptr_t>(address), block.size);
    }
  }
  std::sort(blocks.begin(), blocks.end(), [](const auto& one, const auto& other) {
    return one.address < other.address;
  });
  return blocks;
}

Offset Workspace::offset() const noexcept {
  const Ground* const ground = pages_.page();
  return ground == nullptr ? resume_ : ground->page.offset();
}

Bytes Workspace::current() const noexcept {
  const Ground* const ground = pages_.page();
  const Bytes here = ground == nullptr ? 0 : ground->page.live_bytes();
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
  for (const auto& [address, ground] : pages_.all()) {
    stats.requested += ground.page.requested();
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
  numbers.most_cycle = cycles_.most();
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
  for (const auto& [address, ground] : pages_.all()) live += ground.page.held();
  require(live == live_, "live blocks are not those counted");
  require(current() <= peak_ && peak_ <= peak_reserved_, "a peak is too low");
  require(current() <= reserved_now(), "more in use than reserved");
  require(offset() <= std::max(cycles_.size(), resume_), "the offset is too high");
}

}  // namespace memcfg
