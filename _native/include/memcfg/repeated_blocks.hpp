// The least recomputation of a chain of blocks within a limit, where many blocks are
// alike: a pure function.
//
// A dynamic program over positions of the chain, from left to right. A label is what is
// kept up to a position, in bytes, and what was computed again for it; a block is kept
// in one of the ways of its kind, or begins a segment, of which only what crosses its
// end is kept: it goes forward again before it goes backward, and is then a chain
// itself. What a segment takes depends on the kinds of its blocks alone, so it is
// worked out once for all places where the same kinds follow each other.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <map>
#include <set>
#include <utility>
#include <vector>

#include "memcfg/stop.hpp"

namespace memcfg::repeated_blocks {

using Extent = std::int64_t;

// A way to keep a block.
struct Way {
  Extent kept;        // bytes from its forward to its backward
  Extent need;        // bytes while it goes backward, and what is kept of it is there
  double cost;        // of what its backward computes again
  double again;       // to make what is kept, in a segment
  double again_last;  // the same, where what crosses its end is there
};

struct Kind {
  std::vector<Way> ways;
  Extent crossing;  // bytes that cross its end
  Extent forward;   // bytes beside what is kept while it goes forward
  Extent passing;   // bytes while it goes forward and keeps nothing
  Extent gradient;  // bytes that its backward gets of the one behind
  double advance;   // to make what crosses its end
};

// A block (length 1 and a way) or a segment (way -1), whose parts follow, one deeper.
struct Part {
  std::int32_t depth;
  std::int32_t begin;
  std::int32_t length;
  std::int32_t way;
};

class Planner {
 public:
  // Once it is stopped, no more segments are planned, and plans have none of those.
  Planner(std::vector<Kind> kinds,
          std::vector<std::int32_t> chain,
          const Stop& stop = {})
      : kinds_(std::move(kinds)), chain_(std::move(chain)) {
    choose_lengths(8);
    if (count_classes() > kMany) choose_lengths(3);
    classify(stop);
  }

  // The plan of least cost within a limit in bytes; empty if there is none.
  std::vector<Part> plan(Extent limit) {
    std::vector<Part> parts;
    const Chain whole{0, chain_.size(), 0, false};
    Solution best;
    if (solve(whole, limit, kLabels, best)) write(best.children, 0, 0, parts);
    return parts;
  }

  // Bytes within which no more is to be kept.
  Extent most() const {
    Extent sum = 0, extra = 0;
    for (const std::int32_t k : chain_) {
      const Kind& kind = kinds_[at(k)];
      Extent kept = 0;
      for (const Way& way : kind.ways) {
        kept = std::max(kept, way.kept);
        extra = std::max({extra, way.need, kind.forward});
      }
      sum += kept;
    }
    return sum + extra;
  }

 private:
  static constexpr std::size_t kLabels = 1024, kInnerLabels = 32;
  static constexpr std::size_t kLongest = 72;  // blocks of a segment
  static constexpr std::size_t kMany = 500;    // classes of segments
  static constexpr int kBudgets = 10;          // for which a segment is planned

  static constexpr int kHalvings = 4;  // on the way to the least that it needs

  struct Chain {  // a part of the chain that is planned by itself
    std::size_t begin, length;
    Extent gradient;  // bytes that are there while it goes forward
    bool again;       // it has gone forward before
  };

  struct Child {
    std::int32_t begin, length;  // from the chain's begin
    std::int32_t way;            // of the block, or the solution of the segment
    std::int32_t segment;        // class; -1: a block
  };

  struct Solution {
    Extent need = 0;
    double cost = 0;
    std::vector<Child> children;
  };

  struct Segment {  // a class of segments of the same kinds
    Extent passing = 0, crossing = 0;
    double advance = 0;
    std::vector<Solution> solutions;  // by rising need and falling cost
  };

  struct Label {
    Extent bytes;
    double cost;
    std::int32_t label;  // that it comes from
    Child child;
  };

  static std::size_t at(std::int32_t i) { return static_cast<std::size_t>(i); }

  const Kind& kind(std::size_t position) const { return kinds_[at(chain_[position])]; }

  // All lengths up to a number, and from there on rarer.
  void choose_lengths(std::size_t dense) {
    lengths_.clear();
    for (std::size_t length = 2; length <= kLongest && length < chain_.size();
         length += 1 + length / dense)
      lengths_.push_back(length);
  }

  using Content = std::vector<std::int32_t>;  // kinds

  Content content(std::size_t begin, std::size_t length) const {
    const auto first = chain_.begin() + static_cast<std::ptrdiff_t>(begin);
    return {first, first + static_cast<std::ptrdiff_t>(length)};
  }

  std::size_t count_classes() const {
    std::set<Content> known;
    for (const std::size_t length : lengths_)
      for (std::size_t begin = 0; begin + length <= chain_.size(); ++begin)
        known.insert(content(begin, length));
    return known.size();
  }

  void classify(const Stop& stop) {
    bool stopped = false;
    for (std::size_t l = 0; l < lengths_.size(); ++l) {
      const std::size_t length = lengths_[l];
      std::map<Content, std::int32_t> known;
      class_.emplace_back(chain_.size(), -1);
      for (std::size_t begin = 0; begin + length <= chain_.size(); ++begin) {
        const auto number = static_cast<std::int32_t>(segments_.size());
        const auto found = known.emplace(content(begin, length), number);
        class_[l][begin] = found.first->second;
        if (!found.second) continue;
        stopped = stopped || stop.now();
        segments_.push_back(stopped ? Segment() : make_segment(begin, length));
      }
    }
  }

  Segment make_segment(std::size_t begin, std::size_t length) {
    Segment segment;
    Extent before = 0, least = 0, most = 0, extra = 0;
    for (std::size_t i = begin; i < begin + length; ++i) {
      const Kind& k = kind(i);
      segment.passing = std::max(segment.passing, before + k.passing);
      segment.advance += k.advance;
      before = k.crossing;
      Extent need = std::numeric_limits<Extent>::max(), kept = 0;
      for (const Way& way : k.ways) {
        need = std::min(need, way.need);
        kept = std::max(kept, way.kept);
        extra = std::max({extra, way.need, k.forward});
      }
      least = std::max(least, need);
      most += kept;
    }
    segment.crossing = before;
    const Chain chain{begin, length, kind(begin + length - 1).gradient, true};
    most += extra + chain.gradient;
    Extent failed = least - 1;
    for (int i = 0; i < kBudgets; ++i) {
      const double part = static_cast<double>(i) / (kBudgets - 1);
      const double share = part * part;
      const auto budget =
          least + static_cast<Extent>(share * static_cast<double>(most - least));
      Solution found;
      if (!solve(chain, budget, kInnerLabels, found))
        failed = budget;
      else if (segment.solutions.empty() || found.cost < segment.solutions.back().cost)
        segment.solutions.push_back(std::move(found));
    }
    for (int i = 0; i < kHalvings && !segment.solutions.empty(); ++i) {
      const Extent above = segment.solutions.front().need;
      if (above - failed < 2) break;
      const Extent budget = failed + (above - failed) / 2;
      Solution found;
      if (solve(chain, budget, kInnerLabels, found))
        segment.solutions.insert(segment.solutions.begin(), std::move(found));
      else
        failed = budget;
    }
    return segment;
  }

  bool solve(const Chain& chain, Extent budget, std::size_t most, Solution& best) {
    std::vector<std::vector<Label>> labels(chain.length + 1);
    labels[0].push_back({0, 0.0, -1, {}});
    for (std::size_t p = 0; p < chain.length; ++p) {
      thin(labels[p], budget, most);
      for (std::size_t i = 0; i < labels[p].size(); ++i) {
        extend_by_block(chain, budget, p, i, labels);
        extend_by_segments(chain, budget, p, i, labels);
      }
    }
    const auto& ends = labels[chain.length];
    const auto least =
        std::min_element(ends.begin(), ends.end(), [](const Label& a, const Label& b) {
          return a.cost != b.cost ? a.cost < b.cost : a.bytes < b.bytes;
        });
    if (least == ends.end()) return false;
    best.cost = least->cost;
    Label label = *least;
    while (label.label >= 0) {
      const Label& before = labels[at(label.child.begin)][at(label.label)];
      best.need = std::max(best.need, before.bytes + need(chain, label.child));
      best.children.push_back(label.child);
      label = Label(before);
    }
    std::reverse(best.children.begin(), best.children.end());
    return true;
  }

  // Leaves labels that are better than all with fewer bytes, at most one in a span.
  static void thin(std::vector<Label>& labels, Extent budget, std::size_t most) {
    std::sort(labels.begin(), labels.end(), [](const Label& a, const Label& b) {
      return a.bytes != b.bytes ? a.bytes < b.bytes : a.cost < b.cost;
    });
    const Extent span = std::max<Extent>(budget / static_cast<Extent>(most), 1);
    std::size_t left = 0;
    for (const Label& label : labels) {
      if (left > 0 && label.cost >= labels[left - 1].cost) continue;
      const bool same = left > 1 && label.bytes / span == labels[left - 1].bytes / span;
      labels[same ? left - 1 : left++] = label;
    }
    labels.resize(left);
    labels.shrink_to_fit();  // of a long chain, all of them are there at its end
  }

  Extent need(const Chain& chain, const Child& child) const {
    const Kind& k = kind(chain.begin + at(child.begin));
    if (child.segment >= 0) {
      const Segment& segment = segments_[at(child.segment)];
      const bool ends = at(child.begin + child.length) == chain.length;
      const Extent pass = chain.again && ends ? 0 : segment.passing + chain.gradient;
      return std::max(segment.solutions[at(child.way)].need, pass);
    }
    const Way& way = k.ways[at(child.way)];
    return std::max(way.need, way.kept + k.forward + chain.gradient);
  }

  void extend_by_block(const Chain& chain,
                       Extent budget,
                       std::size_t p,
                       std::size_t from,
                       std::vector<std::vector<Label>>& labels) const {
    const Label label = labels[p][from];
    const Kind& k = kind(chain.begin + p);
    Child child{static_cast<std::int32_t>(p), 1, 0, -1};
    for (; at(child.way) < k.ways.size(); ++child.way) {
      if (label.bytes + need(chain, child) > budget) continue;
      const Way& way = k.ways[at(child.way)];
      double cost = label.cost + way.cost;
      if (chain.again) cost += p + 1 == chain.length ? way.again_last : way.again;
      labels[p + 1].push_back(
          {label.bytes + way.kept, cost, static_cast<std::int32_t>(from), child});
    }
  }

  void extend_by_segments(const Chain& chain,
                          Extent budget,
                          std::size_t p,
                          std::size_t from,
                          std::vector<std::vector<Label>>& labels) const {
    const Label label = labels[p][from];
    for (std::size_t l = 0; l < lengths_.size(); ++l) {
      const std::size_t length = lengths_[l], end = p + length;
      if (end > chain.length || length >= chain.length) break;
      const std::int32_t number = class_[l][chain.begin + p];
      const Segment& segment = segments_[at(number)];
      Child child{static_cast<std::int32_t>(p),
                  static_cast<std::int32_t>(length),
                  static_cast<std::int32_t>(segment.solutions.size()) - 1,
                  number};
      for (; child.way >= 0; --child.way) {  // from the least cost on
        if (label.bytes + need(chain, child) > budget) continue;
        double cost = label.cost + segment.solutions[at(child.way)].cost;
        if (chain.again && end < chain.length) cost += segment.advance;
        labels[end].push_back({label.bytes + segment.crossing,
                               cost,
                               static_cast<std::int32_t>(from),
                               child});
        break;
      }
    }
  }

  void write(const std::vector<Child>& children,
             std::int32_t depth,
             std::int32_t begin,
             std::vector<Part>& parts) const {
    for (const Child& child : children) {
      const bool block = child.segment < 0;
      const std::int32_t first = begin + child.begin;
      parts.push_back({depth, first, child.length, block ? child.way : -1});
      if (block) continue;
      const Segment& segment = segments_[at(child.segment)];
      write(segment.solutions[at(child.way)].children, depth + 1, first, parts);
    }
  }

  std::vector<Kind> kinds_;
  std::vector<std::int32_t> chain_;  // kinds
  std::vector<std::size_t> lengths_;
  std::vector<std::vector<std::int32_t>> class_;  // by length and begin
  std::vector<Segment> segments_;                 // classes
};

}  // namespace memcfg::repeated_blocks
