#include "memcfg/workspace.hpp"

#include <algorithm>
#include <cstring>
#include <utility>

#include "memcfg/error.hpp"
#include "memcfg/fork_lock.hpp"

namespace memcfg {
namespace {

std::uintptr_t as_number(const void* address) {
  return reinterpret_cast<std::uintptr_t>(address);
}

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
    escaped_ += page.live();
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

// A page of the size that is known, unless there is one.
void Workspace::fetch_page() {
  Bytes size = 0;
  {
    const ForkLock lock(mutex_);
    size = cycles_.size();
    if (page_ != nullptr || size == 0 || use_spare()) return;
  }
  const Request request{size, kAlignment, Lifetime::long_lived, tag_};
  auto* const base = static_cast<std::byte*>(pages_->allocate(request));
  Grounds fresh;
  try {
    fresh.emplace(std::piecewise_construct,
                  std::forward_as_tuple(as_number(base)),
                  std::forward_as_tuple(base, size));
  } catch (...) {
    pages_->deallocate(base, size);
    throw;
  }
  {
    const ForkLock lock(mutex_);
    if (page_ == nullptr && cycles_.size() == size) {
      page_ = &grounds_.insert(fresh.extract(fresh.begin())).position->second;
      page_->page.skip_to(std::min(resume_, size));
    }
  }
  give(fresh);
}

bool Workspace::use_spare() noexcept {
  if (spare_ == nullptr || spare_->page.size() != cycles_.size()) return false;
  page_ = std::exchange(spare_, nullptr);
  page_->page.skip_to(std::min(resume_, page_->page.size()));
  return true;
}

// Pre: a refusal is being handled.
void Workspace::stay_cold() noexcept {
  const ForkLock lock(mutex_);
  cold_ = true;
  refusal_ = std::current_exception();
}

// The page belongs to its blocks from now on.
void Workspace::retire() noexcept {
  elsewhere_ += page_->page.live_bytes();
  page_->retired = true;
  page_->cut = false;
  page_->retired_at = cycles_.cycles();
  page_ = nullptr;
  ++uncut_;
}

// The page goes, or stays with whoever is alive there.
void Workspace::drop_page(Grounds& garbage) noexcept {
  resume_ = 0;
  if (page_ == nullptr) return;
  if (page_->page.held() > 0) return retire();
  garbage.insert(grounds_.extract(as_number(page_->page.base())));
  page_ = nullptr;
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

// How many blocks are alive behind the end of their cycle. In a ring they may be, until
// their turn comes.
std::uint64_t Workspace::leave_cycle() noexcept {
  if (rules_.circular) return 0;
  resume_ = 0;
  std::uint64_t escaped = std::exchange(cycle_spills_, 0);
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

// A page that nobody needs any more becomes the spare one, or goes.
void Workspace::settle(Ground& ground, Grounds& garbage) noexcept {
  if (&ground == page_ || ground.page.held() > 0 || ground.busy) return;
  if (!ground.cut) --uncut_;
  if (spare_ == nullptr && ground.taken == cycles_.size()) {
    ground.retired = false;
    ground.page.rewind();
    spare_ = &ground;
    return;
  }
  garbage.insert(grounds_.extract(as_number(ground.page.base())));
}

void Workspace::drop_spare(Grounds& garbage) noexcept {
  if (spare_ == nullptr) return;
  garbage.insert(grounds_.extract(as_number(spare_->page.base())));
  spare_ = nullptr;
}

// A page that is still held when the cycle after its own has ended is held for long:
// what lies behind its last live block goes.
void Workspace::cut_retired() noexcept {
  Grounds garbage;
  for (;;) {
    Ground* ground = nullptr;
    Bytes taken = 0;
    Bytes end = 0;
    {
      const ForkLock lock(mutex_);
      ground = find_uncut();
      if (ground == nullptr) break;
      ground->cut = true;
      --uncut_;
      taken = ground->taken;
      end = std::max(ground->page.end_of_live(), kAlignment);
      ground->busy = end < taken;
      if (!ground->busy) continue;
      ground->page.resize(end);  // before somebody else can be where it ended
    }
    const bool done = resize_page(*ground, taken, end);
    const ForkLock lock(mutex_);
    ground->busy = false;
    if (done) {
      ground->taken = end;
    } else {
      ground->page.resize(taken);
    }
    settle(*ground, garbage);
  }
  give(garbage);
}

bool Workspace::resize_page(Ground& ground, Bytes taken, Bytes end) noexcept {
  try {
    return pages_->resize(ground.page.base(), taken, end);
  } catch (...) {  // it stays as it is
    return false;
  }
}

Workspace::Ground* Workspace::find_uncut() noexcept {
  if (uncut_ == 0) return nullptr;
  for (auto& [address, ground] : grounds_) {
    if (ground.retired && !ground.cut && ground.retired_at + 1 < cycles_.cycles()) {
      return &ground;
    }
  }
  return nullptr;
}

// Bytes that were given.
Bytes Workspace::give(Grounds& garbage) noexcept {
  Bytes given = 0;
  for (auto& [address, ground] : garbage) {
    given += ground.taken;
    try {
      pages_->deallocate(ground.page.base(), ground.taken);
    } catch (...) {  // somebody gave it back behind its back
    }
  }
  garbage.clear();
  return given;
}

Workspace::Ground* Workspace::ground_of(const void* address) const noexcept {
  if (page_ != nullptr && page_->page.contains(address)) return page_;
  auto found = grounds_.upper_bound(as_number(address));
  if (found == grounds_.begin()) return nullptr;
  --found;
  return found->second.page.contains(address) ? &found->second : nullptr;
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
  return cycles_.learn();
}

void Workspace::destroy() noexcept {
  Grounds garbage;
  {
    const ForkLock lock(mutex_);
    cycles_.forget();
    drop_page(garbage);
    drop_spare(garbage);
    cycle_spills_ = escaped_ = 0;
  }
  give(garbage);
}

Bytes Workspace::shrink() noexcept {
  Grounds garbage;
  {
    const ForkLock lock(mutex_);
    drop_spare(garbage);
    if (!open_ && cycles_.shrink()) drop_page(garbage);
  }
  return give(garbage);
}

Bytes Workspace::trim(Bytes) {
  Grounds garbage;
  {
    const ForkLock lock(mutex_);
    drop_spare(garbage);
  }
  return give(garbage);
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
