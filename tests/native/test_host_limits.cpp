#include <atomic>
#include <memory>
#include <random>

#include "block.hpp"
#include "check.hpp"
#include "memcfg/arena.hpp"
#include "memcfg/host_limits.hpp"
#include "memcfg/system_resource.hpp"
#include "pools.hpp"
#include "threading.hpp"

using memcfg::host_limits;
using memcfg::HostLimits;
using memcfg::resident_size;
using memcfg::set_host_limits;
using memcfg::tracked_bytes;
using namespace pools;
using namespace threading;

namespace {

// Host limits for the time of a test.
struct Limits {
  explicit Limits(Bytes tracked, Bytes rss = kNoLimit) {
    set_host_limits({tracked, rss});
  }
  ~Limits() { set_host_limits({}); }
};

}  // namespace

TEST(there_are_none_at_first) {
  CHECK(host_limits().tracked == kNoLimit && host_limits().rss == kNoLimit);
  CHECK(tracked_bytes() == 0);
}

TEST(limits_of_nothing_are_none) {
  CHECK_THROWS(std::invalid_argument, set_host_limits({0, kNoLimit}));
  CHECK_THROWS(std::invalid_argument, set_host_limits({kNoLimit, 0}));
  CHECK(host_limits().tracked == kNoLimit && host_limits().rss == kNoLimit);
}

TEST(setting_tells_what_was_before) {
  const Limits limits(kMiB, 1024 * kGiB);
  const HostLimits before = set_host_limits({2 * kMiB, 2048 * kGiB});
  CHECK(before.tracked == kMiB && before.rss == 1024 * kGiB);
  CHECK(host_limits().tracked == 2 * kMiB && host_limits().rss == 2048 * kGiB);
}

TEST(all_pools_count) {
  const auto first = make_pool(kNoLimit);
  const auto second = make_pool(kNoLimit);
  const memcfg::Block block(first, {100});
  memcfg::Arena arena(second, kMiB, "model");
  arena.grow(1000);
  const auto system = std::make_shared<memcfg::SystemResource>("d");
  const memcfg::Block plain(system, {200});
  CHECK(tracked_bytes() == 128 + 1024 + 256);
  arena.shrink(0);
  CHECK(tracked_bytes() == 128 + 256);
}

TEST(what_is_not_the_hosts_is_not_counted) {
  const auto device = std::make_shared<memcfg::SimulatedResource>("gpu", 64 * kMiB);
  const auto pool = std::make_shared<Pool>("gpu", kNoLimit, true, device);
  const memcfg::Block block(pool, {kMiB});
  CHECK(tracked_bytes() == 0);
}

// Once, by the pool below.
TEST(a_pool_on_a_pool_counts_once) {
  const auto below = make_pool(kNoLimit);
  const auto top = std::make_shared<Pool>("top", kNoLimit, true, below);
  const memcfg::Block block(top, {kMiB});
  CHECK(tracked_bytes() == below->stats().current);
}

TEST(what_caches_keep_is_not_in_use) {
  const auto pool = make_pool(kNoLimit);
  {
    Blocks blocks(*pool);
    for (int i = 0; i < 30; ++i) blocks.take({1000});
    CHECK(tracked_bytes() == 30 * 1024);
  }
  CHECK(tracked_bytes() == 0);
}

TEST(the_last_byte_of_the_tracked_limit) {
  const Limits limits(kMiB);
  const auto first = make_pool(kNoLimit);
  const auto second = make_pool(64 * kMiB);
  const memcfg::Block block(first, {kMiB - 128});
  const OutOfMemoryInfo report = out_of_memory_error(*second, {129});
  CHECK(report.cause == OutOfMemoryInfo::tracked_limit && report.requested == 129);
  CHECK(grants(*second, {128}));
  const memcfg::Block rest(second, {128});
  CHECK(out_of_memory_error(*first, {1}).cause == OutOfMemoryInfo::tracked_limit);
  CHECK(tracked_bytes() == kMiB);
  memcfg::Arena arena(first, kMiB, "model");
  CHECK_THROWS(out_of_memory, arena.grow(1));
  check_pool(*first);
  check_pool(*second);
}

// Another pool's caches have charged bytes in advance.
TEST(caches_give_up_what_they_have) {
  const Limits limits(kMiB);
  const auto first = make_pool(kNoLimit);
  const auto second = make_pool(kNoLimit);
  Meeting meeting(2);
  Threads threads;
  threads.start([&] {
    Blocks blocks(*first);
    for (int i = 0; i < 20; ++i) blocks.take({3000});
    blocks.clear();
    meeting.arrive();
    meeting.arrive();
  });
  meeting.arrive();
  CHECK(grants(*second, {kMiB}));
  CHECK(!grants(*second, {kMiB + 1}));
  meeting.arrive();
  threads.finish();
}

TEST(a_limit_below_use_changes_nothing) {
  const auto pool = make_pool(kNoLimit);
  const memcfg::Block block(pool, {kMiB});
  try {
    set_host_limits({kMiB - 64, kNoLimit});
    CHECK(false);
  } catch (const out_of_memory& error) {
    CHECK(error.info().cause == OutOfMemoryInfo::limit_lowered);
    CHECK(error.info().in_use == kMiB && error.info().limit == kNoLimit);
  }
  CHECK(host_limits().tracked == kNoLimit);
  const Limits limits(kMiB);
  CHECK(!grants(*pool, {1}));
  CHECK_THROWS(out_of_memory, set_host_limits({kMiB, resident_size() / 2}));
  CHECK(host_limits().tracked == kMiB && host_limits().rss == kNoLimit);
}

TEST(a_pool_that_ends_gives_all_back) {
  const Limits limits(kMiB);
  for (int round = 0; round < 3; ++round) {
    const auto pool = make_pool(kNoLimit);
    pool->allocate({kMiB});  // goes with the pool
    CHECK(!grants(*make_pool(kNoLimit), {1}));
  }
  CHECK(tracked_bytes() == 0);
}

TEST(the_resident_limit_refuses_pages) {
  const auto pool = make_pool(kNoLimit);
  const auto other = make_pool(kNoLimit);
  std::memset(
      Blocks(*other).take({8 * kMiB}), 1, 8 * kMiB);  // idle pages, and resident
  const Limits limits(kNoLimit, resident_size() + 16 * kMiB);
  Blocks blocks(*pool);
  Bytes taken = 0;
  for (; blocks.try_take({kMiB}); taken += kMiB) CHECK(taken < 64 * kMiB);
  CHECK(taken >= 8 * kMiB && taken <= 16 * kMiB);
  CHECK(out_of_memory_error(*pool, {kMiB}).cause == OutOfMemoryInfo::rss_limit);
  check_pool(*pool);
  memcfg::Arena arena(pool, 64 * kMiB, "model");
  CHECK_THROWS(out_of_memory, arena.grow(32 * kMiB));
  arena.check();
  blocks.clear();
  blocks.take({taken});  // of one's own idle pages
  CHECK(tracked_bytes() == taken);
}

// Four who ask at the same moment, each its own resource; there is memory for one.
TEST(threads_together_never_pass_the_resident_limit) {
  constexpr Bytes kAllowed = 100 * kMiB;
  constexpr Bytes kAsked = 60 * kMiB;
  for (int round = 0; round < 50; ++round) {
    const std::shared_ptr<memcfg::Resource> resources[] = {
        make_pool(kNoLimit),
        make_pool(kNoLimit),
        std::make_shared<memcfg::SystemResource>("d")};
    memcfg::Arena arena(make_pool(kNoLimit), kAsked, "model");
    std::atomic<Bytes> granted{0};
    Meeting meeting(4);
    Threads threads;
    const Limits limits(kNoLimit, resident_size() + kAllowed);
    const auto ask = [&](auto take) {
      threads.start([&, take] {
        meeting.arrive();
        try {
          take();
          granted += kAsked;
        } catch (const out_of_memory& error) {
          CHECK(error.info().cause == OutOfMemoryInfo::rss_limit);
        }
      });
    };
    for (const auto& each : resources) ask([&each] { each->allocate({kAsked}); });
    ask([&arena] { arena.grow(kAsked); });
    threads.finish();
    CHECK(granted == kAsked);
    for (const auto& each : resources) each->check();
  }
}

TEST(threads_never_pass_the_tracked_limit) {
  constexpr Bytes kLimit = 2 * kMiB;
  const Limits limits(kLimit);
  std::atomic<Bytes> in_use{0};
  std::atomic<int> refused{0};
  const std::shared_ptr<Pool> pools[] = {make_pool(kNoLimit), make_pool(3 * kMiB)};
  Threads threads;
  for (unsigned seed = 0; seed < 4; ++seed) {
    threads.start([&, seed] {
      std::mt19937 random(seed);
      Blocks blocks(*pools[seed % 2]);
      for (int step = 0; step < 3000; ++step) {
        const Bytes before = blocks.charged();
        const Bytes large = 1 + random() % 200000;
        if (blocks.try_take({random() % 4 == 0 ? large : 1 + random() % 4000})) {
          CHECK((in_use += blocks.charged() - before) <= kLimit);
        } else {
          ++refused;
          in_use -= before;
          blocks.clear();
        }
      }
      in_use -= blocks.charged();
    });
  }
  while (threads.at_work()) {
    CHECK(tracked_bytes() <= kLimit);
    for (const auto& pool : pools) check_busy_pool(*pool);
    try {
      set_host_limits({kLimit / 2, kNoLimit});
      set_host_limits({kLimit, kNoLimit});
    } catch (const out_of_memory&) {
    }
  }
  threads.finish();
  CHECK(refused > 0 && tracked_bytes() == 0);
}
