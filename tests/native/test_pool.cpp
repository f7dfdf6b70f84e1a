#include <cstdint>
#include <cstring>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "check.hpp"
#include "memcfg/pool.hpp"
#include "systems.hpp"

using memcfg::Block;
using memcfg::Bytes;
using memcfg::kNoLimit;
using memcfg::Limit;
using memcfg::out_of_memory;
using memcfg::Pool;
using memcfg::Shortage;

namespace {

std::shared_ptr<Pool> make_pool(Bytes limit,
                                const memcfg::System& system = memcfg::host_system()) {
  return std::make_shared<Pool>("device", limit, system);
}

Shortage refusal(const std::shared_ptr<Pool>& pool, Bytes size) {
  try {
    const Block block(pool, size, "asker");
  } catch (const out_of_memory& error) {
    return error.shortage();
  }
  check::fail(__FILE__, __LINE__, "a request that should be refused was granted");
}

}  // namespace

TEST(limit_draws_to_the_last_byte) {
  Limit limit(100);
  CHECK(limit.draw(60) && limit.draw(40));
  CHECK(!limit.draw(1));
  CHECK(limit.free() == 0);
  limit.give_back(40);
  CHECK(!limit.draw(41) && limit.draw(40));
}

TEST(limit_does_not_overflow) {
  Limit limit(kNoLimit);
  CHECK(limit.draw(kNoLimit - 1));
  CHECK(!limit.draw(kNoLimit));
  CHECK(!limit.draw(2));
  CHECK(limit.draw(1));
}

TEST(limit_is_set_around_what_is_drawn) {
  Limit limit(100);
  CHECK(limit.draw(50));
  CHECK(!limit.set(49) && limit.limit() == 100 && limit.free() == 50);
  CHECK(limit.set(50) && limit.free() == 0);
  CHECK(limit.set(kNoLimit) && limit.free() == kNoLimit - 50);
  CHECK(limit.set(80) && limit.free() == 30);
}

TEST(block_is_aligned_and_rounded) {
  const auto pool = make_pool(kNoLimit);
  for (const Bytes size : {Bytes{1}, Bytes{63}, Bytes{64}, Bytes{65}, Bytes{100000}}) {
    const Block block(pool, size, "a");
    CHECK(reinterpret_cast<std::uintptr_t>(block.address()) % 64 == 0);
    CHECK(block.size() == (size + 63) / 64 * 64);
    CHECK(block.requested() == size);
    std::memset(block.address(), 0xab, block.size());
    pool->check();
  }
  CHECK(pool->stats().now.charged == 0);
}

TEST(limit_is_on_rounded_bytes_and_exact) {
  const auto pool = make_pool(128);
  CHECK(pool->stats().free == 128);
  const Block block(pool, 65, "a");
  CHECK(pool->stats().free == 0);
  CHECK_THROWS(out_of_memory, Block(pool, 1, "b"));
  pool->check();
}

TEST(largest_free_is_whole_lines) {
  const auto pool = make_pool(1000);
  const Block block(pool, 10, "a");
  const Bytes free = pool->stats().free;
  CHECK(free == 896);
  CHECK(refusal(pool, free + 1).largest_free == free);
  const Block rest(pool, free, "b");
}

TEST(refusal_tells_the_numbers) {
  const auto pool = make_pool(1024);
  const Block small(pool, 64, "small");
  const Block large(pool, 512, "large");
  const Shortage report = refusal(pool, 1000);
  CHECK(report.cause == Shortage::limit_reached);
  CHECK(report.requested == 1000 && report.in_use == 576);
  CHECK(report.limit == 1024 && report.largest_free == 448);
  CHECK(report.device == "device");
  CHECK(report.owners.size() == 2);
  CHECK(report.owners[0].first == "large" && report.owners[0].second == 512);
  CHECK(pool->owners().size() == 2);  // the asker holds nothing
  pool->check();
}

TEST(huge_requests_are_refused) {
  for (const Bytes limit : {Bytes{1024}, kNoLimit}) {
    const auto pool = make_pool(limit);
    for (const Bytes size : {kNoLimit, kNoLimit - 1, kNoLimit - 63, kNoLimit / 2}) {
      CHECK(refusal(pool, size).requested == size);
      pool->check();
    }
    CHECK(pool->stats().now.charged == 0 && pool->stats().peak == 0);
  }
}

TEST(no_bytes_is_an_error) {
  CHECK_THROWS(std::invalid_argument, make_pool(0));
  const auto pool = make_pool(64);
  CHECK_THROWS(std::invalid_argument, Block(pool, 0, "a"));
  CHECK_THROWS(std::invalid_argument, pool->set_limit(0));
  CHECK(pool->limit() == 64);
}

TEST(system_refusal_is_rolled_back) {
  const Faulty system;
  const auto pool = make_pool(1024, system);
  const Block block(pool, 64, "a");
  system.grants_left = 0;
  const Shortage report = refusal(pool, 64);
  CHECK(report.cause == Shortage::no_memory && report.in_use == 64);
  const memcfg::PoolStats stats = pool->stats();
  CHECK(stats.now.charged == 64 && stats.peak == 64 && stats.grants == 1);
  CHECK(stats.free == 960 && system.allocated == 64);
  pool->check();
  system.grants_left = 1;
  const Block again(pool, 960, "b");
}

TEST(set_limit_below_use_changes_nothing) {
  const auto pool = make_pool(1024);
  const Block block(pool, 512, "a");
  CHECK_THROWS(out_of_memory, pool->set_limit(511));
  CHECK(pool->limit() == 1024 && pool->stats().free == 512);
  CHECK(pool->set_limit(512) == 1024);
  CHECK_THROWS(out_of_memory, Block(pool, 1, "b"));
  CHECK(pool->set_limit(kNoLimit) == 512);
  CHECK(pool->stats().free == kNoLimit);
  const Block more(pool, 100000, "b");
  pool->check();
}

TEST(peak_is_kept_and_reset) {
  const auto pool = make_pool(kNoLimit);
  const Block block(pool, 64, "a");
  {
    const Block more(pool, 128, "a");
  }
  CHECK(pool->stats().peak == 192 && pool->stats().now.charged == 64);
  pool->reset_peak();
  CHECK(pool->stats().peak == 64);
  pool->check();
}

TEST(accounts_of_one_owner_share_a_row) {
  const auto pool = make_pool(kNoLimit);
  auto first = std::make_unique<Block>(pool, 64, "a");
  const Block second(pool, 128, "a");
  CHECK(pool->owners().at(0).second == 192);
  first.reset();
  CHECK(pool->owners().at(0).second == 128);
}

// A model of the pool as a map, random steps, patterns that must survive.
TEST(random_steps_agree_with_a_model) {
  std::mt19937 random(7);
  constexpr Bytes kLimit = 64 * 200;
  const Faulty system;
  const auto pool = make_pool(kLimit, system);
  std::map<int, std::unique_ptr<Block>> blocks;
  Bytes in_use = 0;
  Bytes peak = 0;
  for (int step = 0; step < 5000; ++step) {
    const int key = static_cast<int>(random() % 40);
    if (const auto found = blocks.find(key); found != blocks.end()) {
      const auto* bytes = static_cast<unsigned char*>(found->second->address());
      CHECK(bytes[0] == key && bytes[found->second->size() - 1] == key);
      in_use -= found->second->size();
      blocks.erase(found);
    } else {
      const Bytes size = 1 + random() % 1500;
      const Bytes rounded = (size + 63) / 64 * 64;
      const bool refused = random() % 8 == 0;
      system.grants_left = refused ? 0 : 1;
      try {
        auto block = std::make_unique<Block>(pool, size, std::to_string(key % 3));
        CHECK(!refused && in_use + rounded <= kLimit);
        std::memset(block->address(), key, block->size());
        blocks.emplace(key, std::move(block));
        in_use += rounded;
      } catch (const out_of_memory&) {
        CHECK(refused || in_use + rounded > kLimit);
      }
    }
    peak = std::max(peak, in_use);
    pool->check();
    CHECK(pool->stats().now.charged == in_use && pool->stats().peak == peak);
    CHECK(system.allocated == in_use);
  }
}

// Many threads allocate while the limit moves; never more out than the highest limit.
TEST(threads_never_pass_the_limit) {
  constexpr Bytes kLimit = 64 * 20;
  const Faulty system;
  const auto pool = make_pool(kLimit, system);
  std::atomic<bool> passed{false};
  std::atomic<int> refused{0};
  std::vector<std::thread> threads;
  for (unsigned seed = 0; seed < 4; ++seed) {
    threads.emplace_back([&, seed] {
      std::mt19937 random(seed);
      std::vector<std::unique_ptr<Block>> held;
      for (int step = 0; step < 3000; ++step) {
        try {
          held.push_back(
              std::make_unique<Block>(pool, 1 + random() % 512, std::to_string(seed)));
        } catch (const out_of_memory&) {
          ++refused;
          held.clear();
        }
        if (system.allocated.load() > kLimit) passed = true;
        if (held.size() > 4) held.erase(held.begin());
      }
    });
  }
  threads.emplace_back([&] {
    for (int step = 0; step < 3000; ++step) {
      try {
        pool->set_limit(step % 2 == 0 ? kLimit / 2 : kLimit);
      } catch (const out_of_memory&) {
      }
      pool->check();
    }
  });
  for (std::thread& thread : threads) thread.join();
  pool->check();
  CHECK(!passed && refused > 0);
  CHECK(pool->stats().now.charged == 0 && system.allocated == 0);
  CHECK(pool->stats().peak <= kLimit && pool->owners().empty());
  CHECK(pool->set_limit(kLimit) > 0 && pool->stats().free == kLimit);
}
