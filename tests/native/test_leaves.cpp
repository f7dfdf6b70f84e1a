// Where memory comes from: the system, or nowhere.
#include "check.hpp"
#include "stacks.hpp"

using memcfg::Bytes;
using memcfg::kNoLimit;
using memcfg::OutOfMemoryInfo;
using memcfg::Pool;
using memcfg::SimulatedResource;
using memcfg::SystemResource;
using stacks::blocks_of;
using stacks::Shared;

namespace {

constexpr Bytes kMiB = Bytes{1} << 20;

std::uintptr_t number(const void* address) {
  return reinterpret_cast<std::uintptr_t>(address);
}

}  // namespace

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
    const OutOfMemoryInfo& report = error.info();
    CHECK(report.cause == OutOfMemoryInfo::tracked_limit &&
          report.limit == before + 2048);
    CHECK(report.in_use == before + 1024 && report.largest_free == 1024);
  }
  memcfg::set_host_limits({kNoLimit, memcfg::resident_size() + 64 * kMiB});
  CHECK_THROWS(memcfg::out_of_memory, resource.allocate({512 * kMiB}));
  memcfg::set_host_limits({});
  resource.deallocate(block, 1000);
  CHECK(memcfg::tracked_bytes() == before);
}
TEST(simulated_addresses_are_nobodys_and_nobody_elses) {
  const SimulatedResource first("a", 4 * kMiB);
  const auto shared = std::make_shared<SimulatedResource>("b", 4 * kMiB);
  const memcfg::System& one = *first.pages();
  const memcfg::System& two = *shared->pages();
  const auto open = memcfg::Access::open;
  const auto a = number(one.reserve(1024 * kMiB, open));
  const auto b = number(two.reserve(1024 * kMiB, open));
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
    CHECK(error.info().cause == OutOfMemoryInfo::simulated_full);
    CHECK(error.info().limit == 4 * kMiB);
    CHECK(error.info().largest_free == kMiB);
  }
  void* const block = device->allocate({kMiB});
  CHECK_THROWS(memcfg::out_of_memory, pool->allocate({4096}));
  device->deallocate(block, kMiB);
  pool->deallocate(paged, 3 * kMiB);
}
