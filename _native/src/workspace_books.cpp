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

std::optional<Workspace::Placement> Workspace::place_of(
    const void* address, std::uint64_t generation) const noexcept {
  const ForkLock lock(mutex_);
  if (const Ground* const ground = ground_of(address)) {
    const WorkspacePage::Record* const found = ground->page.find(address);
    if (found != nullptr && (generation == 0 || found->generation == generation)) {
      const Kind kind = ground->retired ? Kind::retired : Kind::page;
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
    for (const auto& [address, ground] : grounds_) {
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
  return page_ == nullptr ? resume_ : page_->page.offset();
}

Bytes Workspace::current() const noexcept {
  return elsewhere_ + (page_ == nullptr ? 0 : page_->page.live_bytes());
}

ResourceStats Workspace::stats() const {
  ResourceStats stats;
  stats.largest_free = upstream_->stats().largest_free;
  const ForkLock lock(mutex_);
  for (const auto& [address, ground] : grounds_) {
    stats.requested += ground.page.requested();
    stats.reserved += ground.taken;
  }
  for (const auto& [address, block] : spilled_) {
    stats.requested += block.size;
    stats.reserved += align_up(block.size);
  }
  stats.current = current();
  stats.peak = peak_;
  stats.peak_reserved = stats.addresses = stats.reserved;
  stats.idle = stats.reserved - stats.current;
  stats.allocations = allocations_;
  stats.deallocations = deallocations_;
  return stats;
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
  for (const auto& [address, ground] : grounds_) {
    numbers.live += ground.page.held();
    if (ground.retired) numbers.retired += ground.taken;
  }
  for (const auto& [address, block] : spilled_) {
    if (block.kind != Kind::outside) ++numbers.live;
  }
  return numbers;
}

void Workspace::reset_peak() {
  const ForkLock lock(mutex_);
  peak_ = current();
}

Owners Workspace::owners() const {
  const ForkLock lock(mutex_);
  if (current() == 0) return {};
  return {{tag_, current()}};
}

void Workspace::check() const {
  const ForkLock lock(mutex_);
  Bytes live = 0;
  std::size_t uncut = 0;
  for (const auto& [address, ground] : grounds_) {
    ground.page.check();
    live += ground.page.live_bytes();
    if (ground.retired && !ground.cut) ++uncut;
    const bool needed = &ground == page_ || &ground == spare_ || ground.busy;
    require(needed || ground.page.held() > 0, "a page is kept for nobody");
    require(!needed || !ground.retired || ground.busy, "a retired page is in use");
  }
  for (const auto& [address, block] : spilled_) live += align_up(block.size);
  require(live == current(), "live bytes are not those counted");
  require(current() <= peak_, "the peak is below what is in use");
  require(uncut == uncut_, "retired pages are not those counted");
  require(spare_ == nullptr || spare_->page.held() == 0, "the spare page is in use");
}

}  // namespace memcfg
