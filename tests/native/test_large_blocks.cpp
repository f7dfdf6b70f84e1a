#include <algorithm>
#include <cstddef>
#include <cstring>
#include <memory>
#include <string>

#include "check.hpp"
#include "memcfg/system_resource.hpp"
#include "pools.hpp"
#include "threading.hpp"

using memcfg::SystemResource;
using namespace pools;
using namespace threading;

namespace {

// The address that a thread which has no cache yet is given.
void* elsewhere(Pool& pool, Bytes size) {
  void* address = nullptr;
  in_a_thread([&] {
    address = pool.allocate({size});
    pool.deallocate(address, size);
  });
  return address;
}

bool keeps(Pool& pool, Bytes size) {
  void* const address = pool.allocate({size});
  pool.deallocate(address, size);
  return elsewhere(pool, size) != address;
}

}  // namespace

TEST(a_thread_keeps_the_large_block_that_it_freed) {
  const auto pool = make_pool(256 * kMiB);
  for (const Bytes size : {64 * kKiB + 1, kMiB, 4 * kMiB}) {
    void* const address = pool->allocate({size});
    pool->deallocate(address, size);
    CHECK(elsewhere(*pool, size) != address);
    CHECK(pool->allocate({size}) == address);
    pool->deallocate(address, size);
    CHECK_THROWS(memcfg::bad_free, pool->deallocate(address, size));
    CHECK(pool->stats().current == 0 && pool->stats().requested == 0);
    check_pool(*pool);
  }
  CHECK(pool->stats().allocations == pool->stats().deallocations);
  CHECK(pool->stats().peak == 8 * kMiB);  // two at a time
}

TEST(what_it_keeps_is_a_small_share) {
  CHECK(keeps(*make_pool(64 * kMiB), kMiB) && !keeps(*make_pool(64 * kMiB), kMiB + 64));
  CHECK(keeps(*make_pool(kNoLimit), 32 * kMiB));
  CHECK(!keeps(*make_pool(kNoLimit), 32 * kMiB + 64));
  const auto pool = make_pool(256 * kMiB);
  pool->set_limit(64 * kMiB);
  CHECK(!keeps(*pool, 2 * kMiB));
  pool->set_limit(256 * kMiB);
  CHECK(keeps(*pool, 2 * kMiB));
}

// A place for another size is chosen as if nothing had been kept.
TEST(it_gives_the_block_back_before_it_takes_another) {
  const auto pool = make_pool(64 * kMiB);
  void* const first = pool->allocate({kMiB});
  pool->deallocate(first, kMiB);
  void* const larger = pool->allocate({2 * kMiB});
  CHECK(larger == first);
  pool->deallocate(larger, 2 * kMiB);
  CHECK(pool->stats().addresses == 64 * kMiB && pool->stats().reserved == 2 * kMiB);
  check_pool(*pool);
}

TEST(what_one_thread_keeps_is_there_for_others) {
  const auto pool = make_pool(64 * kMiB);
  Meeting meeting(2);
  Threads threads;
  threads.start([&] {
    Blocks(*pool).take({kMiB});
    meeting.arrive();
    meeting.arrive();
  });
  meeting.arrive();
  const bool granted = grants(*pool, {64 * kMiB});
  const bool more = grants(*pool, {64 * kMiB + 1});
  meeting.arrive();
  threads.finish();
  CHECK(granted && !more);
  check_pool(*pool);
}

TEST(nothing_is_kept_from_trim_and_decay) {
  const auto pool = make_pool(64 * kMiB);
  const auto one = [&] { pool->deallocate(pool->allocate({kMiB}), kMiB); };
  one();
  CHECK(pool->trim(0) == kMiB && pool->stats().reserved == 0);
  one();
  CHECK(pool->decay() == 0);  // the first call only looks
  CHECK(pool->decay() == kMiB && pool->stats().reserved == 0);
}

TEST(nor_from_the_free_chunks_that_are_told) {
  const auto pool = make_pool(64 * kMiB);
  Blocks blocks(*pool);
  for (int i = 0; i < 64; ++i) blocks.take({kMiB});
  while (blocks.count() > 1) blocks.give(0);
  CHECK(pool->stats().largest_free == 63 * kMiB);
  check_layout(*pool);
}

TEST(nor_from_the_resource_below) {
  const auto below = std::make_shared<SystemResource>("below");
  Pool pool("above", 64 * kMiB, true, below);
  pool.deallocate(pool.allocate({kMiB}), kMiB);
  CHECK(pool.trim(0) >= kMiB && below->stats().current == 0);
}

// A tag that was used last is found without a search; its number may be another's by
// the time it is used again.
TEST(tags_alternately) {
  const auto pool = make_pool(64 * kMiB);
  for (int round = 0; round < 3; ++round) {
    for (const char* tag : {"a", "b", "", "ab", "b", "b"}) {
      for (const Bytes size : {Bytes{100}, kMiB}) {
        void* const address = pool->allocate({size, 64, Lifetime::unknown, tag});
        CHECK(pool->owners() == (memcfg::Owners{{tag, align_up(size)}}));
        pool->deallocate(address, size);
      }
    }
    for (int i = 0; i < 70000; ++i) {  // more than there are numbers
      const std::string tag = std::to_string(i);
      pool->deallocate(pool->allocate({100, 64, Lifetime::unknown, tag}), 100);
    }
    check_pool(*pool);
  }
}

TEST(a_release_needs_no_size) {
  const auto pool = make_pool(64 * kMiB);
  SystemResource books("metadata");
  for (Resource* each :
       {static_cast<Resource*>(pool.get()), static_cast<Resource*>(&books)}) {
    for (const Bytes size : {Bytes{1}, Bytes{5000}, 3 * kMiB}) {
      auto* const address = static_cast<std::byte*>(each->allocate({size}));
      CHECK(!each->release(address + 64) && !each->release(nullptr));
      CHECK(each->stats().current == align_up(size));
      CHECK(each->release(address) && !each->release(address));
      CHECK(each->stats().current == 0);
    }
    each->check();
  }
}

// A block above another grows over what a cache keeps between them.
TEST(a_large_block_grows_where_it_lies) {
  const auto pool = make_pool(64 * kMiB);
  void* const address = pool->allocate({kMiB});
  pool->deallocate(pool->allocate({100}), 100);  // above it, and kept
  CHECK(pool->resize(address, kMiB, 3 * kMiB));
  CHECK(pool->stats().current == 3 * kMiB);
  pool->deallocate(address, 3 * kMiB);
  check_pool(*pool);
}

// Memory that was written is zero again, and with growth it is not taken before it is
// written anew.
TEST(many_pages_of_zeros) {
  constexpr Bytes kSize = 40 * kMiB + 100;
  for (const bool growth : {true, false}) {
    Pool pool("zeros", 64 * kMiB, growth);
    void* const fence = pool.allocate({100});
    auto* bytes = static_cast<std::byte*>(pool.allocate({kSize}));
    std::memset(bytes, 7, kSize);
    pool.deallocate(bytes, kSize);
    const Bytes before = memcfg::resident_size();
    Request zeros{kSize};
    zeros.zeroed = true;
    bytes = static_cast<std::byte*>(pool.allocate(zeros));
    const Bytes after = memcfg::resident_size();
    CHECK(growth ? after + 30 * kMiB < before : after + 10 * kMiB > before);
    CHECK(check::all_bytes(bytes, kSize, 0));
    pool.deallocate(bytes, kSize);
    pool.deallocate(fence, 100);
    check_pool(pool);
  }
}

// They begin with a huge page where there are such, unless that does not fit.
TEST(many_pages_of_zeros_wherever_they_fit) {
  const auto pool = make_pool(64 * kMiB);
  const Bytes unit = std::max<Bytes>(memcfg::host_system().huge_page_size(), 1);
  Request zeros{40 * kMiB};
  zeros.zeroed = true;
  void* const fence = pool->allocate({100});
  void* const address = pool->allocate(zeros);
  CHECK(number(address) % unit == 0);
  CHECK(out_of_memory_error(*pool, zeros).cause == OutOfMemoryInfo::limit_reached);
  pool->deallocate(address, zeros.size);
  pool->deallocate(fence, 100);
  zeros.size = 64 * kMiB;
  CHECK(grants(*pool, zeros));
  zeros.size += 1;
  CHECK(!grants(*pool, zeros));
  check_pool(*pool);
}
