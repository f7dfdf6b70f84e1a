#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <memory>
#include <random>
#include <thread>
#include <vector>

#include "block.hpp"
#include "check.hpp"
#include "memcfg/arena.hpp"
#include "memcfg/system_resource.hpp"
#include "pools.hpp"

using memcfg::Arena;
using memcfg::Pin;
using namespace pools;

namespace {

struct Fixture {
  Faulty system;
  std::shared_ptr<Pool> pool;
  Bytes page = system.page_size();
  explicit Fixture(Bytes limit) : pool(std::make_shared<Pool>("cpu", limit, system)) {}
  std::shared_ptr<Arena> arena(Bytes capacity) {
    return std::make_shared<Arena>(pool, capacity, "model");
  }
};

OutOfMemoryInfo out_of_memory_error(Arena& arena, Bytes size) {
  try {
    arena.grow(size);
  } catch (const out_of_memory& error) {
    return error.info();
  }
  check::fail(__FILE__, __LINE__, "a growth that should be refused was granted");
}

// Whether touching the byte kills a process.
bool faults(const std::byte* address) {
  const pid_t child = fork();
  if (child == 0) {
    std::signal(SIGSEGV, SIG_DFL);  // not the sanitizer's report
    _exit(static_cast<int>(*static_cast<const volatile std::byte*>(address)) & 0);
  }
  int status = 0;
  waitpid(child, &status, 0);
  return WIFSIGNALED(status) && WTERMSIG(status) == SIGSEGV;
}

}  // namespace

TEST(addresses_cost_no_memory) {
  Fixture f(4096);
  const auto arena = f.arena(Bytes{1} << 32);
  CHECK(arena->size() == 0 && arena->capacity() == Bytes{1} << 32);
  CHECK(f.pool->stats().current == 0 && f.pool->stats().reserved == 0);
  CHECK(faults(arena->base()));
  arena->check();
}

TEST(growth_is_in_place_and_exact) {
  Fixture f(kNoLimit);
  const auto arena = f.arena(1 << 20);
  std::byte* const base = arena->base();
  Bytes before = 0;
  for (const Bytes size : {Bytes{1}, Bytes{100}, f.page, f.page + 1, Bytes{100000}}) {
    arena->grow(size);
    const Bytes after = (size + 63) / 64 * 64;
    CHECK(arena->base() == base && arena->size() == after);
    CHECK(f.pool->stats().current == after);
    CHECK(f.pool->stats().reserved == (after + f.page - 1) / f.page * f.page);
    for (Bytes i = 0; i < before; ++i) CHECK(base[i] == std::byte{7});
    for (Bytes i = before; i < after; ++i) CHECK(base[i] == std::byte{0});
    std::memset(base, 7, after);
    before = after;
    arena->check();
    f.pool->check();
  }
  arena->grow(10);
  CHECK(arena->size() == before);
}

TEST(pages_past_the_end_fault) {
  Fixture f(kNoLimit);
  const auto arena = f.arena(1 << 20);
  arena->grow(f.page + 64);
  CHECK(!faults(arena->base() + 2 * f.page - 1));
  CHECK(faults(arena->base() + 2 * f.page));
  CHECK(faults(arena->base() + arena->capacity() - 1));
  arena->shrink(64);
  CHECK(!faults(arena->base()) && faults(arena->base() + f.page));
}

TEST(limit_refuses_growth_and_nothing_changes) {
  Fixture f(1024);
  const auto arena = f.arena(1 << 20);
  arena->grow(1000);
  CHECK(f.pool->stats().largest_free == 0);
  const OutOfMemoryInfo report = out_of_memory_error(*arena, 1025);
  CHECK(report.cause == OutOfMemoryInfo::limit_reached);
  CHECK(report.requested == 1 && report.in_use == 1024 && report.largest_free == 0);
  CHECK(arena->size() == 1024 && f.pool->stats().requested == 1000);
  arena->check();
  f.pool->check();
}

TEST(addresses_run_out) {
  Fixture f(kNoLimit);
  const auto arena = f.arena(f.page);
  arena->grow(f.page);
  for (const Bytes size : {f.page + 1, kNoLimit / 2, kNoLimit}) {
    CHECK(out_of_memory_error(*arena, size).cause == OutOfMemoryInfo::no_addresses);
    CHECK(f.pool->stats().current == f.page);
    arena->check();
  }
}

TEST(system_refusals_roll_back) {
  Fixture f(1 << 20);
  const auto arena = f.arena(1 << 20);
  arena->grow(f.page);
  f.system.calls_left = 0;
  CHECK(out_of_memory_error(*arena, f.page + 1).cause == OutOfMemoryInfo::no_memory);
  CHECK(arena->size() == f.page && f.pool->stats().current == f.page);
  CHECK(f.pool->stats().largest_free == (1 << 20) - f.page);
  CHECK_THROWS(out_of_memory, f.arena(f.page));
  CHECK(f.pool->owners().size() == 1);
  arena->check();
  f.pool->check();
  f.system.calls_left = 1;
  arena->grow(2 * f.page);
  arena->check();
}

TEST(growth_inside_a_page_asks_nothing_of_the_system) {
  Fixture f(kNoLimit);
  const auto arena = f.arena(1 << 20);
  arena->grow(1);
  f.system.calls_left = 0;
  arena->grow(f.page);
  CHECK(f.pool->stats().current == f.page);
}

TEST(default_capacity_is_halved_until_granted) {
  Fixture f(kNoLimit);
  CHECK(f.arena(0)->capacity() == f.system.memory_size());
  Fixture beyond(kNoLimit / 2 + 64);  // no machine has so many addresses
  CHECK(beyond.arena(0)->capacity() > beyond.system.memory_size());
  CHECK_THROWS(out_of_memory, beyond.arena(kNoLimit / 2));
  CHECK_THROWS(out_of_memory, beyond.arena(kNoLimit));
  CHECK(beyond.pool->stats().current == 0);
}

TEST(shrinking_gives_back_and_regrowth_is_zero) {
  Fixture f(1 << 20);
  const auto arena = f.arena(1 << 20);
  arena->grow(5 * f.page);
  std::memset(arena->base(), 7, arena->size());
  arena->shrink(f.page + 100);
  CHECK(arena->size() == f.page + 128);
  CHECK(f.pool->stats().current == f.page + 128);
  CHECK(f.pool->stats().reserved == 2 * f.page);
  CHECK(arena->base()[f.page + 127] == std::byte{7});
  arena->check();
  f.pool->check();
  arena->grow(5 * f.page);
  for (Bytes i = f.page + 128; i < 5 * f.page; ++i) {
    CHECK(arena->base()[i] == std::byte{0});
  }
  arena->shrink(0);
  CHECK(arena->size() == 0 && f.pool->stats().largest_free == 1 << 20);
  arena->check();
}

TEST(what_is_discarded_goes_back_in_whole_pages) {
  Fixture f(1 << 20);
  const auto arena = f.arena(1 << 20);
  arena->grow(5 * f.page);
  std::memset(arena->base(), 7, arena->size());
  arena->discard(64, 3 * f.page);
  for (Bytes i = 0; i < 5 * f.page; ++i) {
    const bool gone = i >= f.page && i < 3 * f.page;
    CHECK(arena->base()[i] == std::byte(gone ? 0 : 7));
  }
  arena->discard(64, f.page);  // no whole page
  CHECK(arena->base()[f.page - 1] == std::byte{7});
  CHECK(arena->size() == 5 * f.page && f.pool->stats().current == 5 * f.page);
  CHECK(f.pool->stats().reserved == 5 * f.page);
  arena->check();
  arena->free();
  CHECK_THROWS(std::invalid_argument, arena->discard(0, f.page));
}

TEST(pins_hold_it) {
  Fixture f(kNoLimit);
  const auto arena = f.arena(1 << 20);
  arena->grow(2 * f.page);
  {
    const Pin pin(arena);
    CHECK_THROWS(memcfg::still_held, arena->free());
    CHECK_THROWS(memcfg::still_held, arena->shrink(64));
    arena->grow(3 * f.page);
    CHECK(arena->size() == 3 * f.page);
  }
  arena->free();
  CHECK(arena->freed() && f.system.reserved == 0);
  CHECK(f.pool->stats().current == 0 && f.pool->stats().reserved == 0);
  CHECK_THROWS(std::invalid_argument, arena->free());
  CHECK_THROWS(std::invalid_argument, arena->grow(1));
  CHECK_THROWS(std::invalid_argument, arena->shrink(0));
  CHECK_THROWS(std::invalid_argument, Pin(arena));
  arena->check();
}

TEST(a_freed_arena_is_released_once) {
  Fixture f(kNoLimit);
  {
    const auto arena = f.arena(1 << 20);
    arena->free();
  }
  CHECK(f.system.reserved == 0);
}

TEST(an_empty_arena_keeps_its_owner) {
  Fixture f(kNoLimit);
  const auto arena = f.arena(1 << 20);
  {
    const memcfg::Block block(f.pool, {64, 64, Lifetime::unknown, arena->owner()});
  }
  arena->grow(128);
  CHECK(f.pool->owners().at(0).first == "model");
  CHECK(f.pool->owners().at(0).second == 128);
  f.pool->check();
}

TEST(nothing_is_left_behind) {
  Fixture f(kNoLimit);
  {
    const auto arena = f.arena(1 << 20);
    arena->grow(1000);
  }
  CHECK(f.system.reserved == 0 && f.pool->stats().current == 0);
  CHECK(f.pool->owners().empty());
  f.pool->check();
}

TEST(threads_grow_together) {
  Fixture f(64 * 1000);
  const auto arena = f.arena(1 << 20);
  std::vector<std::thread> threads;
  for (Bytes lane = 0; lane < 4; ++lane) {
    threads.emplace_back([&, lane] {
      for (Bytes step = 0; step < 300; ++step) {
        try {
          arena->grow(64 * (4 * step + lane));
        } catch (const out_of_memory&) {
        }
        f.pool->check();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  arena->check();
  CHECK(arena->size() == 64 * 1000);
}

TEST(a_refused_growth_is_no_peak) {
  Fixture f(1 << 20);
  const auto arena = f.arena(1 << 20);
  arena->grow(f.page);
  f.system.calls_left = 0;
  CHECK(out_of_memory_error(*arena, 100 * f.page).cause == OutOfMemoryInfo::no_memory);
  CHECK(out_of_memory_error(*arena, (1 << 20) + 64).cause ==
        OutOfMemoryInfo::limit_reached);
  CHECK(f.pool->stats().peak == f.page && f.pool->stats().peak_reserved == f.page);
  check_pool(*f.pool);
}

// The last page of each is shared with nobody: enough bytes are free, not pages.
TEST(small_arenas_run_out_of_pages) {
  Fixture f(2 * memcfg::host_system().page_size());
  std::vector<std::shared_ptr<Arena>> arenas;
  for (int i = 0; i < 3; ++i) {
    arenas.push_back(f.arena(f.page));
    arenas.back()->grow(1);
  }
  arenas.push_back(f.arena(f.page));
  CHECK(out_of_memory_error(*arenas.back(), 1).cause == OutOfMemoryInfo::fragmented);
  CHECK(f.pool->stats().current == 3 * 64 && f.pool->stats().reserved == 3 * f.page);
  arenas[0]->free();
  arenas.back()->grow(1);
  check_pool(*f.pool);
}

TEST(free_chunks_pay_for_an_arena_and_the_other_way_round) {
  Fixture f(8 * kMiB);
  const auto arena = f.arena(8 * kMiB);
  Blocks blocks(*f.pool);
  for (int i = 0; i < 8; ++i) blocks.take({kMiB});
  CHECK(out_of_memory_error(*arena, 64).cause == OutOfMemoryInfo::limit_reached);
  for (int i = 0; i < 5; ++i) blocks.give(0);
  CHECK(f.system.open == 8 * kMiB);
  arena->grow(5 * kMiB);
  CHECK(f.system.open <= 3 * kMiB + f.page && f.system.guarded == 5 * kMiB);
  CHECK(f.pool->stats().largest_free == 0 && !grants(*f.pool, {1}));
  arena->shrink(2 * kMiB);
  CHECK(f.pool->stats().largest_free == 3 * kMiB);
  blocks.take({3 * kMiB});
  CHECK(f.system.most <= 8 * kMiB + f.page);
  check_pool(*f.pool);
  check_layout(*f.pool);
}

TEST(blocks_and_arenas_share_the_limit) {
  for (const Bytes limit : {kMiB, 16 * kMiB + 64}) {
    Fixture f(limit);
    std::mt19937 random(1);
    Blocks blocks(*f.pool);
    std::vector<std::shared_ptr<Arena>> arenas;
    for (int i = 0; i < 3; ++i) arenas.push_back(f.arena(limit));
    for (int step = 0; step < 3000; ++step) {
      Arena& arena = *arenas[random() % 3];
      const Bytes size = random() % (limit / (1 + random() % 20));
      const Bytes in_use = f.pool->stats().current;
      try {
        switch (random() % 4) {
          case 0:
            arena.grow(arena.size() + size);
            break;
          case 1:
            arena.shrink(arena.size() / 2);
            break;
          case 2:
            if (blocks.count() > 0) blocks.give(random() % blocks.count());
            break;
          default:
            blocks.take({size + 1});
        }
      } catch (const out_of_memory& error) {
        CHECK(error.info().in_use == in_use && f.pool->stats().current == in_use);
        CHECK(error.info().cause == OutOfMemoryInfo::fragmented ||
              in_use + error.info().rounded > limit);
      }
      Bytes charged = blocks.charged();
      for (const auto& each : arenas) charged += each->size();
      CHECK(f.pool->stats().current == charged);
      CHECK(f.pool->stats().reserved == f.system.open + f.system.guarded);
      CHECK(f.system.most <= limit + f.page);
      if (step % 20 == 0) check_pool(*f.pool);
    }
    arenas.clear();
    blocks.clear();
    CHECK(grants(*f.pool, {limit}));
  }
}

TEST(a_lower_limit_counts_arenas) {
  Fixture f(8 * kMiB);
  const auto arena = f.arena(8 * kMiB);
  arena->grow(4 * kMiB);
  {
    const memcfg::Block freed(f.pool, {4 * kMiB});
  }
  CHECK(f.pool->set_limit(4 * kMiB) == 8 * kMiB);
  CHECK(f.system.open <= f.page);
  CHECK_THROWS(out_of_memory, f.pool->set_limit(4 * kMiB - 1));
  CHECK(f.pool->limit() == 4 * kMiB);
  check_pool(*f.pool);
}

TEST(an_arena_of_a_pool_on_blocks_is_one) {
  const auto below = make_pool(8 * kMiB);
  const auto pool = std::make_shared<Pool>("top", 4 * kMiB, true, below);
  for (const Bytes capacity : {Bytes{0}, kMiB}) {
    Arena arena(pool, capacity, "model");
    arena.check();
    CHECK(arena.base() == nullptr && below->stats().current == 0);
    CHECK_THROWS(out_of_memory, arena.grow(5 * kMiB));
    CHECK(arena.base() == nullptr && pool->stats().current == 0);
    arena.grow(kMiB - 100);
    std::byte* const base = arena.base();
    CHECK(arena.capacity() == kMiB && below->stats().current == kMiB);
    CHECK(pool->stats().current == kMiB - 64 && pool->stats().reserved == kMiB);
    for (Bytes i = 0; i < arena.size(); ++i) CHECK(base[i] == std::byte{0});
    std::memset(base, 7, arena.size());
    arena.shrink(64);
    arena.grow(kMiB);
    CHECK(arena.base() == base && base[63] == std::byte{7});
    for (Bytes i = 64; i < kMiB - 64; ++i) CHECK(base[i] == std::byte{0});
    CHECK(out_of_memory_error(arena, kMiB + 1).cause == OutOfMemoryInfo::no_addresses);
    CHECK(arena.size() == kMiB && below->stats().current == kMiB);
    arena.check();
    check_pool(*pool);
    arena.free();
    arena.check();
    CHECK(below->stats().current == 0 && pool->stats().reserved == 0);
  }
  CHECK_THROWS(out_of_memory, Arena(pool, kNoLimit, "model"));
  check_pool(*pool);
}

// Memory that the pool keeps for later makes way for one, in the resource below too.
TEST(a_block_takes_the_place_of_what_is_free) {
  const auto below = make_pool(4 * kMiB);
  const auto pool = std::make_shared<Pool>("top", 64 * kMiB, true, below);
  {
    const memcfg::Block freed(pool, {3 * kMiB});
  }
  CHECK(below->stats().current >= 3 * kMiB);
  Arena arena(pool, 0, "model");
  arena.grow(3 * kMiB);
  CHECK(below->stats().current == 3 * kMiB);
  const OutOfMemoryInfo info = [&] {
    Arena other(pool, 0, "other");
    return out_of_memory_error(other, 2 * kMiB);
  }();
  CHECK(info.cause == OutOfMemoryInfo::upstream_exhausted);
  CHECK(pool->stats().current == 3 * kMiB && pool->stats().reserved == 3 * kMiB);
  check_pool(*pool);
}

TEST(an_arena_of_a_simulated_device) {
  const auto device = std::make_shared<memcfg::SimulatedResource>("gpu", 8 * kMiB);
  const auto pool = std::make_shared<Pool>("gpu", 64 * kMiB, true, device);
  {
    Arena arena(pool, 64 * kMiB, "model");
    arena.grow(5 * kMiB + 1);
    Blocks blocks(*pool);
    blocks.take({2 * kMiB});
    CHECK(out_of_memory_error(arena, 7 * kMiB).cause ==
          OutOfMemoryInfo::simulated_full);
    CHECK(out_of_memory_error(*pool, {2 * kMiB}).cause ==
          OutOfMemoryInfo::simulated_full);
    arena.shrink(kMiB);
    blocks.take({5 * kMiB});
    arena.check();
    check_pool(*pool);
  }
  CHECK(device->stats().reserved == pool->stats().reserved);
  pool->trim(0);
  CHECK(device->stats().reserved == 0);
}

TEST(the_system_may_refuse_at_any_call) {
  for (const bool once : {false, true}) {
    int refused = 1;
    for (int grants = 0; refused > 0; ++grants) {
      CHECK(grants < 200);
      const Faulty system;
      refused = 0;
      system.calls_left = grants;
      system.once = once;
      const auto attempt = [&](const auto& step) {
        try {
          step();
        } catch (const std::bad_alloc&) {
          ++refused;
        }
      };
      attempt([&] {
        const auto pool = make_pool(8 * kMiB, system);
        Blocks blocks(*pool);
        std::unique_ptr<Arena> arena;
        attempt([&] { arena = std::make_unique<Arena>(pool, 16 * kMiB, "model"); });
        if (arena == nullptr) return;
        const auto grow = [&](Bytes size) {
          const State before(*pool);
          const Bytes pages = system.guarded;
          try {
            arena->grow(size);
          } catch (const std::bad_alloc&) {
            ++refused;
            CHECK(State(*pool) == before && system.guarded == pages);
          }
          arena->check();
          check_pool(*pool);
        };
        grow(100);
        attempt([&] { blocks.take({6 * kMiB}); });
        blocks.clear();
        grow(5 * kMiB);
        attempt([&] { blocks.take({2 * kMiB}); });
        arena->shrink(64);
        arena->check();
        grow(3 * kMiB);
        if (grants % 2 == 0) arena->free();
        check_pool(*pool);
      });
      CHECK(system.has_all_back());
    }
  }
}

// Each thread has its arena; the metadata add up at any moment.
TEST(threads_grow_apart) {
  Fixture f(8 * kMiB);
  std::vector<std::thread> threads;
  std::atomic<int> working{3};
  std::atomic<int> failures{0};
  for (unsigned seed = 0; seed < 3; ++seed) {
    threads.emplace_back([&, seed] {
      std::mt19937 random(seed);
      try {
        const auto arena = f.arena(8 * kMiB);
        Blocks blocks(*f.pool);
        for (int step = 0; step < 1500; ++step) {
          try {
            if (random() % 2 == 0) arena->grow(arena->size() + random() % (kMiB / 2));
            if (random() % 3 == 0) arena->shrink(arena->size() / 2);
            blocks.take({1 + random() % 5000});
          } catch (const out_of_memory&) {
            arena->shrink(0);
            blocks.clear();
          }
          if (blocks.count() > 20) blocks.give(random() % blocks.count());
        }
        arena->check();
      } catch (const std::exception& error) {
        std::printf("%s\n", error.what());
        ++failures;
      }
      --working;
    });
  }
  try {
    while (working > 0) {
      check_busy_pool(*f.pool);
      CHECK(f.system.open + f.system.guarded <= 8 * kMiB + f.page);
    }
  } catch (const std::exception& error) {
    std::printf("%s\n", error.what());
    ++failures;
  }
  for (std::thread& thread : threads) thread.join();
  CHECK(failures == 0 && f.pool->stats().current == 0);
  CHECK(f.system.most <= 8 * kMiB + f.page);
  check_pool(*f.pool);
}
