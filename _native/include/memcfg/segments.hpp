// Where to cut the forward phase into segments (Chen et al. 2016, arXiv:1604.06174).
//
// Owns the additive model of a cut forward phase and two searches over it: Algorithm
// 3's greedy budget, and an exact minimax over uneven segments. Both only propose;
// the exact simulation of the whole step judges.
#pragma once

#include <algorithm>
#include <cstddef>
#include <limits>
#include <vector>

#include "memcfg/recompute.hpp"

namespace memcfg::recompute {

using packing::Extent;

// The forward phase as positions 0 ... n - 1, one a forward op.
//
// While the backward ops of the segment (p, q] run, there live: what was kept for
// the cuts up to p; what the backward phase reads of the segment's own outputs; and
// gradients, `working`, at most the largest of the segment's.
struct Forward {
  std::vector<Index> ops;           // by position
  std::vector<Extent> interior;     // bytes of its outputs that backward ops read
  std::vector<Extent> whole;        // bytes to keep when the op is kept
  std::vector<Index> last_read;     // last position that reads one of its outputs
  std::vector<Extent> working;      // other bytes while its backward ops run
  std::vector<std::uint8_t> fixed;  // can't be replayed: kept wherever the cuts are
  std::size_t size() const { return ops.size(); }
};

// Bytes of gradients and scratch while each backward op runs, charged to the earliest
// forward op whose outputs it reads; a backward op that reads none is charged where
// the one before it was.
inline void charge_working(const Step& step,
                           const std::vector<Index>& position,
                           Forward& forward) {
  Sequence sequence(step.ops());
  for (std::size_t i = 0; i < sequence.size(); ++i) sequence[i] = static_cast<Index>(i);
  liveness::Lives lives(step, sequence);
  grant_in_place(step, sequence, liveness::InPlace::kEqual, lives);
  auto table = make_buffers(step, sequence, lives);
  for (std::size_t i = 0; i < lives.list.size(); ++i) {  // leave forward buffers out
    const Index from = step.producer[static_cast<std::size_t>(lives.list[i].tensor)];
    const bool ahead = from < 0 || position[static_cast<std::size_t>(from)] >= 0;
    if (ahead && table.buffer[i] >= 0 && lives.list[i].source < 0)
      table.buffers[static_cast<std::size_t>(table.buffer[i])].size = 0;
  }
  table.base = 0;
  const auto load = load_by_time(table, sequence.size());
  auto at = static_cast<Index>(forward.size()) - 1;
  for (std::size_t op = 0; op < step.ops(); ++op) {
    if (step.phase[op] == Phase::kForward || at < 0) continue;
    Index earliest = static_cast<Index>(forward.size());
    for (const Index t : step.inputs[static_cast<Index>(op)]) {
      const Index from = step.producer[static_cast<std::size_t>(t)];
      if (from < 0 || position[static_cast<std::size_t>(from)] < 0) continue;
      earliest = std::min(earliest, position[static_cast<std::size_t>(from)]);
    }
    if (earliest < static_cast<Index>(forward.size())) at = earliest;
    Extent& highest = forward.working[static_cast<std::size_t>(at)];
    highest = std::max(highest, load[op + 1]);
  }
}

inline Forward make_forward(const Step& step) {
  Forward forward;
  std::vector<Index> position(step.ops(), -1);
  for (std::size_t op = 0; op < step.ops(); ++op) {
    if (step.phase[op] != Phase::kForward) continue;
    position[op] = static_cast<Index>(forward.ops.size());
    forward.ops.push_back(static_cast<Index>(op));
  }
  std::vector<Index> last(step.tensors(), -1);         // last reading position
  std::vector<std::uint8_t> later(step.tensors(), 0);  // read by later phases
  for (std::size_t op = 0; op < step.ops(); ++op) {
    const bool late = step.is_late(static_cast<Index>(op));
    for (const Index t : step.inputs[static_cast<Index>(op)]) {
      const auto i = static_cast<std::size_t>(t);
      if (position[op] >= 0) last[i] = position[op];
      if (late) later[i] = 1;
    }
  }
  for (const Index op : forward.ops) {
    Extent interior = 0, whole = 0;
    Index reader = -1;
    for (const Index t : step.outputs[op]) {
      const auto i = static_cast<std::size_t>(t);
      if (later[i]) interior += step.bytes[i];
      if (later[i] || last[i] >= 0) whole += step.bytes[i];
      reader = std::max(reader, last[i]);
    }
    forward.interior.push_back(interior);
    forward.whole.push_back(whole);
    forward.last_read.push_back(reader);
    forward.fixed.push_back(!step.droppable[static_cast<std::size_t>(op)]);
  }
  forward.working.assign(forward.size(), 0);
  charge_working(step, position, forward);
  return forward;
}

using Cuts = std::vector<Index>;  // a cut c ends a segment after position c; ascending

inline constexpr Index kMostCuts = 8192;

// The minimax over uneven segments: cuts under which no segment needs more than
// `budget` bytes, with the least kept. Empty and `found` false when there are none.
//
// kept(q) = min over p of kept(p) + crossing(p, q], subject to
// kept(p) + interior(p, q] + working(p, q] <= budget. O(n^2) at most; of more than
// `kMostCuts` positions only so many, at equal distances, can be cuts.
inline Cuts uneven_cuts(const Forward& forward, Extent budget, bool& found) {
  const auto n = static_cast<Index>(forward.size());
  constexpr Extent kNone = std::numeric_limits<Extent>::max();
  std::vector<Extent> kept(forward.size() + 1, kNone);  // by cut + 1
  std::vector<Index> from(forward.size() + 1, -1);
  kept[0] = 0;
  const Index stride = n / kMostCuts + 1;
  for (Index q = 0; q < n; ++q) {
    if ((q + 1) % stride != 0 && q + 1 < n) continue;
    Extent crossing = 0, interior = 0, working = 0;
    for (Index p = q; p >= 0; --p) {  // the segment is p ... q
      const auto f = static_cast<std::size_t>(p);
      interior += forward.interior[f];
      working = std::max(working, forward.working[f]);
      if (interior + working > budget) break;
      if (forward.last_read[f] > q || forward.fixed[f]) crossing += forward.whole[f];
      if (kept[f] == kNone || kept[f] + interior + working > budget) continue;
      Extent& best = kept[static_cast<std::size_t>(q) + 1];
      if (kept[f] + crossing >= best) continue;
      best = kept[f] + crossing;
      from[static_cast<std::size_t>(q) + 1] = p;
    }
  }
  found = kept[forward.size()] != kNone;
  Cuts cuts;
  if (!found) return cuts;
  for (Index q = from[forward.size()]; q > 0; q = from[static_cast<std::size_t>(q)])
    cuts.push_back(q - 1);
  std::reverse(cuts.begin(), cuts.end());
  return cuts;
}

// Algorithm 3: a segment ends as soon as its outputs exceed the budget.
inline Cuts budget_cuts(const Forward& forward, Extent budget) {
  Cuts cuts;
  Extent sum = 0;
  for (std::size_t f = 0; f + 1 < forward.size(); ++f) {
    sum += forward.whole[f];
    if (sum <= budget) continue;
    cuts.push_back(static_cast<Index>(f));
    sum = 0;
  }
  return cuts;
}

// What the cuts drop: in every segment but the last, the ops whose outputs no later
// segment's forward ops read.
inline Dropped dropped_by(const Step& step, const Forward& forward, const Cuts& cuts) {
  Dropped dropped(step.ops(), 0);
  std::size_t f = 0;
  for (const Index cut : cuts)
    for (; f <= static_cast<std::size_t>(cut); ++f)
      if (forward.last_read[f] <= cut && !forward.fixed[f])
        dropped[static_cast<std::size_t>(forward.ops[f])] = 1;
  return dropped;
}

}  // namespace memcfg::recompute
