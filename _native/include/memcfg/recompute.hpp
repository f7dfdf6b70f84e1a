// Which forward ops run twice: the schedule of a choice.
//
// A choice is a set of dropped ops: their outputs die after the forward phase and the
// op is computed once more just before the first backward or update op that needs them,
// so a choice recomputes each op at most once. An op that only those need is then put
// off instead.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "memcfg/liveness.hpp"
#include "memcfg/schedule.hpp"

namespace memcfg::recompute {

using liveness::Dropped;
using liveness::Index;
using liveness::Phase;
using liveness::Sequence;
using liveness::Step;

// Walks the ops and puts recomputation in. An op that would have to be recomputed
// after one of its parameters has been overwritten is kept instead: it is struck
// from `dropped`, and the walk is to be repeated.
class Walk {
 public:
  explicit Walk(const Step& step)
      : step_(step), overwriter_(schedule::overwriters(step)) {}

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
      if (step_.is_late(op)) {
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

// The schedule of a choice; strikes from `dropped` what cannot be replayed.
inline Sequence sequence(const Step& step, Dropped& dropped) {
  return Walk(step).sequence(dropped);
}

}  // namespace memcfg::recompute
