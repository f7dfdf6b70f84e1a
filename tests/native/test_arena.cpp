#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstring>
#include <memory>
#include <optional>
#include <thread>
#include <vector>

#include "check.hpp"
#include "memcfg/arena.hpp"
#include "systems.hpp"

using memcfg::Arena;
using memcfg::Bytes;
using memcfg::kNoLimit;
using memcfg::out_of_memory;
using memcfg::Pin;
using memcfg::Pool;
using memcfg::Shortage;

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

Shortage refusal(Arena& arena, Bytes size) {
  try {
    arena.grow(size);
  } catch (const out_of_memory& error) {
    return error.shortage();
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
  CHECK(f.pool->stats().now.charged == 0 && f.pool->stats().now.reserved == 0);
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
    CHECK(f.pool->stats().now.charged == after);
    CHECK(f.pool->stats().now.reserved == (after + f.page - 1) / f.page * f.page);
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
  CHECK(f.pool->stats().free == 0);
  const Shortage report = refusal(*arena, 1025);
  CHECK(report.cause == Shortage::limit_reached);
  CHECK(report.requested == 1 && report.in_use == 1024 && report.largest_free == 0);
  CHECK(arena->size() == 1024 && f.pool->stats().now.requested == 1000);
  arena->check();
  f.pool->check();
}

TEST(addresses_run_out) {
  Fixture f(kNoLimit);
  const auto arena = f.arena(f.page);
  arena->grow(f.page);
  for (const Bytes size : {f.page + 1, kNoLimit / 2, kNoLimit}) {
    CHECK(refusal(*arena, size).cause == Shortage::no_addresses);
    CHECK(f.pool->stats().now.charged == f.page);
    arena->check();
  }
}

TEST(system_refusals_roll_back) {
  Fixture f(1 << 20);
  const auto arena = f.arena(1 << 20);
  arena->grow(f.page);
  f.system.grants_left = 0;
  CHECK(refusal(*arena, f.page + 1).cause == Shortage::no_memory);
  CHECK(arena->size() == f.page && f.pool->stats().now.charged == f.page);
  CHECK(f.pool->stats().free == (1 << 20) - f.page);
  CHECK_THROWS(out_of_memory, f.arena(f.page));
  CHECK(f.pool->owners().size() == 1);
  arena->check();
  f.pool->check();
  f.system.grants_left = 1;
  arena->grow(2 * f.page);
  arena->check();
}

TEST(growth_inside_a_page_asks_nothing_of_the_system) {
  Fixture f(kNoLimit);
  const auto arena = f.arena(1 << 20);
  arena->grow(1);
  f.system.grants_left = 0;
  arena->grow(f.page);
  CHECK(f.pool->stats().now.charged == f.page);
}

TEST(default_capacity_is_halved_until_granted) {
  Fixture f(kNoLimit);
  CHECK(f.arena(0)->capacity() == f.system.memory_size());
  Fixture beyond(kNoLimit / 2 + 64);  // no machine has so many addresses
  CHECK(beyond.arena(0)->capacity() > beyond.system.memory_size());
  CHECK_THROWS(out_of_memory, beyond.arena(kNoLimit / 2));
  CHECK_THROWS(out_of_memory, beyond.arena(kNoLimit));
  CHECK(beyond.pool->stats().now.charged == 0);
}

TEST(shrinking_gives_back_and_regrowth_is_zero) {
  Fixture f(1 << 20);
  const auto arena = f.arena(1 << 20);
  arena->grow(5 * f.page);
  std::memset(arena->base(), 7, arena->size());
  arena->shrink(f.page + 100);
  CHECK(arena->size() == f.page + 128);
  CHECK(f.pool->stats().now.charged == f.page + 128);
  CHECK(f.pool->stats().now.reserved == 2 * f.page);
  CHECK(arena->base()[f.page + 127] == std::byte{7});
  arena->check();
  f.pool->check();
  arena->grow(5 * f.page);
  for (Bytes i = f.page + 128; i < 5 * f.page; ++i) {
    CHECK(arena->base()[i] == std::byte{0});
  }
  arena->shrink(0);
  CHECK(arena->size() == 0 && f.pool->stats().free == 1 << 20);
  arena->check();
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
  CHECK(f.pool->stats().now.charged == 0 && f.pool->stats().now.reserved == 0);
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
    const memcfg::Block block(f.pool, 64, arena->owner());
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
  CHECK(f.system.reserved == 0 && f.pool->stats().now.charged == 0);
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
