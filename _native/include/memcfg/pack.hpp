// The lowest layout of buffers with fixed lifetimes that is found with some effort.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <utility>

#include "memcfg/exact_packing.hpp"
#include "memcfg/packing.hpp"

namespace memcfg::packing {

// More buffers are left to orders and climb: the search holds all pairs that meet, and
// is as deep as there are buffers.
inline constexpr std::size_t kMostSearched = 4096;

inline constexpr std::int64_t kMostClimbed = 60'000'000;  // comparisons: about 0.2 s

// Fills `best` with the lowest layout of all orders and both fits.
inline void try_orders(const Buffers& buffers, Packing& best, Permutation& best_order) {
  best.bound = max_load(buffers);
  best.layout.height = std::numeric_limits<Extent>::max();
  Layout layout;
  Occupancy occupancy(buffers);
  std::int64_t work = 0;
  for (std::int32_t o = 0; o < kOrders && best.layout.height > best.bound; ++o) {
    const Permutation order = sorted_by(static_cast<Order>(o), buffers);
    for (const Fit fit : {Fit::kFirst, Fit::kBest}) {
      const Extent ceiling = best.layout.height - 1;
      place_in_order(buffers, order, fit, ceiling, layout, occupancy, work);
      if (layout.height > ceiling) continue;
      best.layout = layout;
      best.order = static_cast<Order>(o);
      best.fit = fit;
      best_order = order;
      if (best.layout.height == best.bound) break;
    }
  }
}

// The layout of an allocator that does not know what follows: the lowest gap for each
// buffer when its life starts. `pack` finds none that is higher.
inline Packing first_fit(const Buffers& buffers) {
  Packing result;
  result.bound = result.floor = max_load(buffers);
  result.order = Order::kStart;
  result.fit = Fit::kFirst;
  Occupancy occupancy(buffers);
  std::int64_t work = 0;
  place_in_order(buffers,
                 sorted_by(Order::kStart, buffers),
                 Fit::kFirst,
                 std::numeric_limits<Extent>::max(),
                 result.layout,
                 occupancy,
                 work);
  return result;
}

// Searches for a layout within `capacity`, below the best one's height; what is found
// becomes the best.
inline Verdict search_within(const Buffers& buffers,
                             Extent capacity,
                             std::int64_t effort,
                             const Stop& stop,
                             Packing& best) {
  std::vector<std::size_t> indices;  // of those that have bytes
  Buffers searched;
  for (std::size_t i = 0; i < buffers.size(); ++i) {
    if (buffers[i].size == 0) continue;
    indices.push_back(i);
    searched.push_back(buffers[i]);
  }
  if (searched.size() > kMostSearched) return Verdict::kUnknown;
  std::vector<Extent> offsets;
  const Verdict verdict = ExactSearch(searched, capacity).run(effort, stop, offsets);
  if (verdict != Verdict::kFits) return verdict;
  best.layout.offsets.assign(buffers.size(), 0);
  best.layout.height = 0;
  for (std::size_t k = 0; k < indices.size(); ++k) {
    best.layout.offsets[indices[k]] = offsets[k];
    best.layout.height = std::max(best.layout.height, offsets[k] + searched[k].size);
  }
  best.way = Way::kSearch;
  return verdict;
}

// The lowest layout that is found: of all orders; by the search within `goal`, which is
// the bound if it is lower; by a climb; and by searches between what is known not to do
// and what was found, until three of them gave no answer. All of that but the climb is
// done with a 64th of `effort`, an 8th and all of it, since where one height takes for
// ever a slightly larger one is often found at once. `effort` is the comparisons of the
// search within `goal`, of the climb, which takes at most kMostClimbed, and four times
// those of the others. A layout within `goal` is good enough.
inline Packing pack(const Buffers& buffers,
                    std::int64_t effort,
                    Extent goal = 0,
                    const Stop& stop = {}) {
  Packing best;
  Permutation order;
  try_orders(buffers, best, order);
  best.floor = best.bound;
  goal = std::max(goal, best.bound);
  Extent below = 0;  // the highest that did not do with this effort
  const auto search = [&](Extent capacity, std::int64_t comparisons) {
    const Verdict verdict = search_within(buffers, capacity, comparisons, stop, best);
    if (verdict != Verdict::kFits) below = capacity;
    if (verdict == Verdict::kTooHigh) best.floor = capacity + 1;
    return verdict;
  };
  for (const std::int64_t share : {64, 8, 1}) {
    below = best.floor - 1;
    if (best.layout.height > goal && below < goal) search(goal, effort / share);
    if (best.layout.height > goal && share == 64)
      climb(buffers, std::move(order), std::min(effort, kMostClimbed), best);
    for (int open = 0; open < 3 && best.layout.height > goal &&
                       below + 1 < best.layout.height && !stop.now();) {
      const Extent middle = below + (best.layout.height - below) / 2;
      open += search(middle, effort / share / 4) == Verdict::kUnknown;
    }
  }
  return best;
}

}  // namespace memcfg::packing
