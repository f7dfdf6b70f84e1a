#include "memcfg/workspace_rules.hpp"

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

}  // namespace memcfg
