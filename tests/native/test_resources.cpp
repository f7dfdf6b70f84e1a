#include <functional>

#include "conformance.hpp"
#include "failing_new.hpp"
#include "memcfg/failure_callback.hpp"
#include "memcfg/limiting.hpp"
#include "memcfg/pool.hpp"
#include "memcfg/simulated.hpp"
#include "memcfg/statistics.hpp"
#include "memcfg/system_resource.hpp"
#include "systems.hpp"

using memcfg::Bytes;
using memcfg::FailureCallbackResource;
using memcfg::kNoLimit;
using memcfg::LimitingResource;
using memcfg::Pool;
using memcfg::Resource;
using memcfg::Shortage;
using memcfg::SimulatedResource;
using memcfg::StatisticsResource;
using memcfg::SystemResource;

namespace {

using Shared = std::shared_ptr<Resource>;
using conformance::kMiB;
using conformance::State;

constexpr Bytes kLimit = 256 * kMiB;

Shared blocks_of(const Faulty& system) {
  return std::make_shared<SystemResource>(
      "d", std::shared_ptr<const memcfg::System>(std::shared_ptr<void>(), &system));
}
Shared pool_of(const Faulty& system, Bytes limit) {
  return std::make_shared<Pool>("d", limit, system);
}
Shared simulated() {
  return std::make_shared<SimulatedResource>("d", 1024 * kMiB);
}
Shared pool_on(const Shared& upstream) {
  return std::make_shared<Pool>("", kLimit, true, upstream);
}
Shared limited(const Shared& upstream) {
  return std::make_shared<LimitingResource>(upstream, kLimit);
}
Shared counted(const Shared& upstream) {
  return std::make_shared<StatisticsResource>(upstream);
}
Shared asking(const Shared& upstream) {
  return std::make_shared<FailureCallbackResource>(upstream,
                                                   [](Bytes) { return false; });
}

struct Case {
  const char* name;
  Shared (*make)(const Faulty& system);
};

const Case kCases[] = {
    {"system", blocks_of},
    {"simulated", [](const Faulty&) { return simulated(); }},
    {"pool without a limit", [](const Faulty& s) { return pool_of(s, kNoLimit); }},
    {"pool", [](const Faulty& s) { return pool_of(s, kLimit); }},
    {"pool on simulated", [](const Faulty&) { return pool_on(simulated()); }},
    {"pool on blocks", [](const Faulty& s) { return pool_on(blocks_of(s)); }},
    {"pool on pool", [](const Faulty& s) { return pool_on(pool_of(s, kNoLimit)); }},
    {"limiting", [](const Faulty& s) { return limited(blocks_of(s)); }},
    {"statistics", [](const Faulty& s) { return counted(pool_of(s, kLimit)); }},
    {"failure callback", [](const Faulty& s) { return asking(pool_of(s, kLimit)); }},
    {"all at once",
     [](const Faulty&) { return counted(limited(asking(pool_on(simulated())))); }},
};

// Runs a check on each resource; says which one failed it.
void each(const std::function<void(Resource&, const Faulty&)>& body) {
  for (const Case& one : kCases) {
    const Faulty system;
    try {
      const Shared resource = one.make(system);
      body(*resource, system);
    } catch (const std::exception& error) {
      throw check::Failed(std::string(one.name) + ": " + error.what());
    }
    if (!system.has_all_back()) throw check::Failed(std::string(one.name) + " leaks");
  }
}

void each(void (*body)(Resource&)) {
  each([body](Resource& resource, const Faulty&) { body(resource); });
}

struct Injection {
  std::function<void(int)> arm;  // so many grants from now on
  std::function<void()> disarm;
};

// Takes blocks of all kinds; the first refusal is the only one. Gives them back while
// everything is refused. Returns how many requests were refused.
int take_and_give(Resource& resource, const Injection& inject, int grants) {
  const std::vector<memcfg::Request> requests = {
      {100, 64, memcfg::Lifetime::unknown, "a"},
      {70000, 64, memcfg::Lifetime::short_lived, "a tag of more than fifteen letters"},
      {3 * kMiB, 4096, memcfg::Lifetime::long_lived, "b"},
      {5000, 64, memcfg::Lifetime::unknown, "c"}};
  std::vector<std::pair<void*, Bytes>> held;
  held.reserve(requests.size());
  int refused = 0;
  for (const memcfg::Request& request : requests) {
    const State before(resource);
    inject.arm(refused > 0 ? Faulty::kMany : grants);
    try {
      held.emplace_back(resource.allocate(request), request.size);
      inject.disarm();
    } catch (const std::bad_alloc&) {
      inject.disarm();
      ++refused;
      CHECK(State(resource) == before);
    }
    resource.check();
  }
  for (const auto& [address, size] : held) {
    inject.arm(0);
    resource.deallocate(address, size);  // giving back needs nothing
    inject.disarm();
    resource.check();
  }
  CHECK(resource.stats().current == 0 && resource.owners().empty());
  return refused;
}

}  // namespace

TEST(blocks_are_aligned) {
  each(conformance::blocks_are_aligned);
}
TEST(requests_that_are_none) {
  each(conformance::requests_that_are_none);
}
TEST(huge_requests_are_refused) {
  each(conformance::huge_requests_are_refused);
}
TEST(bad_frees_change_nothing) {
  each(conformance::bad_frees_change_nothing);
}
TEST(random_steps_agree_with_a_model) {
  each(conformance::random_steps_agree_with_a_model);
}
TEST(threads_share_it) {
  each(conformance::threads_share_it);
}

TEST(a_block_of_another_is_foreign) {
  each([](Resource& resource, const Faulty&) {
    for (const Case& one : kCases) {
      const Faulty system;
      const Shared other = one.make(system);
      void* const address = other->allocate({100});
      CHECK_THROWS(memcfg::bad_free, resource.deallocate(address, 100));
      other->deallocate(address, 100);
    }
  });
}

TEST(the_system_may_refuse_at_any_call) {
  each([](Resource& resource, const Faulty& system) {
    const Injection inject{[&](int grants) { system.grants_left = grants; },
                           [&] { system.grants_left = Faulty::kMany; }};
    for (int grants = 0; grants < 40; ++grants) {
      const int refused = take_and_give(resource, inject, grants);
      CHECK(grants < 39 || refused == 0);
      resource.trim(0);
    }
  });
}

TEST(the_heap_may_refuse_the_books_at_any_call) {
  each([](Resource& resource, const Faulty&) {
    const Injection inject{[](int grants) { failing_new::grants_left = grants; },
                           [] { failing_new::grants_left = -1; }};
    for (int grants = 0; grants < 40; ++grants) {
      const int refused = take_and_give(resource, inject, grants);
      CHECK(grants < 39 || refused == 0);
    }
  });
}

TEST(another_thread_gives_back_without_the_heap) {
  each([](Resource& resource, const Faulty&) {
    void* const address = resource.allocate({100});
    std::string failure;
    std::thread([&] {
      const failing_new::After none(0);
      try {
        resource.deallocate(address, 100);
      } catch (const std::exception& error) {
        failing_new::grants_left = -1;
        failure = error.what();
      }
    }).join();
    if (!failure.empty()) throw check::Failed(failure);
    CHECK(resource.stats().current == 0);
  });
}

TEST(what_is_free_can_be_trimmed) {
  const Faulty system;
  conformance::what_is_free_can_be_trimmed(*pool_of(system, kLimit));
  conformance::what_is_free_can_be_trimmed(*pool_on(simulated()));
  conformance::what_is_free_can_be_trimmed(*counted(limited(pool_of(system, kLimit))));
}

TEST(adaptors_speak_for_upstream) {
  const Faulty system;
  const Shared device = std::make_shared<SimulatedResource>("GPU:0", kMiB);
  for (const auto& make : {limited, counted, asking}) {
    const Shared adaptor = make(device);
    CHECK(adaptor->name() == "GPU:0" && !adaptor->touchable());
    CHECK(adaptor->pages() == nullptr && adaptor->stats().reserved == 0);
  }
  CHECK(device->pages() != nullptr && blocks_of(system)->pages() == nullptr);
  CHECK_THROWS(std::invalid_argument, limited(nullptr));
  CHECK_THROWS(std::invalid_argument, counted(nullptr));
  CHECK_THROWS(std::invalid_argument, asking(nullptr));
}

TEST(an_adaptor_knows_its_own_blocks_only) {
  const Faulty system;
  const Shared below = blocks_of(system);
  const Shared adaptor = limited(below);
  void* const others = below->allocate({100});
  CHECK_THROWS(memcfg::bad_free, adaptor->deallocate(others, 100));
  CHECK(adaptor->stats().current == 0 && below->stats().current == 128);
  void* const own = adaptor->allocate({64});
  below->deallocate(own, 64);                   // behind the adaptor's back
  void* const again = adaptor->allocate({64});  // most likely the same address
  adaptor->check();
  if (again != own) CHECK_THROWS(memcfg::bad_free, adaptor->deallocate(own, 64));
  adaptor->deallocate(again, 64);
  CHECK(adaptor->stats().current == 0);
  below->deallocate(others, 100);
}

TEST(blocks_that_are_out_go_with_their_resource) {
  const Faulty system;
  {
    const Shared resource = blocks_of(system);
    resource->allocate({100});
    resource->allocate({100, 4096});
    CHECK(system.allocated == 128 + 4096);
  }
  CHECK(system.allocated == 0);
}

TEST(a_limit_is_drawn_before_upstream_is_asked) {
  const Faulty system;
  LimitingResource limiting(blocks_of(system), 1000);
  CHECK(limiting.stats().largest_free == 960);
  void* const block = limiting.allocate({449});
  try {
    limiting.allocate({449});
    check::fail(__FILE__, __LINE__, "the limit was passed");
  } catch (const memcfg::out_of_memory& error) {
    const Shortage& report = error.shortage();
    CHECK(report.cause == Shortage::limit_reached && report.limit == 1000);
    CHECK(report.requested == 449 && report.rounded == 512);
    CHECK(report.in_use == 512 && report.largest_free == 448);
  }
  system.grants_left = 0;
  CHECK_THROWS(memcfg::out_of_memory, limiting.allocate({448}));
  system.grants_left = 1;
  limiting.deallocate(limiting.allocate({448}), 448);
  CHECK_THROWS(memcfg::out_of_memory, limiting.set_limit(511));
  CHECK_THROWS(std::invalid_argument, limiting.set_limit(0));
  CHECK(limiting.set_limit(512) == 1000 && limiting.set_limit(kNoLimit) == 512);
  CHECK(limiting.stats().largest_free == kNoLimit);
  limiting.deallocate(block, 449);
  limiting.check();
}

TEST(threads_never_pass_a_limit) {
  const Faulty system;
  LimitingResource limiting(blocks_of(system), 64 * 20);
  std::atomic<bool> passed{false};
  std::atomic<int> refused{0};
  std::vector<std::thread> threads;
  for (unsigned seed = 0; seed < 3; ++seed) {
    threads.emplace_back([&, seed] {
      std::mt19937 random(seed);
      for (int step = 0; step < 3000; ++step) {
        const Bytes size = 1 + random() % 1000;
        try {
          void* const address = limiting.allocate({size});
          if (system.allocated > 64 * 20) passed = true;
          limiting.deallocate(address, size);
        } catch (const memcfg::out_of_memory&) {
          ++refused;
        }
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  CHECK(!passed && limiting.stats().peak <= 64 * 20 && limiting.stats().current == 0);
  CHECK(limiting.stats().largest_free == 64 * 20);
}

TEST(regions_nest) {
  const Faulty system;
  StatisticsResource counted(blocks_of(system));
  void* const before = counted.allocate({64});
  counted.push();
  void* const outer = counted.allocate({128});
  counted.push();
  void* const inner = counted.allocate({64});
  counted.deallocate(before, 64);
  counted.deallocate(outer, 128);
  const memcfg::Counters in = counted.pop();
  CHECK(in.bytes.current == -128 && in.bytes.peak == 64 && in.bytes.total == 64);
  CHECK(in.blocks.current == -1 && in.blocks.peak == 1 && in.blocks.total == 1);
  const memcfg::Counters out = counted.pop();
  CHECK(out.bytes.current == 0 && out.bytes.peak == 192 && out.bytes.total == 192);
  CHECK(out.blocks.current == 0 && out.blocks.peak == 2 && out.blocks.total == 2);
  CHECK_THROWS(std::invalid_argument, counted.pop());
  CHECK(counted.stats().current == 64 && counted.stats().peak == 256);
  counted.deallocate(inner, 64);
}

TEST(tags_are_counted_after_they_are_empty) {
  const Faulty system;
  StatisticsResource counted(blocks_of(system));
  const auto take = [&](Bytes size, const char* tag) {
    return counted.allocate({size, 64, memcfg::Lifetime::unknown, tag});
  };
  void* const first = take(64, "a");
  void* const second = take(100, "a");
  counted.deallocate(first, 64);
  counted.deallocate(take(1, "b"), 1);
  const auto rows = counted.by_tag();
  CHECK(rows.size() == 2 && rows[0].first == "a" && rows[1].first == "b");
  const memcfg::Counters& a = rows[0].second;
  CHECK(a.bytes.current == 128 && a.bytes.peak == 192 && a.bytes.total == 192);
  CHECK(rows[1].second.bytes.current == 0 && rows[1].second.blocks.total == 1);
  CHECK(counted.owners() == memcfg::Owners({{"a", 128}}));
  counted.deallocate(second, 100);
}

TEST(the_callback_makes_room) {
  const Faulty system;
  const auto below = std::make_shared<LimitingResource>(blocks_of(system), 1024);
  std::vector<void*> cached{below->allocate({512}), below->allocate({512})};
  std::vector<Bytes> asked;
  FailureCallbackResource resource(below, [&](Bytes size) {
    asked.push_back(size);
    if (cached.empty()) return false;
    below->deallocate(cached.back(), 512);
    cached.pop_back();
    return true;
  });
  void* const block = resource.allocate({1000});
  CHECK(asked == std::vector<Bytes>({1000, 1000}));
  CHECK_THROWS(memcfg::out_of_memory, resource.allocate({64}));
  CHECK(asked.size() == 3);
  CHECK_THROWS(std::invalid_argument, resource.allocate({0}));
  CHECK(asked.size() == 3);
  resource.deallocate(block, 1000);
}

TEST(what_the_callback_throws_goes_through) {
  const Faulty system;
  const auto below = std::make_shared<LimitingResource>(blocks_of(system), 64);
  FailureCallbackResource* self = nullptr;
  int depth = 0;
  FailureCallbackResource resource(below, [&](Bytes size) -> bool {
    if (++depth < 3) self->allocate({size});  // it may use the resource itself
    throw std::domain_error("enough");
  });
  self = &resource;
  CHECK_THROWS(std::domain_error, resource.allocate({65}));
  CHECK(depth == 3 && below->stats().current == 0);
  const auto foreign =
      memcfg::foreign_callback([](void*, Bytes) { return -1; }, nullptr);
  FailureCallbackResource other(below, foreign);
  CHECK_THROWS(memcfg::callback_raised, other.allocate({65}));
}

TEST(simulated_addresses_are_nobodys_and_nobody_elses) {
  const SimulatedResource first("a", 4 * kMiB);
  const auto shared = std::make_shared<SimulatedResource>("b", 4 * kMiB);
  const memcfg::System& one = *first.pages();
  const memcfg::System& two = *shared->pages();
  const auto open = memcfg::Access::open;
  const auto a = conformance::number(one.reserve(1024 * kMiB, open));
  const auto b = conformance::number(two.reserve(1024 * kMiB, open));
  CHECK(a % 4096 == 0 && a >= Bytes{1} << 62);
  CHECK(b >= a + 1024 * kMiB || a >= b + 1024 * kMiB);
  CHECK(one.reserve(Bytes{1} << 62, open) == nullptr);
  first.check();
  auto* const base = reinterpret_cast<void*>(a);
  CHECK(one.commit(base, 3 * kMiB, open));
  CHECK(!one.commit(reinterpret_cast<void*>(a + 3 * kMiB), 2 * kMiB, open));
  CHECK(first.stats().reserved == 3 * kMiB && first.stats().largest_free == kMiB);
  one.decommit(base, kMiB, open);
  CHECK(first.stats().reserved == 2 * kMiB && first.stats().peak_reserved == 3 * kMiB);
  one.release(base, 1024 * kMiB);
  CHECK(first.stats().reserved == 0 && first.stats().addresses == 0);
  CHECK_THROWS(std::invalid_argument, SimulatedResource("none", 0));
}

TEST(a_full_device_says_so) {
  const auto device = std::make_shared<SimulatedResource>("GPU:0", 4 * kMiB);
  const Shared pool = std::make_shared<Pool>("", kNoLimit, true, device);
  void* const paged = pool->allocate({3 * kMiB});
  CHECK(device->stats().reserved == 3 * kMiB && device->stats().current == 0);
  try {
    device->allocate({2 * kMiB});
    check::fail(__FILE__, __LINE__, "more than the device has");
  } catch (const memcfg::out_of_memory& error) {
    CHECK(error.shortage().cause == Shortage::device_full);
    CHECK(error.shortage().limit == 4 * kMiB);
    CHECK(error.shortage().largest_free == kMiB);
  }
  void* const block = device->allocate({kMiB});
  CHECK_THROWS(memcfg::out_of_memory, pool->allocate({4096}));
  device->deallocate(block, kMiB);
  pool->deallocate(paged, 3 * kMiB);
}

TEST(blocks_of_the_host_count_against_its_limits) {
  const Bytes before = memcfg::tracked_bytes();
  SystemResource resource("d");
  void* const block = resource.allocate({1000});
  CHECK(memcfg::tracked_bytes() == before + 1024);
  memcfg::set_host_limits({before + 2048, kNoLimit});
  try {
    resource.allocate({1025});
    check::fail(__FILE__, __LINE__, "the host's limit was passed");
  } catch (const memcfg::out_of_memory& error) {
    const Shortage& report = error.shortage();
    CHECK(report.cause == Shortage::tracked_limit && report.limit == before + 2048);
    CHECK(report.in_use == before + 1024 && report.largest_free == 1024);
  }
  memcfg::set_host_limits({kNoLimit, memcfg::resident_size() + 64 * kMiB});
  CHECK_THROWS(memcfg::out_of_memory, resource.allocate({512 * kMiB}));
  memcfg::set_host_limits({});
  resource.deallocate(block, 1000);
  CHECK(memcfg::tracked_bytes() == before);
}
