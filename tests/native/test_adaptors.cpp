#include <random>
#include <thread>

#include "check.hpp"
#include "stacks.hpp"

using memcfg::Bytes;
using memcfg::FailureCallbackResource;
using memcfg::kNoLimit;
using memcfg::LimitingResource;
using memcfg::OutOfMemoryInfo;
using memcfg::SimulatedResource;
using memcfg::StatisticsResource;
using stacks::asking;
using stacks::blocks_of;
using stacks::counted;
using stacks::limited;
using stacks::Shared;

TEST(adaptors_speak_for_upstream) {
  const Faulty system;
  const Shared device = std::make_shared<SimulatedResource>("GPU:0", Bytes{1} << 20);
  for (const auto& make : {limited, counted, asking, stacks::tracked, stacks::logged}) {
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

TEST(blocks_that_upstream_got_back_are_not_counted_for_good) {
  const Faulty system;
  const auto below = std::make_shared<memcfg::Pool>("d", memcfg::kNoLimit, system);
  LimitingResource limiting(below, 1024);
  for (int round = 0; round < 3; ++round) {
    void* const block = limiting.allocate({1000});
    CHECK(limiting.holds(block));
    below->deallocate(block, 1000);
    limiting.set_limit(2048);  // room for the one that is gone, and for another
    void* const again = limiting.allocate({1000});
    CHECK(again == block && limiting.stats().current == 1024);
    limiting.check();
    limiting.set_limit(1024);  // nothing else is drawn
    limiting.deallocate(again, 1000);
    CHECK(limiting.stats().largest_free == 1024 && !limiting.holds(again));
  }
}

TEST(a_limit_is_reserved_before_upstream_is_asked) {
  const Faulty system;
  LimitingResource limiting(blocks_of(system), 1000);
  CHECK(limiting.stats().largest_free == 960);
  void* const block = limiting.allocate({449});
  try {
    limiting.allocate({449});
    check::fail(__FILE__, __LINE__, "the limit was passed");
  } catch (const memcfg::out_of_memory& error) {
    const OutOfMemoryInfo& report = error.info();
    CHECK(report.cause == OutOfMemoryInfo::limit_reached && report.limit == 1000);
    CHECK(report.requested == 449 && report.rounded == 512);
    CHECK(report.in_use == 512 && report.largest_free == 448);
  }
  system.calls_left = 0;
  CHECK_THROWS(memcfg::out_of_memory, limiting.allocate({448}));
  system.calls_left = 1;
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
  StatisticsResource resource(blocks_of(system));
  void* const before = resource.allocate({64});
  resource.push();
  void* const outer = resource.allocate({128});
  resource.push();
  void* const inner = resource.allocate({64});
  resource.deallocate(before, 64);
  resource.deallocate(outer, 128);
  const memcfg::Counters in = resource.pop();
  CHECK(in.bytes.current == -128 && in.bytes.peak == 64 && in.bytes.total == 64);
  CHECK(in.blocks.current == -1 && in.blocks.peak == 1 && in.blocks.total == 1);
  const memcfg::Counters out = resource.pop();
  CHECK(out.bytes.current == 0 && out.bytes.peak == 192 && out.bytes.total == 192);
  CHECK(out.blocks.current == 0 && out.blocks.peak == 2 && out.blocks.total == 2);
  CHECK_THROWS(std::invalid_argument, resource.pop());
  CHECK(resource.stats().current == 64 && resource.stats().peak == 256);
  resource.deallocate(inner, 64);
}

// Meanwhile it is nobody else's to free or resize.
TEST(a_ledger_claims_the_block_that_changes) {
  memcfg::Ledger ledger;
  char place = 0;
  const auto at = [&](Bytes size) { return memcfg::Request{size}; };
  ledger.add(&place, at(100), 128);
  const auto change = [&](bool done) {
    return ledger.resize(&place, 100, 300, [&] {
      CHECK_THROWS(memcfg::bad_free, ledger.remove(&place, 100));
      CHECK_THROWS(memcfg::bad_free, ledger.remove(&place, 300));
      CHECK_THROWS(memcfg::bad_free,
                   ledger.resize(&place, 100, 200, [] { return true; }));
      CHECK(ledger.size_of(&place) == 100 && ledger.blocks().size() == 1);
      ledger.check();
      return done;
    });
  };
  CHECK(!change(false) && ledger.stats().peak == 128);
  CHECK_THROWS(std::domain_error, ledger.resize(&place, 100, 300, [&]() -> bool {
    throw std::domain_error("no");
  }));
  CHECK(ledger.size_of(&place) == 100 && ledger.stats().peak == 128);
  CHECK(change(true) && ledger.size_of(&place) == 300);
  CHECK(ledger.stats().current == 320 && ledger.stats().reserved == 320);
  // The block goes behind the ledger, and its address comes back as another's.
  CHECK(ledger.resize(&place, 300, 400, [&] {
    ledger.add(&place, at(50), 64);
    return true;
  }));
  CHECK(ledger.size_of(&place) == 50);
  ledger.check();
  ledger.remove(&place, 50);
  ledger.check();
  CHECK(ledger.stats().current == 0 && ledger.stats().reserved == 0);
}

TEST(tags_are_counted_after_they_are_empty) {
  const Faulty system;
  StatisticsResource resource(blocks_of(system));
  const auto take = [&](Bytes size, const char* tag) {
    return resource.allocate({size, 64, memcfg::Lifetime::unknown, tag});
  };
  void* const first = take(64, "a");
  void* const second = take(100, "a");
  resource.deallocate(first, 64);
  resource.deallocate(take(1, "b"), 1);
  const auto rows = resource.by_tag();
  CHECK(rows.size() == 2 && rows[0].first == "a" && rows[1].first == "b");
  const memcfg::Counters& a = rows[0].second;
  CHECK(a.bytes.current == 128 && a.bytes.peak == 192 && a.bytes.total == 192);
  CHECK(rows[1].second.bytes.current == 0 && rows[1].second.blocks.total == 1);
  CHECK(resource.owners() == memcfg::Owners({{"a", 128}}));
  resource.deallocate(second, 100);
}

TEST(the_callback_frees_memory) {
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
