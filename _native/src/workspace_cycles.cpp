#include "memcfg/workspace_cycles.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <stdexcept>

namespace memcfg {
namespace {

constexpr double kRingReserve = 1.3;  // of a block over the cycle it was learned from

// Whole bytes of a multiple, or kNoLimit where there are too many.
Bytes times(Bytes size, double factor) noexcept {
  const double product = static_cast<double>(size) * factor;
  constexpr double kMax = 9e18;  // fits Bytes
  return product < kMax ? static_cast<Bytes>(product) : kNoLimit;
}

Bytes product(Bytes size, Bytes count) noexcept {
  return size > kNoLimit / count ? kNoLimit : size * count;
}

Bytes overallocated(const WorkspaceRules& rules, Bytes size) noexcept {
  return saturating_add(size, times(size, rules.overallocation));
}

}  // namespace

void require_valid(const WorkspaceRules& rules) {
  if (rules.maximum == 0 || rules.minimum > rules.maximum ||
      rules.initial > rules.maximum) {
    throw std::invalid_argument("a workspace's sizes do not fit its largest size");
  }
  if (!(rules.overallocation >= 0) || std::isinf(rules.overallocation)) {
    throw std::invalid_argument("an overallocation is a share, 0 or more");
  }
  if (rules.ring_blocks == 0 || (rules.ring_blocks > 1 && !rules.circular)) {
    throw std::invalid_argument("a workspace that is no ring has one block");
  }
  if (rules.circular && rules.reclaims) {
    throw std::invalid_argument(
        "a ring cannot free space before its cycle comes round");
  }
}

Bytes first_size(const WorkspaceRules& rules) noexcept {
  return std::min(overallocated(rules, rules.initial), rules.maximum);
}

WorkspaceSize learned_size(const WorkspaceRules& rules,
                           Bytes max_cycle_bytes) noexcept {
  WorkspaceSize learned;
  if (rules.circular) {
    learned.block = times(max_cycle_bytes, kRingReserve);
    learned.block =
        saturating_add(learned.block, kAlignment - learned.block % kAlignment);
    learned.size = product(learned.block, rules.ring_blocks);
  } else {
    learned.size = overallocated(rules, max_cycle_bytes);
  }
  learned.size = std::min(std::max(learned.size, rules.minimum), rules.maximum);
  learned.block = std::min(learned.block, learned.size);
  return learned;
}

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
