// The pages of a workspace: taken, kept for whoever is alive there, given back.
#include <algorithm>
#include <utility>

#include "memcfg/error.hpp"
#include "memcfg/fork_lock.hpp"
#include "memcfg/workspace.hpp"

namespace memcfg {
namespace {

std::uintptr_t as_number(const void* address) {
  return reinterpret_cast<std::uintptr_t>(address);
}

}  // namespace

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

}  // namespace memcfg
