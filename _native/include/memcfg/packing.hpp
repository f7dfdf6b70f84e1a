// Offsets for buffers with fixed lifetimes (dynamic storage allocation).
//
// Pure functions over arrays of numbers: the same buffers give the same offsets on
// every machine, so nothing here looks at a clock; effort is counted in work.
// `pack.hpp` puts them together. Invariant of every result: two buffers whose lifetimes
// meet do not overlap, and max_load(buffers) <= height.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <numeric>
#include <utility>
#include <vector>

#include "memcfg/buffers.hpp"
#include "memcfg/occupancy.hpp"

namespace memcfg::packing {

enum class Fit : std::int32_t {
  kFirst = 0,  // the lowest gap that is large enough
  kBest = 1,   // the tightest gap; the lowest of equals
};

// Where `b` goes between the placed buffers that live at the same time.
inline Extent find_gap(const Buffer& b, const std::vector<Placed>& placed, Fit fit) {
  Extent top = 0, best = -1, best_slack = std::numeric_limits<Extent>::max();
  for (const Placed& p : placed) {
    if (p.upper <= b.lower || b.upper <= p.lower || p.end <= top) continue;
    const Extent slack = p.offset - top - b.size;
    if (slack >= 0 && fit == Fit::kFirst) return top;
    if (slack >= 0 && slack < best_slack) {
      best = top;
      best_slack = slack;
    }
    top = p.end;
  }
  return best >= 0 ? best : top;
}

struct Layout {
  std::vector<Extent> offsets;  // by buffer index
  Extent height = 0;
};

// Places buffers one after another beside what a layout has and its occupancy knows.
// Gives up, with a height above `ceiling` and offsets without meaning, as soon as a
// buffer would end above `ceiling`, or `work`, which grows by what was looked at,
// exceeds `most`.
inline void place_more(const Buffers& buffers,
                       const Permutation& order,
                       Fit fit,
                       Extent ceiling,
                       Layout& layout,
                       Occupancy& occupancy,
                       std::int64_t& work,
                       std::int64_t most = std::numeric_limits<std::int64_t>::max()) {
  for (const std::int32_t index : order) {
    const Buffer& b = buffers[static_cast<std::size_t>(index)];
    if (b.size == 0) continue;  // no bytes: any offset will do
    ++work;
    const std::vector<Placed>& placed = occupancy.around(b.lower, b.upper, work);
    if (work > most) layout.height = std::numeric_limits<Extent>::max();
    if (layout.height > ceiling) return;
    const Extent offset = find_gap(b, placed, fit);
    layout.offsets[static_cast<std::size_t>(index)] = offset;
    layout.height = std::max(layout.height, offset + b.size);
    if (layout.height > ceiling) return;
    occupancy.add({offset, offset + b.size, b.lower, b.upper});
  }
}

// Places the buffers one after another, as `place_more` does where there is nothing.
// `occupancy` is made for these buffers.
inline void place_in_order(
    const Buffers& buffers,
    const Permutation& order,
    Fit fit,
    Extent ceiling,
    Layout& layout,
    Occupancy& occupancy,
    std::int64_t& work,
    std::int64_t most = std::numeric_limits<std::int64_t>::max()) {
  occupancy.clear();
  layout.offsets.assign(buffers.size(), 0);
  layout.height = 0;
  place_more(buffers, order, fit, ceiling, layout, occupancy, work, most);
}

enum class Order : std::int32_t {
  kSize = 0,       // largest first
  kArea = 1,       // size x lifetime, largest first
  kLifetime = 2,   // longest first
  kStart = 3,      // earliest start first, then longest
  kEnd = 4,        // latest end first, then longest
  kConflicts = 5,  // most bytes alive at some time of its life first
};
inline constexpr std::int32_t kOrders = 6;

// For each buffer, the sum of the sizes of all buffers (itself too) that meet it:
// those that start before its end, less those that end before its start.
inline std::vector<double> conflict_bytes(const Buffers& buffers) {
  std::vector<std::pair<Time, double>> starts, ends;
  for (const Buffer& b : buffers) {
    starts.emplace_back(b.lower, static_cast<double>(b.size));
    ends.emplace_back(b.upper, static_cast<double>(b.size));
  }
  const auto accumulate = [](std::vector<std::pair<Time, double>>& list) {
    std::sort(list.begin(), list.end());
    double sum = 0;
    for (auto& entry : list) entry.second = sum += entry.second;
  };
  accumulate(starts);
  accumulate(ends);
  // Sum over the entries whose time is < `time` (or <= with the next integer).
  const auto before = [](const std::vector<std::pair<Time, double>>& list, Time time) {
    const auto at =
        std::lower_bound(list.begin(), list.end(), time, [](const auto& e, Time t) {
          return e.first < t;
        });
    return at == list.begin() ? 0.0 : std::prev(at)->second;
  };
  std::vector<double> sums;
  for (const Buffer& b : buffers)
    sums.push_back(before(starts, b.upper) - before(ends, b.lower + 1));
  return sums;
}

// The permutation of an order. Ties go to the larger, then the longer-lived, then
// the first buffer, so the result depends on nothing else.
inline Permutation sorted_by(Order order, const Buffers& buffers) {
  const std::size_t n = buffers.size();
  std::vector<double> key(n);
  if (order == Order::kConflicts) key = conflict_bytes(buffers);
  for (std::size_t i = 0; i < n; ++i) {
    const Buffer& b = buffers[i];
    const double life = static_cast<double>(b.upper) - static_cast<double>(b.lower);
    const double size = static_cast<double>(b.size);
    if (order == Order::kSize) key[i] = size;
    if (order == Order::kArea) key[i] = size * life;
    if (order == Order::kLifetime) key[i] = life;
    if (order == Order::kStart) key[i] = -static_cast<double>(b.lower);
    if (order == Order::kEnd) key[i] = static_cast<double>(b.upper);
  }
  const bool by_time = order == Order::kStart || order == Order::kEnd;
  Permutation result(n);
  std::iota(result.begin(), result.end(), 0);
  std::sort(result.begin(), result.end(), [&](std::int32_t x, std::int32_t y) {
    const auto i = static_cast<std::size_t>(x), j = static_cast<std::size_t>(y);
    if (key[i] != key[j]) return key[i] > key[j];
    const Time life_i = buffers[i].upper - buffers[i].lower;
    const Time life_j = buffers[j].upper - buffers[j].lower;
    if (by_time && life_i != life_j) return life_i > life_j;
    if (buffers[i].size != buffers[j].size) return buffers[i].size > buffers[j].size;
    if (life_i != life_j) return life_i > life_j;
    return i < j;
  });
  return result;
}

// What made a layout.
enum class Way : std::int32_t {
  kOrder = 0,   // an order and a fit
  kClimb = 1,   // those, changed by the climb
  kSearch = 2,  // the complete search
};

struct Packing {
  Layout layout;
  Extent bound = 0;  // max_load of the buffers
  Extent floor = 0;  // no placement is lower: the bound, or what a search has shown
  Order order = Order::kSize;
  Fit fit = Fit::kFirst;
  Way way = Way::kOrder;
};

// splitmix64 (Steele, Lea, Flood 2014): a fixed sequence, not a source of chance.
class Sequence {
 public:
  explicit Sequence(std::uint64_t seed) : state_(seed) {}
  // A number in [0, bound). Pre: bound > 0. The bias is without importance here.
  std::size_t below(std::size_t bound) {
    std::uint64_t z = (state_ += 0x9E3779B97F4A7C15ull);
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ull;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBull;
    return static_cast<std::size_t>((z ^ (z >> 31)) % bound);
  }

 private:
  std::uint64_t state_;
};

// Improves an order by moving one buffer to an earlier place, mostly one that reaches
// the top and in a quarter of the tries any: the hill climb of TVM's unified static
// memory planner, with insertion for exchange. Equal heights are accepted, so that
// plateaus are crossed. Stops at the bound or when `effort` comparisons are spent. Pre:
// best.layout belongs to `order`, `fit`.
inline void climb(const Buffers& buffers,
                  Permutation order,
                  std::int64_t effort,
                  Packing& best) {
  Sequence chance(buffers.size());
  Layout current = best.layout, trial;
  Permutation next;
  Occupancy occupancy(buffers);
  std::vector<std::size_t> tops;  // positions in `order` of buffers that reach the top
  for (std::int64_t work = 0; work < effort && best.layout.height > best.bound;) {
    tops.clear();
    for (std::size_t k = 0; k < order.size(); ++k) {
      const auto i = static_cast<std::size_t>(order[k]);
      if (buffers[i].size > 0 && current.offsets[i] + buffers[i].size == current.height)
        tops.push_back(k);
    }
    const bool any = chance.below(4) == 0;
    const std::size_t from =
        any ? chance.below(order.size()) : tops[chance.below(tops.size())];
    work += static_cast<std::int64_t>(order.size());
    if (from == 0) continue;
    const std::size_t to = chance.below(from);
    next = order;
    const auto start = next.begin();
    std::rotate(start + static_cast<std::ptrdiff_t>(to),
                start + static_cast<std::ptrdiff_t>(from),
                start + static_cast<std::ptrdiff_t>(from) + 1);
    place_in_order(buffers, next, best.fit, current.height, trial, occupancy, work);
    if (trial.height > current.height) continue;
    current = trial;
    order.swap(next);
    if (current.height >= best.layout.height) continue;
    best.layout = current;
    best.way = Way::kClimb;
  }
}

}  // namespace memcfg::packing
