// Canonical strategies over lower sets (Kusumoto et al. 2019, arXiv:1905.11722).
//
// Nodes are the values of a forward phase. A *lower set* holds with a node all that it
// is made from; its *boundary* are those of its nodes that others are made from. A
// strategy is a chain of lower sets, from the empty set to all nodes: each difference
// is a segment, of which only what lies in a boundary is kept, and the rest is computed
// again before the segment is run backward. A dynamic program finds the best strategy
// of a family of lower sets under a budget of the method's own model of memory.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <vector>

#include "memcfg/liveness.hpp"

namespace memcfg::lower_sets {

using liveness::Index;
using liveness::Rows;
using packing::Extent;

// A directed acyclic graph in topological order.
struct Nodes {
  std::vector<Index> time;    // by node: of its computation, in whole units
  std::vector<Extent> bytes;  // by node: of its value
  Rows before;                // by node: what it is made from
  std::size_t size() const { return bytes.size(); }
};

// Sets of nodes, ascending by size: all lower sets, or for each node the set of it and
// of its ancestors, beside the empty set and all nodes.
class Family {
 public:
  // `complete` is false if there are more than `most` sets.
  Family(const Nodes& nodes, bool all, std::size_t most)
      : nodes_(nodes), words_((nodes.size() + kBits - 1) / kBits) {
    const std::size_t n = nodes.size();
    after_.resize(n);
    for (std::size_t v = 0; v < n; ++v)
      for (const Index u : nodes_.before[static_cast<Index>(v)])
        after_[static_cast<std::size_t>(u)].push_back(static_cast<Index>(v));
    complete_ = all ? list_all(most) : list_closures(most);
    if (!complete_) return;
    describe();
    for (const Set& set : sets_) pairs_ += static_cast<std::int64_t>(set.inside);
  }

  bool complete() const { return complete_; }
  std::size_t size() const { return sets_.size(); }
  std::int64_t pairs() const { return pairs_; }  // of a set and one inside it

  // The bytes of the strategy that has one segment: every budget from it on is enough.
  Extent whole() const { return sets_.empty() ? 0 : 2 * sets_.back().bytes; }

  // The segment of each node (0 first) in the strategy of least time, or of most time
  // if `longest`, under a budget. Empty if there is none.
  //
  // opt[L', t + T(V' \ boundary)] = min opt[L, t] + M(boundary of L' \ L), V' = L' \ L,
  // where opt[L, t] + 2 M(V') + M(succ(L') \ L') + M(pred(succ(L')) \ L') <= budget.
  std::vector<Index> strategy(Extent budget, bool longest) const {
    return solve(budget, longest, nodes_.time);
  }

  bool feasible(Extent budget) const {
    return !solve(budget, false, std::vector<Index>(nodes_.size(), 0)).empty() ||
           nodes_.size() == 0;
  }

 private:
  using Word = std::uint64_t;
  static constexpr std::size_t kBits = 64;
  static constexpr Extent kNone = std::numeric_limits<Extent>::max();

  struct Set {
    std::vector<Word> bits;
    std::size_t count = 0;
    std::vector<Index> boundary;
    Extent bytes = 0;        // of all its nodes
    Extent outside = 0;      // held beside a segment that ends with it
    std::size_t inside = 0;  // sets of the family that lie in it, itself left out
    bool has(Index v) const {
      const auto i = static_cast<std::size_t>(v);
      return (bits[i / kBits] >> (i % kBits)) & 1U;
    }
    void add(std::size_t v) {
      bits[v / kBits] |= Word{1} << (v % kBits);
      ++count;
    }
  };

  Set empty_set() const {
    Set set;
    set.bits.assign(words_, 0);
    return set;
  }

  bool may_add(const Set& set, std::size_t v) const {
    const auto before = nodes_.before[static_cast<Index>(v)];
    return std::all_of(
        before.begin(), before.end(), [&](Index u) { return set.has(u); });
  }

  // Every lower set once: node after node is left out or, where it may be, added.
  bool list_all(std::size_t most) {
    struct Partial {
      Set set;
      std::size_t next;
    };
    std::vector<Partial> stack;
    stack.push_back({empty_set(), 0});
    while (!stack.empty()) {
      Partial partial = std::move(stack.back());
      stack.pop_back();
      while (partial.next < nodes_.size() && !may_add(partial.set, partial.next))
        ++partial.next;
      if (partial.next == nodes_.size()) {
        if (sets_.size() >= most) return false;
        sets_.push_back(std::move(partial.set));
        continue;
      }
      Partial with = partial;
      with.set.add(partial.next);
      ++with.next;
      ++partial.next;
      stack.push_back(std::move(with));
      stack.push_back(std::move(partial));
    }
    return true;
  }

  bool list_closures(std::size_t most) {
    const std::size_t n = nodes_.size();
    if (n + 2 > most) return false;
    std::vector<Set> closures;
    for (std::size_t v = 0; v < n; ++v) {
      Set set = empty_set();
      for (const Index u : nodes_.before[static_cast<Index>(v)])
        for (std::size_t w = 0; w < words_; ++w)
          set.bits[w] |= closures[static_cast<std::size_t>(u)].bits[w];
      set.add(v);
      closures.push_back(std::move(set));
    }
    Set all = empty_set();
    for (std::size_t v = 0; v < n; ++v) all.add(v);
    sets_.push_back(empty_set());
    for (Set& set : closures) {
      set.count = 0;
      for (std::size_t v = 0; v < n; ++v) set.count += set.has(static_cast<Index>(v));
      if (set.count < n) sets_.push_back(std::move(set));
    }
    if (n > 0) sets_.push_back(std::move(all));
    return true;
  }

  void describe() {
    std::stable_sort(sets_.begin(), sets_.end(), [](const Set& a, const Set& b) {
      return a.count < b.count;
    });
    std::vector<std::uint8_t> counted;
    for (Set& set : sets_) {
      counted.assign(nodes_.size(), 0);  // 1: a successor, 2: a predecessor of one
      for (std::size_t v = 0; v < nodes_.size(); ++v) {
        if (!set.has(static_cast<Index>(v))) continue;
        set.bytes += nodes_.bytes[v];
        bool last = true;
        for (const Index w : after_[v]) {
          if (set.has(w)) continue;
          last = false;
          counted[static_cast<std::size_t>(w)] |= 1U;
          for (const Index u : nodes_.before[w])
            if (!set.has(u)) counted[static_cast<std::size_t>(u)] |= 2U;
        }
        if (!last) set.boundary.push_back(static_cast<Index>(v));
      }
      for (std::size_t v = 0; v < nodes_.size(); ++v)
        set.outside += nodes_.bytes[v] * ((counted[v] & 1U) + (counted[v] >> 1U));
    }
    for (std::size_t i = 0; i < sets_.size(); ++i)
      for (std::size_t j = 0; j < i; ++j) sets_[i].inside += contains(i, j);
  }

  bool contains(std::size_t large, std::size_t small) const {
    const Set &a = sets_[large], &b = sets_[small];
    if (b.count >= a.count) return false;
    for (std::size_t w = 0; w < words_; ++w)
      if (b.bits[w] & ~a.bits[w]) return false;
    return true;
  }

  struct State {
    Extent kept = kNone;
    Index set = -1, time = -1;  // where it came from
  };

  std::vector<Index> solve(Extent budget,
                           bool longest,
                           const std::vector<Index>& time) const {
    std::vector<Index> segment;
    if (!complete_ || nodes_.size() == 0) return segment;
    Index total = 0;
    for (const Index t : time) total += t;
    const auto columns = static_cast<std::size_t>(total) + 1;
    std::vector<Index> whole(sets_.size(), 0);  // time of its nodes
    for (std::size_t s = 0; s < sets_.size(); ++s) {
      for (std::size_t v = 0; v < nodes_.size(); ++v)
        if (sets_[s].has(static_cast<Index>(v))) whole[s] += time[v];
    }
    std::vector<State> table(sets_.size() * columns);
    table[0].kept = 0;  // the empty set
    std::vector<Index> useful;
    for (std::size_t s = 0; s + 1 < sets_.size(); ++s) {
      list_useful(&table[s * columns], columns, longest, useful);
      if (useful.empty()) continue;
      for (std::size_t l = s + 1; l < sets_.size(); ++l) {
        if (!contains(l, s)) continue;
        const Set &from = sets_[s], &to = sets_[l];
        const Extent beside = 2 * (to.bytes - from.bytes) + to.outside;
        Index added = whole[l] - whole[s];
        Extent keeps = 0;
        for (const Index v : to.boundary) {
          if (from.has(v)) continue;
          added -= time[static_cast<std::size_t>(v)];
          keeps += nodes_.bytes[static_cast<std::size_t>(v)];
        }
        for (const Index t : useful) {
          const Extent kept = table[s * columns + static_cast<std::size_t>(t)].kept;
          if (kept + beside > budget) continue;
          State& best = table[l * columns + static_cast<std::size_t>(t + added)];
          if (kept + keeps < best.kept) best = {kept + keeps, static_cast<Index>(s), t};
        }
      }
    }
    return trace(table, columns, longest);
  }

  // Times of a row that no other beats in both time and bytes.
  static void list_useful(const State* row,
                          std::size_t columns,
                          bool longest,
                          std::vector<Index>& useful) {
    useful.clear();
    Extent least = kNone;
    for (std::size_t i = 0; i < columns; ++i) {
      const std::size_t t = longest ? columns - 1 - i : i;
      if (row[t].kept >= least) continue;
      least = row[t].kept;
      useful.push_back(static_cast<Index>(t));
    }
  }

  std::vector<Index> trace(const std::vector<State>& table,
                           std::size_t columns,
                           bool longest) const {
    std::vector<Index> useful, segment;
    auto set = static_cast<Index>(sets_.size()) - 1;
    list_useful(
        &table[static_cast<std::size_t>(set) * columns], columns, longest, useful);
    if (useful.empty()) return segment;
    Index time = useful.front();
    segment.assign(nodes_.size(), -1);
    Index depth = 0;
    while (set > 0) {
      const State& state = table[static_cast<std::size_t>(set) * columns +
                                 static_cast<std::size_t>(time)];
      const Set &to = sets_[static_cast<std::size_t>(set)],
                &from = sets_[static_cast<std::size_t>(state.set)];
      for (std::size_t v = 0; v < nodes_.size(); ++v)
        if (to.has(static_cast<Index>(v)) && !from.has(static_cast<Index>(v)))
          segment[v] = depth;
      ++depth;
      set = state.set;
      time = state.time;
    }
    for (Index& s : segment) s = depth - 1 - s;
    return segment;
  }

  Nodes nodes_;
  std::size_t words_;
  std::vector<std::vector<Index>> after_;
  std::vector<Set> sets_;
  std::int64_t pairs_ = 0;
  bool complete_ = false;
};

}  // namespace memcfg::lower_sets
