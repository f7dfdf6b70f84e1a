// What was placed, asked by lifetime.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "memcfg/buffers.hpp"

namespace memcfg::packing {

// Few buffers are kept in one list, sorted by offset, and whoever asks reads it all;
// many in a segment tree over the times at which lifetimes begin and end. Invariant of
// the tree: a node holds as `whole` the bytes of what lives in all of its time and not
// in all of its parent's, as `partly` those of what lives in a part of it. Gaps are all
// that is asked for, so spans that touch are one: a few, where the buffers lie densely.
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
    for (Node& node : nodes_) {
      node.whole.clear();
      node.partly.clear();
    }
  }

  // Pre: `p` has bytes and lives in [lower, upper) of one of the constructor's buffers.
  void add(const Placed& p) {
    if (times_.empty()) {
      placed_.insert(std::upper_bound(placed_.begin(), placed_.end(), p, by_offset), p);
      return;
    }
    visit(p.lower, p.upper, [&](Node& node, bool is_whole) {
      join(is_whole ? node.whole : node.partly, {p.offset, p.end});
    });
  }

  // What lies where in a part of [lower, upper), sorted by offset, and maybe more that
  // lives at other times. What overlaps or touches may be told as one. Pre: as of
  // `add`. Valid until the next call. `work` grows by what was looked at.
  const std::vector<Placed>& around(Time lower, Time upper, std::int64_t& work) {
    if (times_.empty()) {
      work += static_cast<std::int64_t>(placed_.size());
      return placed_;
    }
    placed_.clear();
    const auto take = [&](const std::vector<Span>& spans) {
      for (const Span& span : spans)
        placed_.push_back({span.offset, span.end, lower, upper});
    };
    visit(lower, upper, [&](const Node& node, bool is_whole) {
      ++work;
      take(node.whole);
      if (is_whole) take(node.partly);
    });
    std::sort(placed_.begin(), placed_.end(), by_offset);
    work += static_cast<std::int64_t>(placed_.size());
    return placed_;
  }

 private:
  struct Span {
    Extent offset;
    Extent end;
  };

  struct Node {
    std::vector<Span> whole;   // by offset, none touches another
    std::vector<Span> partly;  // the same
  };

  static void join(std::vector<Span>& spans, Span span) {
    const auto first = std::lower_bound(
        spans.begin(), spans.end(), span.offset, [](const Span& s, Extent offset) {
          return s.end < offset;
        });
    auto last = first;
    for (; last != spans.end() && last->offset <= span.end; ++last) {
      span.offset = std::min(span.offset, last->offset);
      span.end = std::max(span.end, last->end);
    }
    if (first == last) {
      spans.insert(first, span);
    } else {
      *first = span;
      spans.erase(first + 1, last);
    }
  }

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

  std::vector<Time> times_;     // sorted; none: all is in a list
  std::size_t leaves_ = 1;      // a power of two; leaf k is [times_[k], times_[k + 1])
  std::vector<Node> nodes_;     // the root is 1, the children of n are 2n and 2n + 1
  std::vector<Placed> placed_;  // the list, or the last answer
};

}  // namespace memcfg::packing
