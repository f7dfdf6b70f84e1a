#include "memcfg/workspace.hpp"

#include <algorithm>
#include <stdexcept>
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
      source_(std::move(pages)),
      rules_(checked(rules)),
      tag_("workspace " + rules.name),
      cycles_(rules_) {
  if (cycles_.size() > 0) fetch_page();
}

// A page on which somebody is alive stays: whoever holds the address was told nothing.
Workspace::~Workspace() {
  Grounds garbage;
  pages_.drop_page(cycles_.generation(), garbage);
  pages_.drop_spare(garbage);
  give(garbage);
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
  Grounds garbage;
  End end;
  std::uint64_t generation = 0;
  bool cuts = false;
  {
    const ForkLock lock(mutex_);
    if (!open_) return end;
    end.was_disabled = !enabled_;
    open_ = false;
    enabled_ = true;
    generation = cycles_.generation();
    cuts = pages_.waits(generation);
    end.escaped = leave_cycle();
    if (cycles_.end(!spill_everything_)) {
      pages_.drop_page(generation, garbage);
      pages_.drop_spare(garbage);
      resume_ = 0;
    } else {
      pad();
    }
  }
  give(garbage);
  if (cuts) cut_retired(generation);
  return end;
}

// How many blocks have escaped.
std::uint64_t Workspace::leave_cycle() noexcept {
  std::uint64_t escaped = std::exchange(escaped_now_, 0);
  if (!rules_.circular) {
    resume_ = 0;
    escaped += std::exchange(cycle_spills_, 0);
    if (Ground* const ground = pages_.page()) {
      escaped += ground->page.live();
      if (ground->page.live() > 0 && !rules_.overwrites) {
        pages_.retire(cycles_.generation());
      } else {
        ground->page.rewind();
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
  if (Ground* const ground = pages_.page()) {
    ground->page.skip_to(end);
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
  Grounds fresh;
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
  give(fresh);
}

// There is no page for this cycle, unless somebody else has brought one. Pre: the
// refusal is being handled; it goes on where nothing is to be spilled.
bool Workspace::stay_cold() {
  {
    const ForkLock lock(mutex_);
    if (pages_.page() != nullptr) return true;
    cold_ = true;
    refusal_ = std::current_exception();
  }
  if (rules_.spill == WorkspaceRules::fail) throw;
  return false;
}

// A page that is still held when the cycle after its own has ended is held for long:
// what lies behind its last live block goes.
void Workspace::cut_retired(std::uint64_t before) noexcept {
  Grounds garbage;
  for (;;) {
    Ground* ground = nullptr;
    {
      const ForkLock lock(mutex_);
      ground = pages_.begin_cut(before);
    }
    if (ground == nullptr) break;
    bool done = false;
    try {
      done = source_->resize(ground->page.base(), ground->taken, ground->page.size());
    } catch (...) {  // it stays as it is
    }
    const ForkLock lock(mutex_);
    pages_.end_cut(*ground, done);
    pages_.settle(*ground, cycles_.size(), garbage);
  }
  give(garbage);
}

// Bytes that were given.
Bytes Workspace::give(Grounds& garbage) noexcept {
  Bytes given = 0;
  for (auto& [address, ground] : garbage) {
    if (source_->release(ground.page.base())) given += ground.taken;
  }
  garbage.clear();
  return given;
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
    pages_.drop_page(cycles_.generation(), garbage);
    pages_.drop_spare(garbage);
    cycles_.forget();
    resume_ = 0;
    cycle_spills_ = escaped_ = escaped_now_ = 0;
  }
  give(garbage);
  cut_retired(generation());
}

Bytes Workspace::shrink() noexcept {
  Grounds garbage;
  const Bytes before = reserved();
  {
    const ForkLock lock(mutex_);
    pages_.drop_spare(garbage);
    if (!open_ && cycles_.shrink()) {
      pages_.drop_page(cycles_.generation(), garbage);
      resume_ = 0;
    }
  }
  give(garbage);
  cut_retired(generation() + 1);
  return before - std::min(before, reserved());
}

Bytes Workspace::trim(Bytes keep) {
  Grounds garbage;
  const Bytes before = reserved();
  {
    const ForkLock lock(mutex_);
    if (reserved_now() - current() > keep) pages_.drop_spare(garbage);
  }
  give(garbage);
  if (keep == 0) cut_retired(generation() + 1);
  return before - std::min(before, reserved());
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
