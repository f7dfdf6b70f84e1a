// What a history says of a pool, compared with what the pool counts.
#include <map>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "check.hpp"
#include "memcfg/arena.hpp"
#include "memcfg/pool_history.hpp"
#include "pools.hpp"

namespace {

using namespace pools;  // NOLINT
using memcfg::Arena;
using memcfg::History;
using memcfg::PoolHistory;

// Plays a history: an address is taken once, and freed with its size.
std::map<std::uint64_t, Bytes> left_over(const History& history) {
  std::map<std::uint64_t, Bytes> out;
  for (std::size_t i = 0; i < history.action.size(); ++i) {
    if (history.action[i] == History::allocate) {
      CHECK(out.emplace(history.address[i], history.size[i]).second);
    }
    if (history.action[i] == History::free) {
      CHECK(out.at(history.address[i]) == history.size[i]);
      out.erase(history.address[i]);
    }
  }
  return out;
}

Bytes sum(const std::map<std::uint64_t, Bytes>& blocks) {
  Bytes bytes = 0;
  for (const auto& row : blocks) bytes += row.second;
  return bytes;
}

void agrees_with(Pool& pool, const PoolHistory& history) {
  CHECK(sum(left_over(pool.history(history))) == pool.stats().requested);
  pool.check();
}

TEST(a_history_says_what_is_out) {
  const auto pool = make_pool(64 * kMiB);
  std::mt19937 random(0);
  Blocks blocks(*pool);
  for (int i = 0; i < 30; ++i) blocks.take({1 + random() % 9000});
  const auto history = std::make_shared<PoolHistory>(64);
  pool->record(history);
  std::vector<std::shared_ptr<Arena>> arenas;
  for (int i = 0; i < 600; ++i) {
    const auto choice = random() % 8;
    if (choice < 3 || blocks.count() == 0) {
      blocks.take({1 + random() % (random() % 4 == 0 ? 300000U : 5000U)});
    } else if (choice < 5) {
      blocks.give(random() % blocks.count());
    } else if (choice < 6) {
      blocks.resize(random() % blocks.count(), 1 + random() % 9000);
    } else if (choice < 7) {
      arenas.push_back(std::make_shared<Arena>(pool, kMiB, "arena"));
      arenas.back()->grow(1 + random() % kMiB);
      if (arenas.size() > 3) arenas.erase(arenas.begin());
    } else if (!arenas.empty()) {
      arenas.back()->shrink(random() % kMiB);
    }
    agrees_with(*pool, *history);
  }
  CHECK(history->dropped() > 0);
  pool->end(*history);
  pool->check();
}

TEST(what_waits_is_refused_once) {
  const auto pool = make_pool(kMiB);
  const auto history = std::make_shared<PoolHistory>(8);
  pool->record(history);
  for (int i = 0; i < 5; ++i) CHECK(!grants(*pool, {2 * kMiB}));
  CHECK(!grants(*pool, {3 * kMiB}));
  CHECK(pool->history(*history).action.size() == 2);
  pool->end(*history);
}

TEST(no_events_are_no_history) {
  CHECK_THROWS(std::invalid_argument, PoolHistory(0));
  CHECK_THROWS(std::bad_alloc, PoolHistory(~std::size_t{0} / 64));
}

TEST(threads_begin_and_end_while_others_allocate) {
  const auto pool = make_pool(256 * kMiB);
  const auto work = [&](unsigned seed) {
    std::mt19937 random(seed);
    Blocks blocks(*pool);
    for (int i = 0; i < 2000; ++i) {
      if (random() % 2 == 0 || blocks.count() == 0) {
        blocks.take({1 + random() % 4000});
      } else if (random() % 4 == 0) {
        blocks.resize(random() % blocks.count(), 1 + random() % 4000);
      } else {
        blocks.give(random() % blocks.count());
      }
    }
  };
  const auto record = [&] {
    for (int i = 0; i < 20; ++i) {
      const auto history = std::make_shared<PoolHistory>(500);
      pool->record(history);
      for (int read = 0; read < 5; ++read) left_over(pool->history(*history));
      pool->end(*history);
    }
  };
  std::vector<std::thread> threads;
  for (unsigned seed = 0; seed < 3; ++seed) threads.emplace_back(work, seed);
  threads.emplace_back(record);
  threads.emplace_back(record);
  for (auto& thread : threads) thread.join();
  CHECK(pool->stats().current == 0);
  pool->check();
}

}  // namespace
