#include <atomic>
#include <memory>
#include <random>

#include "block.hpp"
#include "check.hpp"
#include "children.hpp"
#include "fork_safe_new.hpp"
#include "memcfg/arena.hpp"
#include "memcfg/host_limits.hpp"
#include "memcfg/system_resource.hpp"
#include "memcfg/workspace.hpp"
#include "pools.hpp"
#include "threading.hpp"

using children::child_does;
using namespace pools;
using namespace threading;

namespace {

// Takes and frees blocks of all kinds.
void use(Pool& pool, unsigned seed, int steps) {
  std::mt19937 random(seed);
  Blocks blocks(pool);
  for (int step = 0; step < steps; ++step) {
    if (blocks.count() > 0 && random() % 4 == 0) {
      blocks.resize(random() % blocks.count(),
                    1 + random() % (random() % 8 == 0 ? kMiB : 3000));
    } else if (blocks.count() > 10) {
      blocks.give(random() % blocks.count());
    } else {
      const Bytes large = 1 + random() % kMiB;
      blocks.try_take({random() % 8 == 0 ? large : 1 + random() % 3000});
    }
  }
}

void use_everything(Pool& pool, unsigned seed) {
  check_busy_pool(pool);
  use(pool, seed, 100);
  pool.layout();
  pool.blocks();
  pool.owners();
  pool.trim(0);
  const Bytes limit = pool.set_limit(kNoLimit);
  pool.set_limit(limit);
  pool.reset_peak();
  check_pool(pool);
}

}  // namespace

TEST(a_child_has_what_its_parent_had) {
  const auto pool = make_pool(64 * kMiB);
  Blocks blocks(*pool);
  for (int i = 0; i < 50; ++i) blocks.take({1000, 64, Lifetime::unknown, "a"});
  for (int i = 0; i < 20; ++i) blocks.give(0);
  const State before(*pool);
  CHECK(child_does([&] {
    CHECK(State(*pool) == before);
    blocks.clear();
    CHECK(pool->stats().current == 0);
    use_everything(*pool, 1);
    CHECK(grants(*pool, {64 * kMiB}));
    if (kThreadSanitizer) return;  // it allows no threads in a child
    for (unsigned seed = 0; seed < 3; ++seed)
      in_a_thread([&] { use(*pool, seed, 99); });
    check_pool(*pool);
  }));
  CHECK(State(*pool) == before && blocks.intact());
  check_pool(*pool);
}

TEST(a_child_has_what_another_thread_freed) {
  const auto pool = make_pool(64 * kMiB);
  std::vector<void*> addresses;
  for (int i = 0; i < 100; ++i) addresses.push_back(pool->allocate({1000}));
  Meeting meeting(2);
  Threads threads;
  threads.start([&] {
    for (void* address : addresses) pool->deallocate(address, 1000);
    meeting.arrive();
    meeting.arrive();
  });
  meeting.arrive();
  const bool good = child_does([&] {
    CHECK(pool->stats().current == 0 && grants(*pool, {64 * kMiB}));
    CHECK_THROWS(memcfg::bad_free, pool->deallocate(addresses[0], 1000));
    use_everything(*pool, 1);
  });
  meeting.arrive();
  threads.finish();
  CHECK(good && pool->stats().current == 0);
  check_pool(*pool);
}

TEST(a_child_of_a_child) {
  const auto pool = make_pool(64 * kMiB);
  use(*pool, 1, 100);
  CHECK(child_does([&] {
    use(*pool, 2, 100);
    CHECK(child_does([&] { use_everything(*pool, 3); }));
    use_everything(*pool, 4);
  }));
  use_everything(*pool, 5);
}

// Threads are anywhere in the pool, or in their caches, when the process is copied.
TEST(forks_while_threads_allocate) {
  const auto pool = make_pool(32 * kMiB);
  const auto below = make_pool(kNoLimit);
  const auto top = std::make_shared<Pool>("top", 32 * kMiB, true, below);
  std::atomic<bool> done{false};
  Threads threads;
  for (unsigned seed = 0; seed < 3; ++seed) {
    threads.start([&, seed] {
      for (unsigned round = 0; !done; ++round) {
        use(seed == 2 ? *top : *pool, 3 * round + seed, 200);
        if (round % 8 == 0) pool->set_limit(round % 16 == 0 ? 24 * kMiB : 32 * kMiB);
        if (seed == 2) top->trim(0);
      }
    });
  }
  threads.start([&] {
    while (!done) in_a_thread([&] { use(*pool, 9, 50); });
  });
  int failed = 0;
  for (unsigned round = 0; round < 60; ++round) {
    const bool good = child_does([&] {
      use_everything(*pool, round);
      use_everything(*top, round);
      use_everything(*below, round);
      const auto fresh = make_pool(8 * kMiB);
      use_everything(*fresh, round);
    });
    if (!good) ++failed;
  }
  done = true;
  threads.finish();
  CHECK(failed == 0);
  for (Pool* each : {pool.get(), top.get()}) {
    CHECK(each->stats().current == 0);
    use_everything(*each, 0);
  }
}

// Pools come and go, threads come and go, other threads fork.
TEST(forks_while_pools_are_made) {
  std::atomic<bool> done{false};
  Threads threads;
  for (unsigned seed = 0; seed < 2; ++seed) {
    threads.start([&, seed] {
      while (!done) use(*make_pool(8 * kMiB), seed, 20);
    });
  }
  Threads forks;
  forks.start([] {
    for (unsigned round = 0; round < 40; ++round) {
      CHECK(child_does([&] { use_everything(*make_pool(8 * kMiB), round); }));
    }
  });
  forks.finish();
  done = true;
  threads.finish();
}

// An arena in the middle of its growth is its thread's; the pool is everybody's.
TEST(forks_while_an_arena_grows) {
  const auto pool = make_pool(32 * kMiB);
  std::atomic<bool> done{false};
  Threads threads;
  threads.start([&] {
    memcfg::Arena arena(pool, 16 * kMiB, "model");
    while (!done) {
      for (Bytes size = 0; size < 16 * kMiB; size += 100000) arena.grow(size);
      arena.shrink(0);
    }
  });
  for (unsigned round = 0; round < 40; ++round) {
    CHECK(child_does([&] {
      use_everything(*pool, round);
      const memcfg::Block block(pool, {8 * kMiB});
      memcfg::Arena mine(pool, kMiB, "child");
      mine.grow(kMiB);
      check_pool(*pool);
    }));
  }
  done = true;
  threads.finish();
  CHECK(pool->stats().current == 0);
  check_pool(*pool);
}

// The child goes on with the workspace that another thread had open.
TEST(forks_while_workspaces_cycle) {
  const auto pool = make_pool(32 * kMiB);
  memcfg::WorkspaceRules rules;
  rules.initial = kMiB;
  const auto workspace = std::make_shared<memcfg::Workspace>(pool, pool, rules);
  std::atomic<bool> done{false};
  Threads threads;
  threads.start([&] {
    while (!done) {
      workspace->open();
      void* const kept = workspace->allocate({300 * kKiB});
      workspace->release(workspace->allocate({kMiB}));
      workspace->close();
      workspace->release(kept);
    }
  });
  for (unsigned round = 0; round < 40; ++round) {
    CHECK(child_does([&] {
      workspace->check();
      workspace->close();
      CHECK(workspace->open());
      workspace->release(workspace->allocate({1000}));
      workspace->close();
      workspace->check();
      use_everything(*pool, round);
    }));
  }
  done = true;
  threads.finish();
  workspace->destroy();
  CHECK(pool->stats().current == 0);
}

TEST(forks_of_a_simulated_device) {
  const auto device = std::make_shared<memcfg::SimulatedResource>("gpu", 64 * kMiB);
  const auto pool = std::make_shared<Pool>("gpu", 64 * kMiB, true, device);
  std::atomic<bool> done{false};
  Threads threads;
  threads.start([&] {
    while (!done) use(*pool, 1, 100);
  });
  threads.start([&] {
    while (!done) device->deallocate(device->allocate({kMiB}), kMiB);
  });
  for (unsigned round = 0; round < 40; ++round) {
    CHECK(child_does([&] {
      use_everything(*pool, round);
      device->check();
      device->deallocate(device->allocate({kMiB}), kMiB);
    }));
  }
  done = true;
  threads.finish();
  check_pool(*pool);
}

TEST(forks_while_host_limits_change) {
  const auto pool = make_pool(32 * kMiB);
  std::atomic<bool> done{false};
  Threads threads;
  threads.start([&] {
    while (!done) {
      memcfg::set_host_limits({256 * kMiB, kNoLimit});
      memcfg::tracked_bytes();
      memcfg::set_host_limits({});
    }
  });
  threads.start([&] {
    while (!done) use(*pool, 1, 100);
  });
  for (unsigned round = 0; round < 40; ++round) {
    CHECK(child_does([&] {
      memcfg::set_host_limits({128 * kMiB, kNoLimit});
      use_everything(*pool, round);
      memcfg::set_host_limits({});
    }));
  }
  done = true;
  threads.finish();
}
