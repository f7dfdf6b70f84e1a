#include "memcfg/workspace_pages.hpp"

#include <algorithm>
#include <tuple>
#include <utility>

#include "memcfg/error.hpp"

namespace memcfg {
namespace {

std::uintptr_t as_number(const void* address) {
  return reinterpret_cast<std::uintptr_t>(address);
}

}  // namespace

void WorkspacePages::put(Grounds& grounds, std::byte* base, Bytes size) {
  grounds.emplace(std::piecewise_construct,
                  std::forward_as_tuple(as_number(base)),
                  std::forward_as_tuple(base, size));
}

WorkspacePages::Ground* WorkspacePages::find(const void* address) const noexcept {
  if (page_ != nullptr && page_->page.contains(address)) return page_;
  auto found = grounds_.upper_bound(as_number(address));
  if (found == grounds_.begin()) return nullptr;
  --found;
  return found->second.page.contains(address) ? &found->second : nullptr;
}

void WorkspacePages::use(Grounds& fresh, Offset from) noexcept {
  page_ = &grounds_.insert(fresh.extract(fresh.begin())).position->second;
  page_->page.skip_to(std::min(from, page_->page.size()));
  reserved_ += align_up(page_->taken);
}

bool WorkspacePages::use_spare(Bytes size, Offset from) noexcept {
  if (spare_ == nullptr || spare_->page.size() != size) return false;
  page_ = std::exchange(spare_, nullptr);
  page_->state = State::current;
  page_->page.skip_to(std::min(from, size));
  return true;
}

void WorkspacePages::retire(std::uint64_t generation) noexcept {
  Ground& ground = *std::exchange(page_, nullptr);
  ground.state = State::retired;
  ground.retired_at = generation;
  retired_ += align_up(ground.taken);
  live_elsewhere_ += ground.page.live_bytes();
  wait(ground);
}

void WorkspacePages::drop_page(std::uint64_t generation, Grounds& garbage) noexcept {
  if (page_ == nullptr) return;
  if (page_->page.held() > 0) return retire(generation);
  drop(*std::exchange(page_, nullptr), garbage);
}

void WorkspacePages::drop_spare(Grounds& garbage) noexcept {
  if (spare_ != nullptr) drop(*std::exchange(spare_, nullptr), garbage);
}

void WorkspacePages::drop(Ground& ground, Grounds& garbage) noexcept {
  reserved_ -= align_up(ground.taken);
  garbage.insert(grounds_.extract(as_number(ground.page.base())));
}

void WorkspacePages::settle(Ground& ground, Bytes size, Grounds& garbage) noexcept {
  if (ground.state != State::retired || ground.page.held() > 0 || ground.busy) return;
  wait_no_more(ground);
  retired_ -= align_up(ground.taken);
  if (spare_ != nullptr || ground.taken != size) return drop(ground, garbage);
  ground.state = State::spare;
  ground.page.rewind();
  spare_ = &ground;
}

void WorkspacePages::gone(const Ground& ground, Bytes size) noexcept {
  if (ground.state == State::retired) live_elsewhere_ -= align_up(size);
}

void WorkspacePages::wait(Ground& ground) noexcept {
  ground.waiting = true;
  ground.younger = nullptr;
  ground.older = std::exchange(youngest_, &ground);
  (ground.older == nullptr ? oldest_ : ground.older->younger) = &ground;
}

void WorkspacePages::wait_no_more(Ground& ground) noexcept {
  if (!std::exchange(ground.waiting, false)) return;
  (ground.older == nullptr ? oldest_ : ground.older->younger) = ground.younger;
  (ground.younger == nullptr ? youngest_ : ground.younger->older) = ground.older;
}

WorkspacePages::Ground* WorkspacePages::begin_cut(std::uint64_t before) noexcept {
  while (oldest_ != nullptr && oldest_->retired_at < before) {
    Ground& ground = *oldest_;
    wait_no_more(ground);
    const Bytes end = std::max(ground.page.end_of_live(), kAlignment);
    if (end >= ground.taken) continue;
    ground.busy = true;
    ground.page.resize(end);  // before somebody else can be where it ended
    return &ground;
  }
  return nullptr;
}

void WorkspacePages::end_cut(Ground& ground, bool done) noexcept {
  ground.busy = false;
  if (!done) return ground.page.resize(ground.taken);
  const Bytes given = align_up(ground.taken) - align_up(ground.page.size());
  reserved_ -= given;
  retired_ -= given;
  ground.taken = ground.page.size();
}

void WorkspacePages::check() const {
  Bytes reserved = 0;
  Bytes retired = 0;
  Bytes live = 0;
  std::size_t waiting = 0;
  for (const auto& [address, ground] : grounds_) {
    ground.page.check();
    reserved += align_up(ground.taken);
    if (ground.waiting) ++waiting;
    const bool current = &ground == page_;
    require((ground.state == State::current) == current, "two pages are current");
    require((ground.state == State::spare) == (&ground == spare_), "two are spare");
    if (ground.state != State::retired) continue;
    retired += align_up(ground.taken);
    live += ground.page.live_bytes();
    require(ground.page.held() > 0 || ground.busy, "a page is kept for nobody");
  }
  for (const Ground* each = oldest_; each != nullptr; each = each->younger) --waiting;
  require(waiting == 0, "pages to be cut are not those listed");
  require(reserved == reserved_ && retired == retired_, "the pages do not add up");
  require(live == live_elsewhere_, "live bytes are not those counted");
  require(spare_ == nullptr || spare_->page.held() == 0, "the spare page is in use");
}

}  // namespace memcfg
