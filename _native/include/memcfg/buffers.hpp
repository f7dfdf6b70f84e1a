// Buffers with fixed lifetimes, and where they were placed.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

namespace memcfg::packing {

using Time = std::int64_t;    // a point in time, in the caller's unit
using Extent = std::int64_t;  // a size or an offset, in bytes

struct Buffer {
  Time lower;  // lives in [lower, upper), lower < upper
  Time upper;
  Extent size;  // bytes, >= 0; the sum over all buffers fits an Extent
};

using Buffers = std::vector<Buffer>;
using Permutation = std::vector<std::int32_t>;  // buffer indices, first placed first

// The bytes alive at the busiest moment: no placement is lower.
inline Extent max_load(const Buffers& buffers) {
  std::vector<std::pair<Time, Extent>> events;
  events.reserve(2 * buffers.size());
  for (const Buffer& b : buffers) {
    events.emplace_back(b.lower, b.size);
    events.emplace_back(b.upper, -b.size);
  }
  std::sort(events.begin(), events.end());  // at one time, ends before starts
  Extent load = 0, most = 0;
  for (const auto& event : events) most = std::max(most, load += event.second);
  return most;
}

// A placed buffer; lists of them are sorted by offset.
struct Placed {
  Extent offset;
  Extent end;  // offset + size
  Time lower;
  Time upper;
};

}  // namespace memcfg::packing
