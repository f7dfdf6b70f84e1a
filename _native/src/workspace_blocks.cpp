// How a workspace makes blocks, and what happens when they go.
#include <algorithm>
#include <cstring>
#include <utility>

#include "memcfg/error.hpp"
#include "memcfg/fork_lock.hpp"
#include "memcfg/workspace.hpp"

namespace memcfg {

void* Workspace::allocate(const Request& request) {
  return allocate_of(request, rules_.overwrites ? 0 : generation());
}

void* Workspace::allocate_of(const Request& request, std::uint64_t generation) {
  require_valid(request);
  for (;;) {
    const Attempt made = attempt(request, generation);
    if (made.next == Next::upstream) return take_below(request, made.kind);
    if (made.next == Next::done) {
      if (request.zeroed && touchable()) std::memset(made.place, 0, request.size);
      return made.place;
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
    book(address, request.size, kind);
  } catch (...) {
    upstream_->release(address);
    throw;
  }
  return address;
}

void Workspace::book(void* address, Bytes size, Kind kind) {
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
  if (cold_) std::rethrow_exception(refusal_);
  Shortage report;
  report.cause = Shortage::workspace_full;
  report.requested = request.size;
  report.rounded = align_up(request.size);
  report.in_use = offset();
  report.reserved = report.limit = cycles_.size();
  report.largest_free = report.limit - std::min(report.limit, report.in_use);
  report.device = tag_;
  throw out_of_memory(std::move(report));
}

bool Workspace::release_of(void* address, std::uint64_t generation) noexcept {
  Grounds garbage;
  Bytes below = 0;  // of a block of upstream
  {
    const ForkLock lock(mutex_);
    if (Ground* const ground = pages_.find(address)) {
      if (!end_on(*ground, address, generation)) return false;
      --live_;
      pages_.settle(*ground, cycles_.size(), garbage);
    } else {
      below = end_spilled(address);
      if (below == 0) return false;
    }
    ++deallocations_;
  }
  give(garbage);
  return below == 0 || upstream_->release(address);
}

// Pre: the lock is held. False: nobody is alive there.
bool Workspace::end_on(Ground& ground,
                       void* address,
                       std::uint64_t generation) noexcept {
  WorkspacePage& page = ground.page;
  const WorkspacePage::Record* const found = page.find(address);
  if (found == nullptr || (generation != 0 && found->generation != generation)) {
    return generation != 0 && page.end_overwritten();
  }
  const WorkspacePage::Record record = *found;
  page.end(record);
  pages_.gone(ground, record.size);
  cycles_.gone(record.mark, record.generation);
  if (rules_.reclaims && &ground == pages_.page()) page.recede();
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

}  // namespace memcfg
