// The best of several orders, then a climb from it: pure, deterministic, counted in
// work instead of seconds.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "memcfg/packing.hpp"

namespace memcfg::packing {

struct Packing {
  Layout layout;
  Extent bound = 0;  // max_load of the buffers
  Order order = Order::kSize;
  Fit fit = Fit::kFirst;
  bool climbed = false;  // the climb improved on the order
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
  std::vector<Placed> placed;
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
    place_in_order(buffers, next, best.fit, current.height, trial, placed, work);
    if (trial.height > current.height) continue;
    current = trial;
    order.swap(next);
    if (current.height >= best.layout.height) continue;
    best.layout = current;
    best.climbed = true;
  }
}

// The lowest of all orders with both fits; when that is above the bound, a climb of
// at most `effort` comparisons.
inline Packing pack(const Buffers& buffers, std::int64_t effort) {
  Packing best;
  best.bound = max_load(buffers);
  best.layout.height = std::numeric_limits<Extent>::max();
  Permutation best_order;
  Layout layout;
  std::vector<Placed> placed;
  std::int64_t work = 0;
  for (std::int32_t o = 0; o < kOrders && best.layout.height > best.bound; ++o) {
    const Permutation order = sorted_by(static_cast<Order>(o), buffers);
    for (const Fit fit : {Fit::kFirst, Fit::kBest}) {
      const Extent ceiling = best.layout.height - 1;
      place_in_order(buffers, order, fit, ceiling, layout, placed, work);
      if (layout.height > ceiling) continue;
      best.layout = layout;
      best.order = static_cast<Order>(o);
      best.fit = fit;
      best_order = order;
      if (best.layout.height == best.bound) break;
    }
  }
  if (best.layout.height > best.bound) climb(buffers, best_order, effort, best);
  return best;
}

}  // namespace memcfg::packing
