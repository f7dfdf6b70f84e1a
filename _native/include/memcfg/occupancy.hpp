// What was placed, asked by lifetime.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "memcfg/buffers.hpp"

namespace memcfg::packing {

// Few buffers are kept in one list, sorted by offset, and whoever asks reads it all;
// many in a segment tree over the times at which lifetimes begin and end, where an
// answer costs what it holds and a factor of the depth. Invariant of the tree: a node
// holds as `whole` what lives in all of its time and not in all of its parent's, as
// `partly` what lives in a part of it.
class Occupancy {
 public:
  // Below, reading one list is faster (measured: equal near 2,000 buffers of a step).
  static constexpr std::size_t kMostListed = 2048;

  explicit Occupancy(const Buffers& buffers, std::size_t most_listed = kMostListed) {
    if (buffers.size() <= most_listed) return;
    for (const Buffer& b : buffers) {
      times_.push_back(b.lower);
      times_.push_back(b.upper);
    }
    std::sort(times_.begin(), times_.end());
    times_.erase(std::unique(times_.begin(), times_.end()), times_.end());
    while (leaves_ + 1 < times_.size()) leaves_ *= 2;
    nodes_.resize(2 * leaves_);
  }

  void clear() {
    placed_.clear();
    seen_.clear();
    for (Node& node : nodes_) {
      node.whole.clear();
      node.partly.clear();
    }
  }

  // Pre: `p` lives in [lower, upper) of one of the constructor's buffers.
  void add(const Placed& p) {
    if (times_.empty()) {
      placed_.insert(std::upper_bound(placed_.begin(), placed_.end(), p, by_offset), p);
      return;
    }
    const auto number = static_cast<std::int32_t>(placed_.size());
    placed_.push_back(p);
    seen_.push_back(0);
    visit(p.lower, p.upper, [&](Node& node, bool is_whole) {
      (is_whole ? node.whole : node.partly).push_back(number);
    });
  }

  // All that lives in a part of [lower, upper), sorted by offset, and maybe more. Pre:
  // as of `add`. Valid until the next call.
  const std::vector<Placed>& around(Time lower, Time upper) {
    if (times_.empty()) return placed_;
    found_.clear();
    ++asked_;
    const auto take = [&](const std::vector<std::int32_t>& numbers) {
      for (const std::int32_t number : numbers) {
        const auto k = static_cast<std::size_t>(number);
        if (seen_[k] != asked_) found_.push_back(placed_[k]);
        seen_[k] = asked_;
      }
    };
    visit(lower, upper, [&](Node& node, bool is_whole) {
      take(node.whole);
      if (is_whole) take(node.partly);
    });
    std::sort(found_.begin(), found_.end(), by_offset);
    return found_;
  }

 private:
  struct Node {
    std::vector<std::int32_t> whole;   // indices into placed_
    std::vector<std::int32_t> partly;  // the same
  };

  static bool by_offset(const Placed& a, const Placed& b) {
    return a.offset < b.offset;
  }

  std::size_t position(Time time) const {
    return static_cast<std::size_t>(
        std::lower_bound(times_.begin(), times_.end(), time) - times_.begin());
  }

  // From the root down: all nodes that [lower, upper) cuts, and the highest within it.
  template <typename See>
  void visit(Time lower, Time upper, const See& see) {
    descend(1, 0, leaves_, position(lower), position(upper), see);
  }

  template <typename See>
  void descend(std::size_t node,
               std::size_t from,
               std::size_t to,
               std::size_t lower,
               std::size_t upper,
               const See& see) {
    if (upper <= from || to <= lower) return;
    const bool is_whole = lower <= from && to <= upper;
    see(nodes_[node], is_whole);
    if (is_whole) return;
    const std::size_t middle = from + (to - from) / 2;
    descend(2 * node, from, middle, lower, upper, see);
    descend(2 * node + 1, middle, to, lower, upper, see);
  }

  std::vector<Time> times_;  // sorted; none: placed_ is a list sorted by offset
  std::size_t leaves_ = 1;   // a power of two; leaf k is [times_[k], times_[k + 1])
  std::vector<Node> nodes_;  // the root is 1, the children of n are 2n and 2n + 1
  std::vector<Placed> placed_;
  std::vector<std::uint64_t> seen_;  // by placed: the question that last met it
  std::uint64_t asked_ = 0;
  std::vector<Placed> found_;
};

}  // namespace memcfg::packing
