// Schedules in general: any order of the ops, each as often as is wanted.
//
// A schedule is a sequence of ops that a step can run: pure functions tell whether it
// is one, what it needs and costs, and where its buffers may lie. The value of a tensor
// lives from a computation of its op to the last read before the next.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "memcfg/liveness.hpp"
#include "memcfg/pack.hpp"

namespace memcfg::schedule {

using liveness::Index;
using liveness::Phase;
using liveness::Sequence;
using liveness::Step;
using packing::Extent;

// By tensor: the op that overwrites it, or the number of ops. An op of the update phase
// overwrites a tensor of the state if it declares the pair and is its last reader in
// the step's own order; the new value belongs to the state, too.
inline std::vector<Index> overwriters(const Step& step) {
  const auto ops = static_cast<Index>(step.ops());
  std::vector<Index> last_reader(step.tensors(), -1), result(step.tensors(), ops);
  for (Index op = 0; op < ops; ++op)
    for (const Index t : step.inputs[op]) last_reader[static_cast<std::size_t>(t)] = op;
  std::vector<std::uint8_t> state(step.persistent), renewed(step.tensors(), 0);
  for (Index op = 0; op < ops; ++op) {
    if (step.phase[static_cast<std::size_t>(op)] != Phase::kUpdate) continue;
    const auto pairs = step.pairs[op];
    for (const Index* pair = pairs.first; pair != pairs.last; pair += 2) {
      const auto from = static_cast<std::size_t>(pair[0]);
      const auto to = static_cast<std::size_t>(pair[1]);
      if (!state[from] || step.keep[from] || last_reader[from] != op) continue;
      if (result[from] < ops || renewed[to] || step.bytes[to] > step.bytes[from])
        continue;
      result[from] = op;
      renewed[to] = state[to] = 1;
    }
  }
  return result;
}

// What is wrong with a sequence: the first fault, at a place of it.
struct Fault {
  enum class Kind : std::int32_t {
    kNone = 0,
    kUnknown = 1,      // there is no such op
    kAgain = 2,        // the op may not be computed again
    kUnread = 3,       // it reads a tensor that was not computed yet
    kOverwritten = 4,  // it reads a tensor whose update has taken its buffer
    kEarly = 5,        // an update before the forward phase has ended
    kMissing = 6,      // the op is never computed
  };
  Kind kind = Kind::kNone;
  Index place = -1;   // in the sequence; its length for an op that is missing
  Index op = -1;      // the op at that place, or the one that is missing
  Index tensor = -1;  // the one that it cannot read, or -1
};

inline Fault find_fault(const Step& step, const Sequence& sequence) {
  using Kind = Fault::Kind;
  const auto overwriter = overwriters(step);
  const auto ops = static_cast<Index>(step.ops());
  std::vector<std::uint8_t> done(step.ops(), 0);
  std::ptrdiff_t forward =
      std::count(step.phase.begin(), step.phase.end(), Phase::kForward);
  for (std::size_t place = 0; place < sequence.size(); ++place) {
    const Index op = sequence[place];
    const auto at = static_cast<Index>(place);
    if (op < 0 || op >= ops) return {Kind::kUnknown, at, op, -1};
    const auto o = static_cast<std::size_t>(op);
    if (done[o] && !step.repeatable[o]) return {Kind::kAgain, at, op, -1};
    for (const Index t : step.inputs[op]) {
      const Index maker = step.producer[static_cast<std::size_t>(t)];
      if (maker >= 0 && !done[static_cast<std::size_t>(maker)])
        return {Kind::kUnread, at, op, t};
      const Index taker = overwriter[static_cast<std::size_t>(t)];
      if (taker < ops && done[static_cast<std::size_t>(taker)])
        return {Kind::kOverwritten, at, op, t};
    }
    if (step.phase[o] == Phase::kUpdate && forward > 0)
      return {Kind::kEarly, at, op, -1};
    if (!done[o] && step.phase[o] == Phase::kForward) --forward;
    done[o] = 1;
  }
  const auto missing = std::find(done.begin(), done.end(), 0);
  if (missing == done.end()) return {};
  return {Kind::kMissing,
          static_cast<Index>(sequence.size()),
          static_cast<Index>(missing - done.begin()),
          -1};
}

struct Score {
  Extent load;     // bytes in use at the busiest moment: the least possible peak
  double cost;     // of what is computed again
  Index replayed;  // computations beyond the first of each op
};

// Scores a schedule without placing it.
inline Score score(const Step& step, const Sequence& sequence) {
  liveness::Lives lives(step, sequence);
  grant_in_place(step, sequence, liveness::InPlace::kEqual, lives);
  const auto table = make_buffers(step, sequence, lives);
  const auto load = load_by_time(table, sequence.size());
  Score result{*std::max_element(load.begin(), load.end()), 0.0, 0};
  std::vector<std::uint8_t> seen(step.ops(), 0);
  for (const Index op : sequence) {
    auto& again = seen[static_cast<std::size_t>(op)];
    if (again) {
      result.cost += step.cost[static_cast<std::size_t>(op)];
      ++result.replayed;
    }
    again = 1;
  }
  return result;
}

// A schedule with a place for everything: offsets count from the end of the persistent
// tensors.
struct Placed {
  std::vector<liveness::Instance> lives;
  liveness::BufferTable table;
  packing::Packing packing;
};

// Lays a schedule out with `place`, a function from buffers to their packing.
template <typename Place>
Placed lay_out_by(const Step& step,
                  const Sequence& sequence,
                  liveness::InPlace rule,
                  const Place& place) {
  Placed result;
  liveness::Lives lives(step, sequence);
  grant_in_place(step, sequence, rule, lives);
  result.table = make_buffers(step, sequence, lives);
  result.packing = place(result.table.buffers);
  result.lives = std::move(lives.list);
  return result;
}

inline Placed lay_out(const Step& step,
                      const Sequence& sequence,
                      liveness::InPlace rule,
                      std::int64_t effort) {
  return lay_out_by(step, sequence, rule, [effort](const packing::Buffers& buffers) {
    return packing::pack(buffers, effort);
  });
}

inline Placed lay_out_first_fit(const Step& step,
                                const Sequence& sequence,
                                liveness::InPlace rule) {
  return lay_out_by(step, sequence, rule, packing::first_fit);
}

}  // namespace memcfg::schedule
