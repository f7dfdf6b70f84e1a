// The largest flow through a network, and a cut that shows that it is one.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <vector>

namespace memcfg::flow {

using Amount = std::int64_t;
using Node = std::int32_t;

// No cut goes through an arc of this capacity; sums of others stay below it.
inline constexpr Amount kUnbounded = std::numeric_limits<Amount>::max() / 4;

// Dinic's algorithm (1970): shortest augmenting paths, a level graph at a time.
class MaxFlow {
 public:
  explicit MaxFlow(std::size_t nodes) : arcs_(nodes) {}

  Node add_node() {
    arcs_.emplace_back();
    return static_cast<Node>(arcs_.size() - 1);
  }

  void add_arc(Node from, Node to, Amount capacity) {
    arcs_[at(from)].push_back(static_cast<std::uint32_t>(list_.size()));
    list_.push_back({to, capacity});
    arcs_[at(to)].push_back(static_cast<std::uint32_t>(list_.size()));
    list_.push_back({from, 0});
  }

  // Pre: called once; some cut has no unbounded arc. `work` grows by the arcs that were
  // looked at.
  Amount run(Node source, Node sink, std::int64_t& work) {
    Amount total = 0;
    while (set_levels(source, sink, work)) {
      next_.assign(arcs_.size(), 0);
      while (const Amount pushed = push(source, sink, work)) total += pushed;
    }
    return total;
  }

  // Post of run(): the nodes on the source's side of the cut nearest to the source.
  std::vector<std::uint8_t> near_side(Node source) const {
    std::vector<std::uint8_t> side(arcs_.size(), 0);
    std::vector<Node> open{source};
    side[at(source)] = 1;
    while (!open.empty()) {
      const Node node = open.back();
      open.pop_back();
      for (const std::uint32_t a : arcs_[at(node)]) {
        if (list_[a].left == 0 || side[at(list_[a].to)]) continue;
        side[at(list_[a].to)] = 1;
        open.push_back(list_[a].to);
      }
    }
    return side;
  }

  // The same of the cut nearest to the sink.
  std::vector<std::uint8_t> far_side(Node sink) const {
    std::vector<std::uint8_t> side(arcs_.size(), 1);
    std::vector<Node> open{sink};
    side[at(sink)] = 0;
    while (!open.empty()) {
      const Node node = open.back();
      open.pop_back();
      for (const std::uint32_t a : arcs_[at(node)]) {
        if (list_[a ^ 1].left == 0 || !side[at(list_[a].to)]) continue;
        side[at(list_[a].to)] = 0;
        open.push_back(list_[a].to);
      }
    }
    return side;
  }

 private:
  struct Arc {
    Node to;
    Amount left;  // of its capacity; arc a ^ 1 leads back
  };

  static std::size_t at(Node node) { return static_cast<std::size_t>(node); }

  bool set_levels(Node source, Node sink, std::int64_t& work) {
    level_.assign(arcs_.size(), -1);
    level_[at(source)] = 0;
    queue_.assign(1, source);
    for (std::size_t k = 0; k < queue_.size() && level_[at(sink)] < 0; ++k) {
      const Node node = queue_[k];
      work += static_cast<std::int64_t>(arcs_[at(node)].size());
      for (const std::uint32_t a : arcs_[at(node)]) {
        const Node to = list_[a].to;
        if (list_[a].left == 0 || level_[at(to)] >= 0) continue;
        level_[at(to)] = level_[at(node)] + 1;
        queue_.push_back(to);
      }
    }
    return level_[at(sink)] >= 0;
  }

  // One path of the level graph, without recursion: networks are deep.
  Amount push(Node source, Node sink, std::int64_t& work) {
    path_.clear();
    for (Node node = source; node != sink;) {
      auto& next = next_[at(node)];
      const auto& arcs = arcs_[at(node)];
      for (; next < arcs.size(); ++next, ++work) {
        const Arc& arc = list_[arcs[next]];
        if (arc.left > 0 && level_[at(arc.to)] == level_[at(node)] + 1) break;
      }
      if (next < arcs.size()) {
        path_.push_back(arcs[next]);
        node = list_[arcs[next]].to;
      } else if (path_.empty()) {
        return 0;
      } else {  // a dead end: back, and past it
        node = list_[path_.back() ^ 1].to;
        path_.pop_back();
        ++next_[at(node)];
      }
    }
    Amount amount = kUnbounded;
    for (const std::uint32_t a : path_) amount = std::min(amount, list_[a].left);
    for (const std::uint32_t a : path_) {
      list_[a].left -= amount;
      list_[a ^ 1].left += amount;
    }
    return amount;
  }

  std::vector<std::vector<std::uint32_t>> arcs_;  // by node
  std::vector<Arc> list_;
  std::vector<std::int32_t> level_;
  std::vector<std::size_t> next_;
  std::vector<Node> queue_;
  std::vector<std::uint32_t> path_;
};

}  // namespace memcfg::flow
