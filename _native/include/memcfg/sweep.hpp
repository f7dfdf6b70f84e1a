// Offsets for many buffers, chosen as time goes by.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <iterator>
#include <limits>
#include <map>
#include <queue>
#include <set>
#include <utility>
#include <vector>

#include "memcfg/packing.hpp"

namespace memcfg::packing {

// The free bytes at one time: gaps between what lives then, the last without end.
// Invariant: `lengths_` and `ranked_` hold the same gaps, of which no two touch.
class FreeGaps {
 public:
  explicit FreeGaps(Fit fit) : fit_(fit) { add(0, kEndless); }

  // Takes the gap that `find_gap` takes by this fit; gives its offset.
  Extent take(Extent size) {
    const Extent offset =
        fit_ == Fit::kBest ? ranked_.lower_bound({size, 0})->second : lowest(size);
    const Extent length = lengths_.at(offset);
    erase(offset, length);
    if (length > size)
      add(offset + size, length == kEndless ? kEndless : length - size);
    return offset;
  }

  void give(Extent offset, Extent size) {
    const auto after = lengths_.lower_bound(offset);
    if (after != lengths_.begin()) {
      const auto [start, length] = *std::prev(after);
      if (start + length == offset) {
        erase(start, length);
        offset = start;
        size += length;
      }
    }
    const auto next = lengths_.lower_bound(offset);
    if (next != lengths_.end() && next->first == offset + size) {
      const auto [start, length] = *next;
      erase(start, length);
      size = length == kEndless ? kEndless : size + length;
    }
    add(offset, size);
  }

 private:
  static constexpr Extent kEndless = std::numeric_limits<Extent>::max();
  static constexpr Extent kClasses = 63;

  // The number of bits of a length.
  static Extent class_of(Extent length) {
    Extent bits = 0;
    for (; length > 0; length >>= 1) ++bits;
    return bits;
  }

  // Longer classes have gaps that are long enough; in its own some are.
  Extent lowest(Extent size) const {
    Extent best = kEndless;
    const Extent own = class_of(size);
    for (auto it = ranked_.lower_bound({own, 0});
         it != ranked_.end() && it->first == own && it->second < best;
         ++it)
      if (lengths_.at(it->second) >= size) best = it->second;
    for (Extent other = own + 1; other <= kClasses; ++other) {
      const auto it = ranked_.lower_bound({other, 0});
      if (it == ranked_.end()) break;
      other = it->first;
      best = std::min(best, it->second);
    }
    return best;
  }

  std::pair<Extent, Extent> rank(Extent offset, Extent length) const {
    return {fit_ == Fit::kBest ? length : class_of(length), offset};
  }

  void add(Extent offset, Extent length) {
    lengths_.emplace(offset, length);
    ranked_.insert(rank(offset, length));
  }

  void erase(Extent offset, Extent length) {
    lengths_.erase(offset);
    ranked_.erase(rank(offset, length));
  }

  const Fit fit_;
  std::map<Extent, Extent> lengths_;            // by offset
  std::set<std::pair<Extent, Extent>> ranked_;  // length, or its class, and offset
};

// The layout of `place_in_order`, usually in n log n. Pre: `order` is that of kStart
// or, with `backward`, kEnd: all that was placed and meets a buffer lives when it
// starts, or when it ends.
inline Layout sweep(const Buffers& buffers,
                    const Permutation& order,
                    Fit fit,
                    bool backward) {
  Layout layout;
  layout.offsets.assign(buffers.size(), 0);
  FreeGaps gaps(fit);
  using End = std::pair<Time, std::int32_t>;
  std::priority_queue<End, std::vector<End>, std::greater<>> ends;
  for (const std::int32_t index : order) {
    const Buffer& b = buffers[static_cast<std::size_t>(index)];
    if (b.size == 0) continue;
    const Time start = backward ? -b.upper : b.lower;
    for (; !ends.empty() && ends.top().first <= start; ends.pop()) {
      const auto gone = static_cast<std::size_t>(ends.top().second);
      gaps.give(layout.offsets[gone], buffers[gone].size);
    }
    const Extent offset = gaps.take(b.size);
    layout.offsets[static_cast<std::size_t>(index)] = offset;
    layout.height = std::max(layout.height, offset + b.size);
    ends.emplace(backward ? -b.lower : b.upper, index);
  }
  return layout;
}

}  // namespace memcfg::packing
