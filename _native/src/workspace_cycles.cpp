#include "memcfg/workspace_cycles.hpp"

#include <algorithm>

namespace memcfg {
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

}  // namespace memcfg
