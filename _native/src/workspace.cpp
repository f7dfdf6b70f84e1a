#include "memcfg/workspace.hpp"

#include <algorithm>
#include <cstring>
#include <utility>

#include "memcfg/error.hpp"
#include "memcfg/fork_lock.hpp"

namespace memcfg {
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
      pages_(std::move(pages)),
      rules_(checked(rules)),
      tag_("workspace " + rules.name),
      cycles_(rules_) {
  if (cycles_.size() > 0) fetch_page();
}

// A page on which somebody is alive stays: whoever holds the address was told nothing.
Workspace::~Workspace() {
  Grounds garbage;
  for (auto ground = grounds_.begin(); ground != grounds_.end();) {
    const auto next = std::next(ground);
    if (ground->second.page.held() == 0) garbage.insert(grounds_.extract(ground));
    ground = next;
  }
  give(garbage);
}

void* Workspace::allocate(const Request& request) {
  require_valid(request);
  for (;;) {
    const Attempt made = attempt(request);
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

Workspace::Attempt Workspace::attempt(const Request& request) {
  const ForkLock lock(mutex_);
  if (!open_ || !enabled_ || bypass_everything_) return {Next::upstream};
  if (request.size > kNoLimit - 2 * kAlignment) return {Next::upstream};
  const Bytes size = align_up(request.size);
  if (cycles_.oversized(size)) return {Next::upstream, nullptr, Kind::pinned};
  if (cycles_.size() == 0 || cold_ || spill_everything_) {
    return {Next::upstream, nullptr, Kind::spilled};
  }
  if (page_ == nullptr && !use_spare()) return {Next::page};
  return enter_page(request, size);
}

// Pre: the lock is held, there is a page.
Workspace::Attempt Workspace::enter_page(const Request& request, Bytes size) {
  using Outcome = WorkspacePage::Outcome;
  WorkspacePage& page = page_->page;
  WorkspacePage::Record record;
  record.size = request.size;
  record.generation = cycles_.generation();
  record.mark = cycles_.next_mark();
  Outcome outcome = page.take(record, request.alignment, rules_.overwrites);
  if (outcome == Outcome::full && rules_.circular && size <= page.size()) {
    page.wrap();
    cycles_.wrapped();
    outcome = page.take(record, request.alignment, rules_.overwrites);
  }
  if (outcome == Outcome::full) return {Next::upstream, nullptr, Kind::spilled};
  if (outcome == Outcome::blocked) {
    resume_ = page.offset();
    escaped_now_ += page.live();
    retire();
    return {Next::page};
  }
  cycles_.count(size, Fit::page);
  ++allocations_;
  peak_ = std::max(peak_, current());
  return {Next::done, page.last()};
}

void* Workspace::take_below(const Request& request, Kind kind) {
  if (kind != Kind::outside) require_may_spill(request);
  Request below = request;
  below.tag = tag_;
  void* const address = upstream_->allocate(below);
  try {
    book(address, request.size, kind);
  } catch (...) {
    upstream_->deallocate(address, request.size);
    throw;
  }
  return address;
}

void Workspace::book(void* address, Bytes size, Kind kind) {
  const ForkLock lock(mutex_);
  const Bytes rounded = align_up(size);
  const std::size_t mark = cycles_.next_mark();
  spilled_.emplace(address, Spilled{size, cycles_.generation(), kind, mark});
  if (kind != Kind::outside) {
    cycles_.count(rounded, kind == Kind::pinned ? Fit::pinned : Fit::spilled);
    ++cycle_spills_;
  }
  elsewhere_ += rounded;
  ++allocations_;
  peak_ = std::max(peak_, current());
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

bool Workspace::open() {
  bool warm = true;
  try {
    {
      const ForkLock lock(mutex_);
      cycles_.restore();
    }
    fetch_page();
  } catch (const out_of_memory&) {
    stay_cold();
    warm = false;
  }
  const ForkLock lock(mutex_);
  cycles_.begin();
  cycle_spills_ = 0;
  open_ = enabled_ = true;
  cold_ = !warm;
  return warm;
}

Workspace::End Workspace::close() noexcept {
  Grounds garbage;
  End end;
  {
    const ForkLock lock(mutex_);
    if (!open_) return end;
    end.was_disabled = !enabled_;
    open_ = false;
    enabled_ = true;
    end.escaped = leave_cycle();
    if (cycles_.end(!spill_everything_)) {
      drop_page(garbage);
      drop_spare(garbage);
    } else {
      pad();
    }
  }
  give(garbage);
  cut_retired();
  return end;
}

// How many blocks have escaped.
std::uint64_t Workspace::leave_cycle() noexcept {
  std::uint64_t escaped = std::exchange(escaped_now_, 0);
  escaped_ += escaped;
  if (rules_.circular) return escaped;
  resume_ = 0;
  escaped = std::exchange(cycle_spills_, 0);
  if (page_ != nullptr) {
    escaped += page_->page.live();
    if (page_->page.live() > 0 && !rules_.overwrites) {
      retire();
    } else {
      page_->page.rewind();
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
  if (page_ == nullptr) {
    resume_ = end;
  } else {
    page_->page.skip_to(end);
  }
}

bool Workspace::release_of(void* address, std::uint64_t generation) noexcept {
  Grounds garbage;
  Bytes below = 0;  // of a block of upstream
  {
    const ForkLock lock(mutex_);
    if (Ground* const ground = ground_of(address)) {
      if (!end_on(*ground, address, generation)) return false;
      settle(*ground, garbage);
    } else {
      const auto found = spilled_.find(address);
      if (found == spilled_.end()) return false;
      const Spilled& block = found->second;
      below = block.size;
      elsewhere_ -= align_up(block.size);
      if (block.kind != Kind::outside) {
        if (block.generation == cycles_.generation() && cycle_spills_ > 0) {
          --cycle_spills_;
        }
        cycles_.gone(block.mark, block.generation);
      }
      spilled_.erase(found);
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
  if (&ground != page_) elsewhere_ -= align_up(record.size);
  cycles_.gone(record.mark, record.generation);
  if (rules_.reclaims && &ground == page_) page.recede();
  return true;
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
  Grounds garbage;
  {
    const ForkLock lock(mutex_);
    cycles_.forget();
    drop_page(garbage);
    drop_spare(garbage);
    cycle_spills_ = escaped_ = escaped_now_ = 0;
  }
  give(garbage);
}

void Workspace::set_enabled(bool enabled) noexcept {
  const ForkLock lock(mutex_);
  enabled_ = enabled;
}

void Workspace::rethrow_refusal() const {
  std::exception_ptr refusal;
  {
    const ForkLock lock(mutex_);
    refusal = refusal_;
  }
  std::rethrow_exception(refusal);
}

}  // namespace memcfg
