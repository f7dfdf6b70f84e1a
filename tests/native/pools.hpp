// What the tests of pools share: blocks with a pattern in them, refusals, layouts.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "check.hpp"
#include "memcfg/pool.hpp"
#include "systems.hpp"

namespace pools {

using memcfg::align_up;
using memcfg::Bytes;
using memcfg::HeapExtent;
using memcfg::kNoLimit;
using memcfg::Lifetime;
using memcfg::out_of_memory;
using memcfg::OutOfMemoryInfo;
using memcfg::Pool;
using memcfg::Request;
using memcfg::Resource;
using memcfg::ResourceStats;

inline constexpr Bytes kKiB = Bytes{1} << 10;
inline constexpr Bytes kMiB = Bytes{1} << 20;
inline constexpr Bytes kGiB = Bytes{1} << 30;

#ifdef __SANITIZE_THREAD__
inline constexpr bool kThreadSanitizer = true;
#else
inline constexpr bool kThreadSanitizer = false;
#endif

inline std::uintptr_t number(const void* address) {
  return reinterpret_cast<std::uintptr_t>(address);
}

inline std::shared_ptr<Pool> make_pool(
    Bytes limit, const memcfg::System& system = memcfg::host_system()) {
  return std::make_shared<Pool>("device", limit, system);
}

// What a resource says when it refuses a request.
inline OutOfMemoryInfo out_of_memory_error(Resource& resource, const Request& request) {
  try {
    void* const address = resource.allocate(request);
    resource.deallocate(address, request.size);
  } catch (const out_of_memory& error) {
    return error.info();
  }
  check::fail(__FILE__, __LINE__, "a request that should be refused was granted");
}

inline bool grants(Resource& resource, const Request& request) {
  try {
    resource.deallocate(resource.allocate(request), request.size);
    return true;
  } catch (const out_of_memory&) {
    return false;
  }
}

// Blocks of one resource; each has a pattern of its own at both ends.
class Blocks {
 public:
  explicit Blocks(Resource& resource) : resource_(resource) {}
  ~Blocks() {
    for (const Row& row : rows_) resource_.deallocate(row.address, row.size);
  }
  Blocks(const Blocks&) = delete;
  Blocks& operator=(const Blocks&) = delete;

  std::size_t count() const { return rows_.size(); }
  void* address(std::size_t index) const { return rows_[index].address; }
  Bytes size(std::size_t index) const { return rows_[index].size; }
  Bytes charged() const { return charged_; }
  Bytes requested() const { return requested_; }

  void* take(const Request& request) {
    if (rows_.size() == rows_.capacity()) rows_.reserve(2 * rows_.size() + 1);
    void* const address = resource_.allocate(request);
    const std::uint64_t pattern =
        (number(address) ^ request.size) * 0x9E3779B97F4A7C15U;
    rows_.push_back({address, request.size, pattern});
    charged_ += align_up(request.size);
    requested_ += request.size;
    CHECK(number(address) % std::max(request.alignment, memcfg::kAlignment) == 0);
    write(rows_.back());
    return address;
  }
  bool try_take(const Request& request) {
    try {
      take(request);
      return true;
    } catch (const out_of_memory&) {
      return false;
    }
  }

  void give(std::size_t index) {
    const Row row = rows_[index];
    CHECK(intact(row));
    resource_.deallocate(row.address, row.size);
    rows_[index] = rows_.back();
    rows_.pop_back();
    charged_ -= align_up(row.size);
    requested_ -= row.size;
  }
  // False: it stays as it was.
  bool resize(std::size_t index, Bytes size) {
    Row& row = rows_[index];
    CHECK(intact(row));
    if (!resource_.resize(row.address, row.size, size)) return false;
    charged_ += align_up(size) - align_up(row.size);
    requested_ += size - row.size;
    row.size = size;
    write(row);
    return true;
  }
  void clear() {
    while (!rows_.empty()) give(rows_.size() - 1);
  }
  bool intact() const {
    return std::all_of(
        rows_.begin(), rows_.end(), [this](const Row& row) { return intact(row); });
  }

 private:
  struct Row {
    void* address;
    Bytes size;
    std::uint64_t pattern;
  };

  template <typename Act>
  void each_end(const Row& row, Act act) const {
    if (!resource_.touchable()) return;
    auto* const first = static_cast<std::byte*>(row.address);
    const Bytes width = std::min<Bytes>(row.size, sizeof row.pattern);
    act(first, &row.pattern, width);
    act(first + (row.size - width) / 2, &row.pattern, width);
    act(first + row.size - width, &row.pattern, width);
  }
  void write(const Row& row) const {
    each_end(row, [](void* place, const void* wanted, Bytes size) {
      std::memcpy(place, wanted, size);
    });
  }
  bool intact(const Row& row) const {
    if (!resource_.touchable() || row.size < 3 * sizeof row.pattern) return true;
    bool same = true;
    each_end(row, [&same](const void* place, const void* wanted, Bytes size) {
      same = same && std::memcmp(place, wanted, size) == 0;
    });
    return same;
  }

  Resource& resource_;
  std::vector<Row> rows_;
  Bytes charged_ = 0;
  Bytes requested_ = 0;
};

// The numbers of a pool that a refusal must leave alone: all but idle memory.
struct State {
  explicit State(const Resource& resource) : owners(resource.owners()) {
    const ResourceStats now = resource.stats();
    numbers = {now.current, now.peak, now.requested, now.limit};
    counts = {now.allocations, now.deallocations};
  }
  bool operator==(const State& other) const {
    return numbers == other.numbers && counts == other.counts && owners == other.owners;
  }
  std::vector<Bytes> numbers;
  std::vector<std::uint64_t> counts;
  memcfg::Owners owners;
};

// What must hold of any pool, at any moment.
inline void check_busy_pool(const Pool& pool) {
  pool.check();
  const ResourceStats now = pool.stats();
  CHECK(now.requested <= now.current && now.current <= now.peak);
  CHECK(now.current <= now.limit && now.peak_reserved >= now.reserved);
  const Bytes page = pool.system().page_size();
  CHECK(now.limit > kNoLimit - page || now.reserved <= now.limit + page);
  CHECK(now.idle <= now.free_bytes && now.free_bytes <= now.reserved);
  CHECK(now.largest_free_chunk <= now.free_bytes && now.idle % page == 0);
}

// The same while nobody is at work in the pool.
inline void check_pool(const Pool& pool) {
  check_busy_pool(pool);
  Bytes charged = 0;
  for (const auto& row : pool.owners()) charged += row.second;
  CHECK(charged == pool.stats().current);
}

// The layout has every address once, in order, free chunks apart; its free chunks are
// those of the statistics.
inline void check_layout(const Pool& pool) {
  const std::vector<HeapExtent> rows = pool.layout();
  const ResourceStats now = pool.stats();
  Bytes addresses = 0;
  Bytes holes = 0;
  Bytes largest = 0;
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const HeapExtent& row = rows[i];
    CHECK(row.size > 0 && row.committed <= row.size);
    CHECK(row.state == HeapExtent::free || row.committed == row.size);
    CHECK((row.state == HeapExtent::block) == (row.requested > 0));
    CHECK(row.requested <= row.size);
    addresses += row.size;
    if (row.state == HeapExtent::free) {
      holes += row.committed;
      largest = std::max(largest, row.committed);
    }
    if (i == 0) continue;
    CHECK(rows[i - 1].address + rows[i - 1].size <= row.address);
  }
  CHECK(addresses == now.addresses);
  CHECK(holes == now.free_bytes && largest == now.largest_free_chunk);
}

inline std::size_t count(const Pool& pool, HeapExtent::State state) {
  const std::vector<HeapExtent> rows = pool.layout();
  return static_cast<std::size_t>(
      std::count_if(rows.begin(), rows.end(), [state](const HeapExtent& row) {
        return row.state == state;
      }));
}

// Gives the memory that no block holds back: to the heap what caches have, to the
// system what the heap has.
inline void empty_caches(Pool& pool) {
  pool.trim(kNoLimit);
}

}  // namespace pools
