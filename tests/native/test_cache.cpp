#if defined(__linux__)
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#endif

#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstddef>
#include <cstdio>
#include <memory>
#include <mutex>
#include <random>
#include <thread>

#include "check.hpp"
#include "children.hpp"
#include "failing_new.hpp"
#include "memcfg/owner_lock.hpp"
#include "pools.hpp"
#include "threading.hpp"

using children::child_does;
using memcfg::bad_free;
using memcfg::OwnerLock;
using namespace pools;
using namespace threading;

namespace {

Bytes kept(const Pool& pool) {
  Bytes sum = 0;
  for (const HeapExtent& row : pool.layout()) {
    if (row.state == HeapExtent::cached) sum += row.size;
  }
  return sum;
}

// Lets others have the locks.
void give_way() {
  std::this_thread::sleep_for(std::chrono::microseconds(100));
}

Bytes small_size(std::mt19937& random) {
  return 1 + random() % (random() % 4 == 0 ? 70000 : 2000);
}

// Two parties change one number; the lock alone keeps them apart. `halfway` is called
// once, in the middle, while the owner goes on.
template <typename Act>
void change_one_number(Act halfway) {
  constexpr int kRounds = 2000;
  OwnerLock lock;
  int number = 0;
  std::atomic<int> inside{0};
  std::atomic<bool> done{false};
  Threads threads;
  threads.start([&] {
    while (!done) {
      if (!lock.enter()) {
        std::this_thread::yield();
        continue;
      }
      ++number;
      ++inside;
      lock.leave();
    }
  });
  for (int revoked = 0; revoked < kRounds; ++revoked) {
    if (revoked == kRounds / 2) halfway();
    OwnerLock::revoke([&](auto act) { act(lock); });
    ++number;
    lock.restore();
    if (revoked % 8 != 0) continue;
    for (const int before = inside; inside == before;) std::this_thread::yield();
  }
  done = true;
  threads.finish();
  CHECK(number == inside + kRounds);
}

}  // namespace

TEST(an_owner_and_its_revokers_exclude_each_other) {
  change_one_number([] {});
}

#if defined(__linux__) && defined(__x86_64__)
// From now on, in this thread: no barrier for other threads. Sanitizers need the rest.
void enter_sandbox() {
  struct sock_filter rules[] = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_membarrier, 0, 1),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
  };
  const struct sock_fprog filter{sizeof rules / sizeof *rules, rules};
  CHECK(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0);
  CHECK(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter) == 0);
}

TEST(barriers_may_be_taken_away_between_two_revocations) {
  CHECK(child_does([] { change_one_number(enter_sandbox); }));
}

TEST(barriers_may_be_out_of_reach_from_the_first) {
  CHECK(child_does([] {
    in_a_thread([] {
      enter_sandbox();
      OwnerLock lock;
      CHECK(lock.enter());
      lock.leave();
      OwnerLock::revoke([&](auto act) { act(lock); });
      CHECK(!lock.enter());
      lock.restore();
      CHECK(lock.enter());
    });
  }));
}

// All threads, their caches and the pool's own numbers.
TEST(a_pool_goes_on_without_barriers) {
  CHECK(child_does([] {
    const auto pool = make_pool(kNoLimit);
    Meeting meeting(2);
    Threads threads;
    threads.start([&] {
      Blocks blocks(*pool);
      for (int i = 0; i < 3000; ++i) {
        if (i == 100) meeting.arrive();
        blocks.take({1000});
        if (i % 2 == 0) blocks.clear();
      }
    });
    meeting.arrive();
    enter_sandbox();
    while (threads.at_work()) check_busy_pool(*pool);
    threads.finish();
    check_pool(*pool);
    CHECK(pool->stats().current == 0);
  }));
}
#endif

TEST(a_freed_block_serves_the_next_request) {
  const auto pool = make_pool(64 * kMiB);
  for (const Bytes size : {Bytes{1}, Bytes{64}, Bytes{1000}, 60 * kKiB}) {
    void* const address = pool->allocate({size});
    pool->deallocate(address, size);
    CHECK(pool->stats().current == 0 && kept(*pool) >= size);
    CHECK(pool->allocate({size}) == address);
    pool->deallocate(address, size);
    CHECK_THROWS(bad_free, pool->deallocate(address, size));
  }
  check_pool(*pool);
  check_layout(*pool);
}

// Another size of the same class, another tag: the metadata follow.
TEST(the_metadata_follow_a_block_through_the_cache) {
  const auto pool = make_pool(64 * kMiB);
  const Request first{2100, 64, Lifetime::unknown, "a"};
  const Request second{2050, 64, Lifetime::unknown, "b"};
  void* const address = pool->allocate(first);
  pool->deallocate(address, first.size);
  CHECK(pool->owners().empty() && pool->stats().requested == 0);
  for (int round = 0; round < 3; ++round) {
    void* const again = pool->allocate(second);
    CHECK(pool->stats().requested == 2050 && pool->stats().current == 2112);
    CHECK(pool->owners() == (memcfg::Owners{{"b", 2112}}));
    CHECK_THROWS(bad_free, pool->deallocate(again, first.size));
    pool->deallocate(again, second.size);
  }
  CHECK(pool->stats().allocations == 4 && pool->stats().deallocations == 4);
  check_pool(*pool);
}

TEST(a_cache_keeps_a_small_share) {
  for (const Bytes limit : {100 * kKiB, kMiB, 4 * kMiB, 64 * kMiB, kNoLimit}) {
    const auto pool = make_pool(limit);
    std::mt19937 random(1);
    Blocks blocks(*pool);
    for (int step = 0; step < 3000; ++step) {
      if (blocks.count() > 0 && random() % 2 == 0) {
        blocks.give(random() % blocks.count());
      } else {
        blocks.try_take({small_size(random)});
      }
    }
    blocks.clear();
    CHECK(kept(*pool) <= std::min(limit / 32, kMiB));
    CHECK(pool->stats().current == 0 && pool->owners().empty());
    check_pool(*pool);
    empty_caches(*pool);
    CHECK(kept(*pool) == 0 && count(*pool, HeapExtent::free) == pool->layout().size());
  }
}

TEST(what_caches_have_is_there_for_others) {
  const auto pool = make_pool(4 * kMiB);
  const auto warm = [&] {
    Blocks blocks(*pool);
    for (int i = 0; i < 30; ++i) blocks.take({1000});
  };
  Meeting meeting(4);
  Threads threads;
  for (int i = 0; i < 3; ++i) {
    threads.start([&] {
      warm();
      meeting.arrive();  // all caches have blocks and bytes of the limit
      meeting.arrive();
    });
  }
  meeting.arrive();
  const Bytes before = kept(*pool);
  const bool granted = grants(*pool, {4 * kMiB});
  const bool more = grants(*pool, {4 * kMiB + 1});
  meeting.arrive();
  threads.finish();
  CHECK(before > 0 && granted && !more);
}

TEST(a_thread_that_ends_leaves_its_blocks_to_others) {
  const auto pool = make_pool(64 * kMiB);
  std::vector<void*> addresses;
  in_a_thread([&] {
    for (int i = 0; i < 100; ++i) addresses.push_back(pool->allocate({1000}));
    for (int i = 0; i < 50; ++i) {
      pool->deallocate(addresses.back(), 1000);
      addresses.pop_back();
    }
  });
  CHECK(kept(*pool) == 0 && pool->stats().current == 50 * 1024);
  CHECK(pool->stats().allocations == 100 && pool->stats().deallocations == 50);
  check_pool(*pool);
  for (void* address : addresses) pool->deallocate(address, 1000);
  CHECK(pool->stats().current == 0 && pool->stats().peak == 100 * 1024);
  check_pool(*pool);
}

TEST(threads_that_end_leave_no_metadata) {
  const auto pool = make_pool(64 * kMiB);
  const auto work = [&] {
    Blocks blocks(*pool);
    for (int i = 0; i < 40; ++i) blocks.take({200, 64, Lifetime::unknown, "thread"});
  };
  in_a_thread(work);
  const Bytes before = pool->stats().metadata;
  for (int i = 0; i < 100; ++i) in_a_thread(work);
  CHECK(pool->stats().metadata == before && pool->stats().current == 0);
  check_pool(*pool);
}

TEST(a_pool_that_goes_before_its_threads) {
  const Faulty system;
  Meeting meeting(3);
  auto pool = make_pool(64 * kMiB, system);
  Threads threads;
  for (int i = 0; i < 2; ++i) {
    threads.start([&] {
      Blocks(*pool).take({100});
      meeting.arrive();
      meeting.arrive();  // the pool is gone; its addresses may be another's
      for (int round = 0; round < 20; ++round) {
        const auto other = make_pool(64 * kMiB);
        Blocks blocks(*other);
        for (int j = 0; j < 40; ++j) blocks.take({100});
      }
    });
  }
  meeting.arrive();
  pool.reset();
  CHECK(system.has_all_back());
  meeting.arrive();
  threads.finish();
}

// One thread, many pools in turns: each has its own cache of it.
TEST(a_thread_with_many_pools) {
  std::vector<std::shared_ptr<Pool>> pools;
  std::vector<std::unique_ptr<Blocks>> blocks;
  for (int i = 0; i < 20; ++i) {
    pools.push_back(make_pool(8 * kMiB));
    blocks.push_back(std::make_unique<Blocks>(*pools.back()));
  }
  std::mt19937 random(2);
  for (int step = 0; step < 5000; ++step) {
    const std::size_t index = random() % pools.size();
    Blocks& mine = *blocks[index];
    if (mine.count() > 5) {
      mine.give(random() % mine.count());
    } else {
      mine.take({small_size(random)});
    }
    if (step % 500 == 499) {
      blocks[index].reset();
      pools[index] = make_pool(8 * kMiB);
      blocks[index] = std::make_unique<Blocks>(*pools[index]);
    }
  }
  for (std::size_t i = 0; i < pools.size(); ++i) {
    CHECK(pools[i]->stats().current == blocks[i]->charged());
    check_pool(*pools[i]);
  }
}

// What is freed when a thread's variables go, its caches among them.
TEST(blocks_that_go_with_their_thread) {
  const auto pool = make_pool(64 * kMiB);
  struct Last {
    std::unique_ptr<Blocks> blocks;
    ~Last() {
      if (blocks == nullptr) return;
      blocks->clear();
      blocks->take({100});
    }
  };
  for (const bool first : {false, true}) {
    in_a_thread([&] {
      static thread_local Last last;
      if (!first) pool->deallocate(pool->allocate({100}), 100);
      last.blocks = std::make_unique<Blocks>(*pool);
      for (int i = 0; i < 20; ++i) last.blocks->take({1000});
    });
    CHECK(pool->stats().current == 0);
    check_pool(*pool);
  }
}

TEST(one_of_two_frees_of_a_block_is_refused) {
  const auto pool = make_pool(64 * kMiB);
  for (const Bytes size : {Bytes{100}, 100 * kKiB}) {
    constexpr int kRounds = 2000;
    std::atomic<void*> block{nullptr};
    std::atomic<int> refused{0};
    Meeting meeting(2);
    Threads threads;
    for (const bool leads : {true, false}) {
      threads.start([&, leads] {
        for (int round = 0; round < kRounds; ++round) {
          if (leads) block = pool->allocate({size});
          meeting.arrive();
          try {
            pool->deallocate(block, size);
          } catch (const bad_free&) {
            ++refused;
          }
          meeting.arrive();
        }
      });
    }
    threads.finish();
    CHECK(refused == kRounds && pool->stats().current == 0);
    CHECK(pool->stats().deallocations == pool->stats().allocations);
    check_pool(*pool);
  }
}

// The freeing thread keeps what it can, and is still there when others want it.
TEST(what_another_thread_frees_is_room_at_once) {
  for (const Bytes limit : {kMiB, 8 * kMiB}) {
    const auto pool = make_pool(limit);
    std::vector<void*> addresses;
    constexpr int kRounds = 4;
    Meeting meeting(2);
    Threads threads;
    threads.start([&] {
      for (int round = 0; round < kRounds; ++round) {
        meeting.arrive();
        for (void* address : addresses) pool->deallocate(address, 1000);
        meeting.arrive();
        meeting.arrive();
      }
    });
    for (int round = 0; round < kRounds; ++round) {
      addresses.clear();
      for (Bytes left = limit; left > 0; left -= 1024) {
        addresses.push_back(pool->allocate({1000}));
      }
      const bool full = pool->stats().current == limit && !grants(*pool, {1});
      meeting.arrive();
      meeting.arrive();
      const ResourceStats now = pool->stats();
      CHECK(full && now.current == 0 && now.requested == 0 && now.peak == limit);
      CHECK_THROWS(bad_free, pool->deallocate(addresses[0], 1000));
      if (round == 0) CHECK(kept(*pool) > 0);
      CHECK(!grants(*pool, {limit + 1}) && grants(*pool, {limit}));
      meeting.arrive();
    }
    threads.finish();
    check_pool(*pool);
  }
}

// One takes, another frees: the metadata of either thread's cache alone are below zero.
TEST(blocks_cross_threads) {
  for (const Bytes limit : {kMiB, 64 * kMiB}) {
    const auto pool = make_pool(limit);
    std::mutex mutex;
    std::vector<std::pair<void*, Bytes>> shelf;
    std::atomic<int> takers{2};
    Threads threads;
    for (unsigned seed = 0; seed < 2; ++seed) {
      threads.start([&, seed] {
        std::mt19937 random(seed);
        for (int step = 0; step < 8000; ++step) {
          const Request request{
              small_size(random), 64, Lifetime::unknown, seed == 0 ? "a" : "b"};
          try {
            void* const address = pool->allocate(request);
            std::memset(address, 7, request.size);
            const std::lock_guard<std::mutex> lock(mutex);
            shelf.emplace_back(address, request.size);
          } catch (const out_of_memory&) {
            std::this_thread::yield();
          }
        }
        --takers;
      });
      threads.start([&] {
        for (bool last = false; !last;) {
          last = takers == 0;
          std::vector<std::pair<void*, Bytes>> mine;
          {
            const std::lock_guard<std::mutex> lock(mutex);
            mine.swap(shelf);
          }
          if (mine.empty()) give_way();
          for (const auto& [address, size] : mine) pool->deallocate(address, size);
        }
      });
    }
    for (; threads.at_work(); give_way()) check_busy_pool(*pool);
    threads.finish();
    const ResourceStats now = pool->stats();
    CHECK(now.current == 0 && now.requested == 0 && pool->owners().empty());
    CHECK(now.allocations == now.deallocations && now.peak <= limit);
    check_pool(*pool);
  }
}

// All hold their blocks at one moment, over and over.
TEST(the_peak_of_several_threads_is_never_too_low) {
  constexpr int kThreads = 4;
  const auto pool = make_pool(64 * kMiB);
  Meeting meeting(kThreads);
  std::atomic<Bytes> held{0};
  std::atomic<Bytes> highest{0};
  Threads threads;
  for (unsigned seed = 0; seed < kThreads; ++seed) {
    threads.start([&, seed] {
      std::mt19937 random(seed);
      Blocks blocks(*pool);
      for (int round = 0; round < 200; ++round) {
        for (std::size_t i = random() % 40; i > 0; --i)
          blocks.take({small_size(random)});
        held += blocks.charged();
        meeting.arrive();
        if (seed == 0) highest = std::max<Bytes>(highest, held);
        if (seed == 0) CHECK(pool->stats().peak >= highest);
        if (seed == 0) CHECK(pool->stats().current == held);
        meeting.arrive();
        held -= blocks.charged();
        while (blocks.count() > 10) blocks.give(random() % blocks.count());
      }
    });
  }
  threads.finish();
  CHECK(pool->stats().peak >= highest);
}

// Small blocks, so that the limit is passed between caches all the time.
TEST(threads_never_pass_a_limit_that_moves) {
  constexpr Bytes kLimit = 2 * kMiB;
  const Faulty system;
  {
    const auto pool = make_pool(kLimit, system);
    std::atomic<Bytes> in_use{0};
    std::atomic<int> refused{0};
    Threads threads;
    for (unsigned seed = 0; seed < 4; ++seed) {
      threads.start([&, seed] {
        std::mt19937 random(seed);
        Blocks blocks(*pool);
        for (int step = 0; step < 5000; ++step) {
          const Bytes before = blocks.charged();
          if (!blocks.try_take({small_size(random)})) {
            ++refused;
            in_use -= before;
            blocks.clear();
            continue;
          }
          CHECK((in_use += blocks.charged() - before) <= kLimit);
          if (blocks.count() < 10 + seed * 30) continue;
          in_use -= blocks.size(0) > 0 ? align_up(blocks.size(0)) : 0;
          blocks.give(0);
        }
        in_use -= blocks.charged();
      });
    }
    for (Bytes step = 0; threads.at_work(); ++step) {
      try {
        pool->set_limit(step % 2 == 0 ? kLimit / 2 : kLimit);
      } catch (const out_of_memory& error) {
        CHECK(error.info().in_use <= kLimit);
      }
      check_busy_pool(*pool);
      CHECK(system.most <= kLimit + pool->system().page_size());
      if (step % 16 == 0) pool->trim(0);
    }
    threads.finish();
    pool->set_limit(kLimit);
    CHECK(pool->stats().current == 0 && pool->owners().empty());
    CHECK(grants(*pool, {kLimit}));
    // How often they were refused depends on how many were at work at a time.
    std::printf("%d refused\n", refused.load());
  }
  CHECK(system.has_all_back());
}

// The metadata are read in every way while threads come, work and go.
TEST(threads_come_and_go_while_others_look) {
  const auto pool = make_pool(32 * kMiB);
  std::atomic<bool> done{false};
  Threads lookers;
  lookers.start([&] {
    while (!done) {
      check_busy_pool(*pool);
      pool->layout();
      give_way();
    }
  });
  lookers.start([&] {
    while (!done) {
      pool->owners();
      pool->reset_peak();
      pool->trim(64 * kKiB);
      give_way();
    }
  });
  for (unsigned round = 0; round < 30; ++round) {
    Threads threads;
    for (unsigned seed = 0; seed < 3; ++seed) {
      threads.start([&, seed] {
        std::mt19937 random(round * 3 + seed);
        const std::string tag = "tag " + std::to_string(random() % 100);
        Blocks blocks(*pool);
        for (int step = 0; step < 300; ++step) {
          blocks.take({small_size(random), 64, Lifetime::unknown, tag});
          if (blocks.count() > 20) blocks.give(random() % blocks.count());
        }
      });
    }
    threads.finish();
  }
  done = true;
  lookers.finish();
  CHECK(pool->stats().current == 0 && kept(*pool) == 0);
  check_pool(*pool);
}

// Each thread meets both pools for the first time, in either order.
TEST(threads_use_a_pool_on_a_pool) {
  for (int round = 0; round < 30; ++round) {
    const auto below = make_pool(128 * kMiB);
    const auto top = std::make_shared<Pool>("top", 48 * kMiB, true, below);
    Threads threads;
    for (unsigned seed = 0; seed < 4; ++seed) {
      threads.start([&, seed] {
        std::mt19937 random(seed);
        if (seed % 2 == 0) Blocks(*below).take({100});
        Blocks blocks(*top);
        for (int step = 0; step < 60; ++step) {
          const Bytes large = 1 + random() % (4 * kMiB);
          blocks.try_take({step % 4 == 0 ? large : small_size(random)});
          if (blocks.count() > 6) blocks.give(random() % blocks.count());
          if (step % 16 == 0) top->trim(0);
        }
      });
    }
    threads.start([&] {
      for (int i = 0; i < 20; ++i) {
        check_busy_pool(*top);
        check_busy_pool(*below);
      }
    });
    threads.finish();
    CHECK(top->stats().current == 0);
    top->trim(0);
    CHECK(below->stats().current == 0);
    check_pool(*top);
    check_pool(*below);
  }
}

// A thread that has no memory for a cache works without one.
TEST(no_memory_for_a_cache) {
  for (int grants = 0; grants < 12; ++grants) {
    const auto pool = make_pool(64 * kMiB);
    void* const address = pool->allocate({100, 64, Lifetime::unknown, "main"});
    in_a_thread([&] {
      void* mine = nullptr;
      {
        const failing_new::After some(grants);
        pool->deallocate(address, 100);
        try {
          mine =
              pool->allocate({200, 64, Lifetime::unknown, "a tag that is not short"});
        } catch (const std::bad_alloc&) {
        }
      }
      check_pool(*pool);
      if (mine != nullptr) pool->deallocate(mine, 200);
      pool->deallocate(pool->allocate({300}), 300);
    });
    CHECK(pool->stats().current == 0 && pool->owners().empty());
    check_pool(*pool);
  }
}
