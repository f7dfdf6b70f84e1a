// Which forward ops run twice, and what that costs: pure functions over a step.
//
// A choice is a set of dropped ops: their outputs die after the forward phase and the
// op is computed once more just before the first backward op that needs them, so a
// choice recomputes each op at most once. An op that only the backward phase needs is
// then put off instead.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "memcfg/liveness.hpp"
#include "memcfg/pack.hpp"

namespace memcfg::recompute {

using liveness::Dropped;
using liveness::Index;
using liveness::Phase;
using liveness::Sequence;
using liveness::Step;
using packing::Extent;

// By tensor: the op that overwrites it (a persistent tensor in place, no reader
// after it), or the number of ops.
inline std::vector<Index> overwriters(const Step& step) {
  const auto ops = static_cast<Index>(step.ops());
  std::vector<Index> last_reader(step.tensors(), -1), result(step.tensors(), ops);
  for (Index op = 0; op < ops; ++op)
    for (const Index t : step.inputs[op]) last_reader[static_cast<std::size_t>(t)] = op;
  for (Index op = 0; op < ops; ++op) {
    if (step.phase[static_cast<std::size_t>(op)] != Phase::kUpdate) continue;
    const auto pairs = step.pairs[op];
    for (const Index* pair = pairs.first; pair != pairs.last; pair += 2) {
      const auto t = static_cast<std::size_t>(pair[0]);
      if (step.persistent[t] && last_reader[t] == op) result[t] = op;
    }
  }
  return result;
}

// Walks the ops and puts recomputation in. An op that would have to be recomputed
// after one of its parameters has been overwritten is kept instead: it is struck
// from `dropped`, and the walk is to be repeated.
class Walk {
 public:
  explicit Walk(const Step& step) : step_(step), overwriter_(overwriters(step)) {}

  // The sequence of a choice; strikes from `dropped` what cannot be replayed.
  Sequence sequence(Dropped& dropped) {
    while (!attempt(dropped)) {
    }
    strike_unread();
    return sequence_;
  }

 private:
  bool attempt(Dropped& dropped) {
    const auto ops = static_cast<Index>(step_.ops());
    bool legal = true;
    replayed_.assign(step_.ops(), 0);
    sequence_.clear();
    for (Index op = 0; op < ops; ++op) {
      if (step_.phase[static_cast<std::size_t>(op)] == Phase::kBackward) {
        collect(op, dropped);
        for (const Index again : again_) {
          if (!can_replay(again, op)) {
            dropped[static_cast<std::size_t>(again)] = 0;
            legal = false;
          }
        }
        sequence_.insert(sequence_.end(), again_.begin(), again_.end());
      }
      sequence_.push_back(op);
    }
    return legal;
  }

  // Dropped ancestors of `op` that have not been replayed, in topological order.
  void collect(Index op, const Dropped& dropped) {
    again_.clear();
    stack_.assign(1, op);
    while (!stack_.empty()) {
      const Index reader = stack_.back();
      stack_.pop_back();
      for (const Index t : step_.inputs[reader]) {
        const Index source = step_.producer[static_cast<std::size_t>(t)];
        if (source < 0) continue;
        const auto s = static_cast<std::size_t>(source);
        if (!dropped[s] || replayed_[s]) continue;
        replayed_[s] = 1;
        again_.push_back(source);
        stack_.push_back(source);
      }
    }
    std::sort(again_.begin(), again_.end());
  }

  // Leaves out first computations that nothing reads before the second: those ops
  // are put off, not recomputed.
  void strike_unread() {
    read_.assign(step_.tensors(), 0);
    Sequence kept;
    for (auto place = sequence_.rbegin(); place != sequence_.rend(); ++place) {
      bool wanted = false;  // by a reader before the next computation
      for (const Index t : step_.outputs[*place]) {
        wanted = wanted || read_[static_cast<std::size_t>(t)];
        read_[static_cast<std::size_t>(t)] = 0;
      }
      auto& again = replayed_[static_cast<std::size_t>(*place)];
      const bool first = again == 2;
      if (again == 1) again = 2;
      if (first && !wanted) continue;
      for (const Index t : step_.inputs[*place]) read_[static_cast<std::size_t>(t)] = 1;
      kept.push_back(*place);
    }
    sequence_.assign(kept.rbegin(), kept.rend());
  }

  bool can_replay(Index op, Index before) const {
    for (const Index t : step_.inputs[op])
      if (overwriter_[static_cast<std::size_t>(t)] < before) return false;
    return true;
  }

  const Step& step_;
  std::vector<Index> overwriter_;
  std::vector<std::uint8_t> replayed_;  // by op: 1; 2: met on the way back
  std::vector<std::uint8_t> read_;      // by tensor
  Sequence sequence_;
  std::vector<Index> again_, stack_;
};

struct Score {
  Extent load;     // bytes in use at the busiest moment: the least possible peak
  double cost;     // of what is computed again
  Index replayed;  // ops computed again
};

// Scores a choice without placing it; strikes from `dropped` what cannot be replayed.
inline Score score(const Step& step, Dropped& dropped) {
  Walk walk(step);
  const Sequence sequence = walk.sequence(dropped);
  liveness::Lives lives(step, sequence);
  grant_in_place(step, sequence, liveness::InPlace::kEqual, lives);
  const auto table = make_buffers(step, sequence, lives);
  const auto load = load_by_time(table, sequence.size());
  Score result{*std::max_element(load.begin(), load.end()), 0.0, 0};
  std::vector<std::uint8_t> seen(step.ops(), 0);
  for (const Index op : sequence) {
    auto& count = seen[static_cast<std::size_t>(op)];
    if (count) {
      result.cost += step.cost[static_cast<std::size_t>(op)];
      ++result.replayed;
    }
    count = 1;
  }
  return result;
}

// A choice with a place for everything: offsets count from the end of the persistent
// tensors.
struct Schedule {
  Sequence sequence;
  std::vector<liveness::Instance> lives;
  liveness::BufferTable table;
  packing::Packing packing;
};

inline Schedule lay_out(const Step& step,
                        Dropped dropped,
                        liveness::InPlace rule,
                        std::int64_t effort) {
  Schedule result;
  result.sequence = Walk(step).sequence(dropped);
  liveness::Lives lives(step, result.sequence);
  grant_in_place(step, result.sequence, rule, lives);
  result.table = make_buffers(step, result.sequence, lives);
  result.packing = packing::pack(result.table.buffers, effort);
  result.lives = std::move(lives.list);
  return result;
}

}  // namespace memcfg::recompute
