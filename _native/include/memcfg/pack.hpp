// The lowest layout of buffers with fixed lifetimes that is found with some effort.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <utility>
#include <vector>

#include "memcfg/exact_packing.hpp"
#include "memcfg/packing.hpp"
#include "memcfg/sweep.hpp"

namespace memcfg::packing {

// More buffers are left to orders and climb: the search holds all pairs that meet, and
// is as deep as there are buffers.
inline constexpr std::size_t kMostSearched = 4096;

inline constexpr std::int64_t kMostClimbed = 60'000'000;  // comparisons: about 0.2 s

// Of orders of many buffers, whose layouts are looked for one after another, in what
// was looked at: about 2 s.
inline constexpr std::int64_t kMostLooked = 30'000'000;

// Fills `best` with the lowest layout of the orders in time and both fits.
inline void try_sweeps(const Buffers& buffers, Packing& best, Permutation& best_order) {
  for (const Order o : {Order::kStart, Order::kEnd}) {
    const Permutation order = sorted_by(o, buffers);
    for (const Fit fit : {Fit::kFirst, Fit::kBest}) {
      Layout layout = sweep(buffers, order, fit, o == Order::kEnd);
      if (layout.height >= best.layout.height) continue;
      best.layout = std::move(layout);
      best.order = o;
      best.fit = fit;
      best_order = order;
      if (best.layout.height == best.bound) return;
    }
  }
}

// Fills `best` with the lowest layout of all orders and both fits. Many buffers are
// swept first; then other orders are tried for a while.
inline void try_orders(const Buffers& buffers, Packing& best, Permutation& best_order) {
  best.bound = max_load(buffers);
  best.layout.height = std::numeric_limits<Extent>::max();
  const bool many = buffers.size() > Occupancy::kMostListed;
  if (many) try_sweeps(buffers, best, best_order);
  if (best.layout.height == best.bound) return;
  Layout layout;
  Occupancy occupancy(buffers);
  const std::int64_t most =
      many ? kMostLooked : std::numeric_limits<std::int64_t>::max();
  std::int64_t work = 0;
  for (std::int32_t o = 0; o < kOrders && best.layout.height > best.bound; ++o) {
    const bool in_time = o == static_cast<std::int32_t>(Order::kStart) ||
                         o == static_cast<std::int32_t>(Order::kEnd);
    if (many && in_time) continue;
    const Permutation order = sorted_by(static_cast<Order>(o), buffers);
    for (const Fit fit : {Fit::kFirst, Fit::kBest}) {
      const Extent ceiling = best.layout.height - 1;
      place_in_order(buffers, order, fit, ceiling, layout, occupancy, work, most);
      if (work > most) return;
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
  const Permutation order = sorted_by(Order::kStart, buffers);
  result.layout = sweep(buffers, order, Fit::kFirst, false);
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

// Searches within a capacity; what is found becomes the best, or else the floor rises
// where nothing fits.
inline Verdict search_goal(const Buffers& buffers,
                           Extent capacity,
                           std::int64_t effort,
                           const Stop& stop,
                           Packing& best) {
  const Verdict verdict = search_within(buffers, capacity, effort, stop, best);
  if (verdict == Verdict::kTooHigh) best.floor = std::max(best.floor, capacity + 1);
  return verdict;
}

// Searches between a height that does not do with this effort and what was found, until
// three searches gave no answer or one is within `goal`.
inline void search_between(const Buffers& buffers,
                           Extent below,
                           Extent goal,
                           std::int64_t effort,
                           const Stop& stop,
                           Packing& best) {
  below = std::max(below, best.floor - 1);
  for (int open = 0; open < 3 && best.layout.height > goal &&
                     below + 1 < best.layout.height && !stop.now();) {
    const Extent middle = below + (best.layout.height - below) / 2;
    const Verdict verdict = search_goal(buffers, middle, effort, stop, best);
    if (verdict != Verdict::kFits) below = middle;
    open += verdict == Verdict::kUnknown;
  }
}

// The buffers of at least some size, which are placed as if the others were not there;
// those then go into the gaps. A step has a few hundred large tensors and many more
// that are thousands of times smaller: these decide nothing, and a search that places
// them, too, goes through their places in vain.
class LargeFirst {
 public:
  LargeFirst(const Buffers& buffers, Extent least) : buffers_(buffers) {
    for (std::size_t i = 0; i < buffers.size(); ++i) {
      if (buffers[i].size < least) continue;
      indices_.push_back(i);
      large_.push_back(buffers[i]);
    }
    Permutation order;
    try_orders(large_, found_, order);
    found_.floor = found_.bound;
  }

  std::size_t size() const { return indices_.size(); }

  // Lowers the large ones with some effort; if all are then lower, they become the
  // best.
  void run(std::int64_t effort, const Stop& stop, Packing& best) {
    const Extent bound = found_.bound;
    if (found_.layout.height > bound) {
      if (found_.floor <= bound) search_goal(large_, bound, effort, stop, found_);
      search_between(large_, bound, bound, effort / 4, stop, found_);
    }
    best.floor = std::max(best.floor, found_.floor);
    if (found_.layout.height >= best.layout.height) return;
    Layout layout = with_others(best.layout.height - 1);
    if (layout.height >= best.layout.height) return;
    best.layout = std::move(layout);
    best.way = Way::kSearch;
  }

 private:
  // The large ones as they are, the others largest first where they fit lowest.
  Layout with_others(Extent ceiling) const {
    Layout layout;
    layout.offsets.assign(buffers_.size(), 0);
    Occupancy occupancy(buffers_);
    std::vector<std::uint8_t> is_placed(buffers_.size(), 0);
    for (std::size_t k = 0; k < indices_.size(); ++k) {
      const Buffer& b = large_[k];
      const Extent offset = found_.layout.offsets[k];
      layout.offsets[indices_[k]] = offset;
      layout.height = std::max(layout.height, offset + b.size);
      occupancy.add({offset, offset + b.size, b.lower, b.upper});
      is_placed[indices_[k]] = 1;
    }
    Permutation others = sorted_by(Order::kSize, buffers_);
    others.erase(std::remove_if(others.begin(),
                                others.end(),
                                [&](std::int32_t i) {
                                  return is_placed[static_cast<std::size_t>(i)];
                                }),
                 others.end());
    std::int64_t work = 0;
    place_more(
        buffers_, others, Fit::kFirst, ceiling, layout, occupancy, work, kMostLooked);
    return layout;
  }

  const Buffers& buffers_;
  std::vector<std::size_t> indices_;
  Buffers large_;
  Packing found_;  // of the large ones
};

// By what the bound is divided for the least sizes that count as large, one after the
// other. Measured on 87 schedules of six networks, most of which recompute: they are
// placed 0.15 % above their bounds in the mean, and 3 % by searches and climbs of all
// buffers, which take twice as long.
inline constexpr Extent kParts[] = {30, 100, 300, 1000};

// The lowest layout that is found: of all orders; by a search within `goal`, which is
// the bound if it is lower; by searches that place large buffers first; and, if none is
// small or `effort` allows more than a climb, by a climb, and by searches between what
// is known not to do and what was found. All of that but the climb is done with a 64th
// of `effort`, an 8th and all of it, since where one height takes for ever a slightly
// larger one is often found at once. `effort` is the comparisons of the first search,
// of the climb, which takes at most kMostClimbed, and four times those of the others. A
// layout within `goal` is good enough.
inline Packing pack(const Buffers& buffers,
                    std::int64_t effort,
                    Extent goal = 0,
                    const Stop& stop = {}) {
  Packing best;
  Permutation order;
  try_orders(buffers, best, order);
  best.floor = best.bound;
  goal = std::max(goal, best.bound);
  const auto is_done = [&] {
    return best.layout.height <= std::max(goal, best.floor) || stop.now();
  };
  if (best.layout.height <= goal) return best;
  std::vector<LargeFirst> choices;
  for (const Extent part : kParts) {
    LargeFirst choice(buffers, std::max<Extent>(best.bound / part, 1));
    const std::size_t fewer = choices.empty() ? 0 : choices.back().size();
    if (fewer < choice.size() && choice.size() < buffers.size())
      choices.push_back(std::move(choice));
  }
  const bool is_whole = choices.empty() || effort > kMostClimbed;
  Packing climbed = best;
  for (const std::int64_t share : {64, 8, 1}) {
    if (!is_done() && best.floor <= goal && (is_whole || share > 1))
      search_goal(buffers, goal, effort / share, stop, best);
    for (LargeFirst& choice : choices)
      if (!is_done()) choice.run(effort / share, stop, best);
    if (!is_whole || best.layout.height <= goal) continue;
    if (share == 64) {
      climb(buffers, std::move(order), std::min(effort, kMostClimbed), climbed);
      if (climbed.layout.height < best.layout.height) {
        best.layout = std::move(climbed.layout);
        best.way = climbed.way;
      }
    }
    search_between(buffers, goal, goal, effort / share / 4, stop, best);
  }
  return best;
}

}  // namespace memcfg::packing
