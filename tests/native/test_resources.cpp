// One suite of promises, run on every resource.
#include <functional>

#include "conformance.hpp"
#include "failing_new.hpp"
#include "stacks.hpp"

using conformance::kMiB;
using conformance::State;
using memcfg::Bytes;
using memcfg::Resource;
using stacks::Case;
using stacks::kCases;
using stacks::Shared;

namespace {

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
TEST(bad_resizes_change_nothing) {
  each(conformance::bad_resizes_change_nothing);
}
TEST(sizes_are_known) {
  each(conformance::sizes_are_known);
}
TEST(zeroed_blocks_are_zero) {
  each(conformance::zeroed_blocks_are_zero);
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
    const Injection inject{[&](int grants) { system.calls_left = grants; },
                           [&] { system.calls_left = Faulty::kMany; }};
    for (int grants = 0; grants < 40; ++grants) {
      const int refused = take_and_give(resource, inject, grants);
      CHECK(grants < 39 || refused == 0);
      resource.trim(0);
    }
  });
}

TEST(the_heap_may_refuse_the_metadata_at_any_call) {
  each([](Resource& resource, const Faulty&) {
    const Injection inject{[](int grants) { failing_new::calls_left = grants; },
                           [] { failing_new::calls_left = -1; }};
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
        failing_new::calls_left = -1;
        failure = error.what();
      }
    }).join();
    if (!failure.empty()) throw check::Failed(failure);
    CHECK(resource.stats().current == 0);
  });
}

TEST(what_is_free_can_be_trimmed) {
  const Faulty system;
  conformance::what_is_free_can_be_trimmed(*stacks::pool_of(system, stacks::kLimit));
  conformance::what_is_free_can_be_trimmed(*stacks::pool_on(stacks::simulated()));
  conformance::what_is_free_can_be_trimmed(
      *stacks::counted(stacks::limited(stacks::pool_of(system, stacks::kLimit))));
}
