// What every resource promises, as checks that any of them must pass.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "check.hpp"
#include "memcfg/error.hpp"
#include "memcfg/resource.hpp"

namespace conformance {

using memcfg::Bytes;
using memcfg::kNoLimit;
using memcfg::Lifetime;
using memcfg::LiveBlock;
using memcfg::Owners;
using memcfg::Request;
using memcfg::Resource;
using memcfg::ResourceStats;

inline constexpr Bytes kMiB = Bytes{1} << 20;

inline std::uintptr_t number(const void* address) {
  return reinterpret_cast<std::uintptr_t>(address);
}

// What a refused request or free must leave alone.
struct State {
  explicit State(const Resource& resource) : owners(resource.owners()) {
    const ResourceStats stats = resource.stats();
    numbers = {stats.current, stats.requested, stats.limit};
    counts = {stats.allocations, stats.deallocations};
  }
  bool operator==(const State& other) const {
    return numbers == other.numbers && counts == other.counts && owners == other.owners;
  }
  std::vector<Bytes> numbers;
  std::vector<std::uint64_t> counts;
  Owners owners;
};

struct Block {
  void* address = nullptr;
  Request request;
  std::string tag;
  unsigned char pattern = 0;

  void write() const { std::memset(address, pattern, request.size); }
  bool has(unsigned char value, Bytes size) const {
    return check::all_bytes(address, size, value);
  }
  bool intact() const { return has(pattern, request.size); }
};

inline Bytes log_uniform(std::mt19937& random, Bytes most) {
  const auto bits = static_cast<unsigned>(random() % 22);
  return std::min(most, 1 + random() % (Bytes{1} << bits));
}

inline void blocks_are_aligned(Resource& resource) {
  for (Bytes alignment = 1; alignment <= 2 * kMiB; alignment *= 2) {
    for (const Bytes size : {Bytes{1}, Bytes{64}, Bytes{100000}}) {
      void* const address = resource.allocate({size, alignment});
      CHECK(number(address) % std::max(alignment, memcfg::kAlignment) == 0);
      CHECK(resource.stats().current == memcfg::align_up(size));
      CHECK(resource.stats().requested == size);
      resource.check();
      resource.deallocate(address, size);
    }
  }
  CHECK(resource.stats().current == 0 && resource.owners().empty());
}

inline void requests_that_are_none(Resource& resource) {
  const State before(resource);
  CHECK_THROWS(std::invalid_argument, resource.allocate({0}));
  for (const Bytes alignment : {Bytes{0}, Bytes{3}, Bytes{96}, kNoLimit}) {
    CHECK_THROWS(std::invalid_argument, resource.allocate({1, alignment}));
  }
  CHECK(State(resource) == before);
}

inline void huge_requests_are_refused(Resource& resource) {
  void* const held = resource.allocate({100, 64, Lifetime::unknown, "held"});
  const State before(resource);
  for (const Bytes size : {kNoLimit, kNoLimit - 63, kNoLimit / 2, Bytes{1} << 60}) {
    for (const Bytes alignment : {Bytes{64}, 2 * kMiB, Bytes{1} << 63}) {
      try {
        resource.allocate({size, alignment});
        check::fail(__FILE__, __LINE__, "a request for everything was granted");
      } catch (const memcfg::out_of_memory& error) {
        CHECK(error.info().requested == size);
        CHECK(error.info().rounded >= size);
      }
      CHECK(State(resource) == before);
      resource.check();
    }
  }
  resource.deallocate(held, 100);
}

inline void bad_frees_change_nothing(Resource& resource) {
  for (const Bytes size : {Bytes{100}, Bytes{5000}, 2 * kMiB}) {
    void* const address = resource.allocate({size, 64, Lifetime::unknown, "a"});
    void* const other = resource.allocate({size, 64, Lifetime::unknown, "b"});
    auto* const inside = reinterpret_cast<void*>(number(address) + 64);
    int local = 0;
    const State before(resource);
    for (const Bytes wrong : {Bytes{0}, size - 1, size + 1, size + 64, kNoLimit}) {
      CHECK_THROWS(memcfg::bad_free, resource.deallocate(address, wrong));
    }
    for (void* foreign : {inside, static_cast<void*>(&local), static_cast<void*>(0)}) {
      CHECK_THROWS(memcfg::bad_free, resource.deallocate(foreign, size));
    }
    CHECK(State(resource) == before);
    resource.deallocate(address, size);
    CHECK_THROWS(memcfg::bad_free, resource.deallocate(address, size));
    resource.deallocate(other, size);
    CHECK_THROWS(memcfg::bad_free, resource.deallocate(other, size));
    CHECK_THROWS(memcfg::bad_free, resource.deallocate(address, size));
    resource.check();
  }
  CHECK(resource.stats().current == 0);
}

inline void bad_resizes_change_nothing(Resource& resource) {
  for (const Bytes size : {Bytes{100}, Bytes{5000}, 2 * kMiB}) {
    void* const address = resource.allocate({size, 64, Lifetime::unknown, "a"});
    void* const other = resource.allocate({size, 64, Lifetime::unknown, "b"});
    auto* const inside = reinterpret_cast<void*>(number(address) + 64);
    int local = 0;
    const State before(resource);
    for (const Bytes now : {Bytes{1}, size - 1, size, size + 1, 3 * size}) {
      for (const Bytes wrong : {Bytes{0}, size - 1, size + 1, size + 64, kNoLimit}) {
        CHECK_THROWS(memcfg::bad_free, resource.resize(address, wrong, now));
      }
      for (void* foreign : {inside, static_cast<void*>(&local), static_cast<void*>(0)})
        CHECK_THROWS(memcfg::bad_free, resource.resize(foreign, size, now));
    }
    CHECK_THROWS(std::invalid_argument, resource.resize(address, size, 0));
    for (const Bytes large : {kNoLimit, kNoLimit - 63, kNoLimit / 2, Bytes{1} << 60}) {
      CHECK(!resource.resize(address, size, large));
    }
    CHECK(State(resource) == before);
    resource.check();
    resource.deallocate(address, size);
    CHECK_THROWS(memcfg::bad_free, resource.resize(address, size, size + 1));
    CHECK_THROWS(memcfg::bad_free, resource.resize(address, size, size - 1));
    resource.deallocate(other, size);
    resource.check();
  }
  CHECK(resource.stats().current == 0);
}

inline void sizes_are_known(Resource& resource) {
  int local = 0;
  for (const Bytes size :
       {Bytes{1}, Bytes{100}, Bytes{65536}, Bytes{65537}, 3 * kMiB}) {
    void* const address = resource.allocate({size, 64, Lifetime::unknown, "a"});
    auto* const inside = reinterpret_cast<void*>(number(address) + 64);
    CHECK(resource.size_of(address) == size);
    for (void* foreign : {inside, static_cast<void*>(&local), static_cast<void*>(0)}) {
      CHECK_THROWS(memcfg::bad_free, resource.size_of(foreign));
      CHECK(!resource.release(foreign));
    }
    const std::vector<LiveBlock> rows = resource.blocks();
    CHECK(rows.size() == 1 && rows[0].address == number(address));
    CHECK(rows[0].requested == size && rows[0].size == memcfg::align_up(size));
    CHECK(rows[0].tag == "a");
    CHECK(resource.release(address) && !resource.release(address));
    CHECK_THROWS(memcfg::bad_free, resource.size_of(address));
    CHECK(resource.blocks().empty() && resource.stats().current == 0);
  }
}

// Whatever the memory had before: another block's bytes, or none that was ever touched.
inline void zeroed_blocks_are_zero(Resource& resource) {
  const auto take = [&](Bytes size, Bytes alignment, bool zeroed) {
    Block block;
    block.request = {size, alignment, Lifetime::unknown, "", zeroed};
    block.address = resource.allocate(block.request);
    block.pattern = 0xA5;
    return block;
  };
  for (int round = 0; round < 3; ++round) {
    for (const Bytes size : {Bytes{1},
                             Bytes{63},
                             Bytes{100},
                             Bytes{4095},
                             Bytes{4096},
                             Bytes{65536},
                             Bytes{65537},
                             Bytes{100001},
                             kMiB,
                             5 * kMiB + 77}) {
      for (const Bytes alignment : {Bytes{64}, Bytes{4096}, kMiB}) {
        const Block low = take(1000, 64, false);
        const Block block = take(size, alignment, true);
        const Block high = take(1000, 64, false);
        if (resource.touchable()) {
          CHECK(block.has(0, size));
          for (const Block& each : {low, block, high}) each.write();
          CHECK(low.intact() && block.intact() && high.intact());
        }
        resource.deallocate(high.address, 1000);
        resource.deallocate(block.address, size);
        resource.deallocate(low.address, 1000);
        if (round == 1 && alignment == 64) resource.trim(0);
      }
    }
    if (round == 0) resource.trim(0);
  }
  CHECK(resource.stats().current == 0);
  resource.check();
}

// Random steps against a model: who is where, with what in it, under which tag.
class Model {
 public:
  Model(Resource& resource, unsigned seed) : resource_(resource), random_(seed) {}

  void step() {
    if (blocks_.empty() || random_() % 5 < 3) {
      take();
    } else {
      const auto row = std::next(
          blocks_.begin(), static_cast<std::ptrdiff_t>(random_() % blocks_.size()));
      random_() % 3 == 0 ? resize(row) : give(row);
    }
    if (random_() % 64 == 0) resource_.trim(random_() % kMiB);
  }

  void take() {
    Block block;
    block.tag = std::string(random_() % 4, 'x');
    block.pattern = static_cast<unsigned char>(random_());
    const Bytes alignment = random_() % 8 == 0 ? Bytes{64} << random_() % 8 : 64;
    block.request = {log_uniform(random_, kMiB),
                     alignment,
                     static_cast<Lifetime>(random_() % 3),
                     block.tag,
                     random_() % 4 == 0};
    try {
      block.address = resource_.allocate(block.request);
    } catch (const memcfg::out_of_memory&) {
      CHECK(!blocks_.empty());
      return;
    }
    CHECK(number(block.address) % alignment == 0);
    if (resource_.touchable()) {
      CHECK(!block.request.zeroed || block.has(0, block.request.size));
      block.write();
    }
    const auto row = blocks_.emplace(number(block.address), block).first;
    row->second.request.tag = {};
    if (row != blocks_.begin()) CHECK(end_of(std::prev(row)) <= row->first);
    if (std::next(row) != blocks_.end()) CHECK(end_of(row) <= std::next(row)->first);
    in_use_ += memcfg::align_up(block.request.size);
    peak_ = std::max(peak_, in_use_);
  }

  // Near by, or to any size.
  using Blocks = std::map<std::uintptr_t, Block>;
  void resize(Blocks::iterator row) {
    Block& block = row->second;
    const Bytes size = block.request.size;
    const Bytes step = log_uniform(random_, size);
    Bytes now = random_() % 2 == 0 ? size + step : size - step;
    if (now == 0 || random_() % 4 == 0) now = log_uniform(random_, 2 * kMiB);
    const bool done = resource_.resize(block.address, size, now);
    resizes_ += done ? 1 : 0;
    const Bytes kept = done ? std::min(size, now) : size;
    CHECK(!resource_.touchable() || block.has(block.pattern, kept));
    if (!done) return;
    block.request.size = now;
    if (std::next(row) != blocks_.end()) CHECK(end_of(row) <= std::next(row)->first);
    block.pattern = static_cast<unsigned char>(random_());
    if (resource_.touchable()) block.write();
    in_use_ += memcfg::align_up(now) - memcfg::align_up(size);
    peak_ = std::max(peak_, in_use_);
  }

  void clear() {
    while (!blocks_.empty()) give(blocks_.begin());
  }

  int resizes() const { return resizes_; }

  void compare() const {
    const ResourceStats stats = resource_.stats();
    std::map<std::string, Bytes> tags;
    Bytes requested = 0;
    for (const auto& row : blocks_) {
      tags[row.second.tag] += memcfg::align_up(row.second.request.size);
      requested += row.second.request.size;
    }
    CHECK(stats.current == in_use_ && stats.requested == requested);
    CHECK(stats.peak == peak_ && stats.current <= stats.reserved);
    CHECK(stats.allocations - stats.deallocations == blocks_.size());
    CHECK(resource_.owners() == Owners(tags.begin(), tags.end()));
    compare_blocks();
    resource_.check();
  }

 private:
  void compare_blocks() const {
    const std::vector<LiveBlock> rows = resource_.blocks();
    CHECK(rows.size() == blocks_.size());
    auto block = blocks_.begin();
    for (const LiveBlock& row : rows) {
      const Bytes size = block->second.request.size;
      CHECK(row.address == block->first && row.tag == block->second.tag);
      CHECK(row.requested == size && row.size == memcfg::align_up(size));
      CHECK(resource_.size_of(block->second.address) == size);
      ++block;
    }
  }

  static std::uintptr_t end_of(Blocks::iterator row) {
    return row->first + memcfg::align_up(row->second.request.size);
  }

  void give(Blocks::iterator row) {
    const Block block = row->second;
    CHECK(!resource_.touchable() || block.intact());
    resource_.deallocate(block.address, block.request.size);
    blocks_.erase(row);
    in_use_ -= memcfg::align_up(block.request.size);
  }

  Resource& resource_;
  std::mt19937 random_;
  Blocks blocks_;
  Bytes in_use_ = 0;
  Bytes peak_ = 0;
  int resizes_ = 0;
};

// Whether a block can become smaller where it lies.
inline bool can_resize(Resource& resource) {
  void* const address = resource.allocate({kMiB});
  const bool done = resource.resize(address, kMiB, 1);
  resource.deallocate(address, done ? 1 : kMiB);
  resource.reset_peak();
  return done;
}

inline void random_steps_agree_with_a_model(Resource& resource) {
  const bool resizes = can_resize(resource);
  Model model(resource, 11);
  for (int step = 0; step < 1500; ++step) {
    model.step();
    if (step % 20 == 0) model.compare();
  }
  model.compare();
  CHECK(resizes == (model.resizes() > 20));
  model.clear();
  model.compare();
  resource.reset_peak();
  CHECK(resource.stats().peak == 0);
}

// Blocks cross threads: what one takes another may free.
inline void threads_share_it(Resource& resource) {
  std::mutex mutex;
  std::vector<Block> shelf;
  std::vector<std::string> failures;
  const auto work = [&](unsigned seed) {
    std::mt19937 random(seed);
    for (int step = 0; step < 1500; ++step) {
      Block block;
      block.pattern = static_cast<unsigned char>(random());
      block.request.size = log_uniform(random, 100000);
      try {
        block.address = resource.allocate(block.request);
        if (resource.touchable()) block.write();
      } catch (const memcfg::out_of_memory&) {
      }
      const Bytes now = log_uniform(random, 100000);
      if (block.address != nullptr && random() % 3 == 0 &&
          resource.resize(block.address, block.request.size, now)) {
        block.request.size = now;
        if (resource.touchable()) block.write();
      }
      const std::lock_guard<std::mutex> lock(mutex);
      if (block.address != nullptr) shelf.push_back(block);
      if (shelf.empty() || (shelf.size() < 50 && random() % 2 == 0)) continue;
      std::swap(shelf[random() % shelf.size()], shelf.back());
      const Block last = shelf.back();
      shelf.pop_back();
      if (resource.touchable() && !last.intact()) failures.emplace_back("overwritten");
      resource.deallocate(last.address, last.request.size);
    }
  };
  std::vector<std::thread> threads;
  for (unsigned seed = 0; seed < 3; ++seed) threads.emplace_back(work, seed);
  std::string broken;  // told when the threads have ended
  try {
    for (int look = 0; look < 50; ++look) resource.check();
  } catch (const std::exception& error) {
    broken = error.what();
  }
  for (std::thread& thread : threads) thread.join();
  if (!broken.empty()) throw check::Failed(broken);
  for (const Block& block : shelf) {
    resource.deallocate(block.address, block.request.size);
  }
  resource.check();
  CHECK(failures.empty());
  const ResourceStats stats = resource.stats();
  CHECK(stats.current == 0 && stats.requested == 0 && resource.owners().empty());
  CHECK(stats.allocations == stats.deallocations);
}

inline void what_is_free_can_be_trimmed(Resource& resource) {
  std::vector<void*> blocks;
  for (int i = 0; i < 16; ++i) blocks.push_back(resource.allocate({100000}));
  for (void* address : blocks) resource.deallocate(address, 100000);
  const Bytes idle = resource.stats().reserved;
  const Bytes half = resource.trim(idle / 2);
  const Bytes rest = resource.trim(0);
  CHECK(half + rest == idle && resource.stats().reserved == 0);
  CHECK(resource.trim(0) == 0);
  resource.check();
}

}  // namespace conformance
