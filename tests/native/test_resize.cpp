// Blocks of a pool that change their size where they lie, and blocks that are zero.
#include <sys/mman.h>

#include <atomic>
#include <cstring>
#include <functional>
#include <random>

#include "check.hpp"
#include "failing_new.hpp"
#include "memcfg/adaptor.hpp"
#include "memcfg/host_limits.hpp"
#include "memcfg/thread_caches.hpp"
#include "pools.hpp"
#include "threading.hpp"

using memcfg::bad_free;
using memcfg::kAlignment;
using memcfg::LiveBlock;
using memcfg::SizeClass;
using namespace pools;
using namespace threading;

namespace {

void fill(void* address, Bytes size, unsigned char value) {
  std::memset(address, value, size);
}

bool has(const void* address, Bytes size, unsigned char value) {
  return check::all_bytes(address, size, value);
}

// What the heap gave for a block, in bytes.
Bytes room_of(const Pool& pool, const void* address) {
  for (const HeapExtent& row : pool.layout()) {
    if (row.address == number(address) && row.state == HeapExtent::block)
      return row.size;
  }
  check::fail(__FILE__, __LINE__, "no block there");
}

Bytes resident(const Pool& pool) {
  Bytes sum = 0;
  const Bytes page = pool.system().page_size();
  std::vector<unsigned char> pages;
  for (const HeapExtent& row : pool.layout()) {
    const std::uintptr_t first = memcfg::round_up(row.address, page);
    const std::uintptr_t last = memcfg::round_down(row.address + row.size, page);
    if (first >= last) continue;
    pages.resize((last - first) / page);
    CHECK(mincore(reinterpret_cast<void*>(first), last - first, pages.data()) == 0);
    for (const unsigned char each : pages) sum += (each & 1) * page;
  }
  return sum;
}

// Linux 5.18 and newer.
bool can_drop_locked() {
  constexpr int kDontNeedLocked = 24;  // MADV_DONTNEED_LOCKED
  const Bytes page = memcfg::host_system().page_size();
  void* const place =
      mmap(nullptr, page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  const bool can = madvise(place, page, kDontNeedLocked) == 0;
  munmap(place, page);
  return can;
}

}  // namespace

TEST(a_large_block_gives_its_tail_back_exactly) {
  const Faulty system;
  const auto pool = make_pool(64 * kMiB, system);
  void* const block = pool->allocate({8 * kMiB, 64, Lifetime::unknown, "a"});
  fill(block, 8 * kMiB, 7);
  CHECK(pool->resize(block, 8 * kMiB, 3 * kMiB + 1));
  CHECK(has(block, 3 * kMiB + 1, 7));
  CHECK(room_of(*pool, block) == 3 * kMiB + kAlignment);
  const ResourceStats now = pool->stats();
  CHECK(now.requested == 3 * kMiB + 1 && now.current == 3 * kMiB + kAlignment);
  CHECK(now.peak == 8 * kMiB && now.reserved == 8 * kMiB);
  CHECK(now.allocations == 1 && now.deallocations == 0);
  CHECK(pool->owners() == memcfg::Owners({{"a", 3 * kMiB + kAlignment}}));
  CHECK_THROWS(bad_free, pool->deallocate(block, 8 * kMiB));
  void* const rest = pool->allocate({5 * kMiB - kAlignment});  // where the tail was
  CHECK(number(rest) == number(block) + 3 * kMiB + kAlignment);
  CHECK(pool->stats().reserved == 8 * kMiB);
  check_pool(*pool);
  check_layout(*pool);
  pool->deallocate(rest, 5 * kMiB - kAlignment);
  pool->deallocate(block, 3 * kMiB + 1);
  CHECK(pool->trim(0) == 8 * kMiB && system.open == 0);
}

TEST(a_block_grows_into_the_free_chunk_above) {
  const Faulty system;
  const auto pool = make_pool(64 * kMiB, system);
  void* const block = pool->allocate({kMiB, 64, Lifetime::unknown, "a"});
  fill(block, kMiB, 7);
  CHECK(pool->resize(block, kMiB, 40 * kMiB));
  CHECK(has(block, kMiB, 7) && pool->size_of(block) == 40 * kMiB);
  fill(block, 40 * kMiB, 8);
  const ResourceStats now = pool->stats();
  CHECK(now.current == 40 * kMiB && now.requested == 40 * kMiB);
  CHECK(now.peak == 40 * kMiB && now.reserved == 40 * kMiB);
  check_pool(*pool);
  check_layout(*pool);
  void* const above = pool->allocate({kMiB});
  CHECK(number(above) == number(block) + 40 * kMiB);
  const State before(*pool);
  CHECK(!pool->resize(block, 40 * kMiB, 40 * kMiB + 1));  // somebody is there
  CHECK(State(*pool) == before);
  pool->deallocate(above, kMiB);
  CHECK(pool->resize(block, 40 * kMiB, 41 * kMiB));
  CHECK(!pool->resize(block, 41 * kMiB, 64 * kMiB + 1));  // the limit
  CHECK(!pool->resize(block, 41 * kMiB, 70 * kMiB));      // and no addresses
  CHECK(pool->resize(block, 41 * kMiB, 64 * kMiB));
  CHECK(pool->stats().largest_free == 0);
  pool->deallocate(block, 64 * kMiB);
  CHECK(pool->trim(0) == 64 * kMiB && system.open == 0);
}

// Up to 64 KiB the block has the size of its class: within it only the metadata change.
TEST(a_small_block_stays_in_its_class) {
  const Faulty system;
  const auto pool = make_pool(64 * kMiB, system);
  void* const block = pool->allocate({40000, 64, Lifetime::unknown, "a"});
  void* const above = pool->allocate({100});
  const Bytes room = SizeClass::block(align_up(40000));
  CHECK(room_of(*pool, block) == room && room > align_up(40000));
  const Bytes before = pool->stats().current;
  CHECK(pool->resize(block, 40000, room));
  CHECK(room_of(*pool, block) == room && pool->stats().requested == room + 100);
  CHECK(pool->stats().current == before + room - align_up(40000));
  CHECK(!pool->resize(block, room, room + 1));
  CHECK(pool->resize(block, room, 1000));  // another class: the rest is a hole
  CHECK(room_of(*pool, block) == 1024 && pool->stats().requested == 1100);
  CHECK(pool->resize(block, 1000, 1) && room_of(*pool, block) == 64);
  CHECK(pool->resize(block, 1, 30000));
  CHECK(room_of(*pool, block) == SizeClass::block(align_up(30000)));
  check_pool(*pool);
  check_layout(*pool);
  pool->deallocate(block, 30000);
  pool->deallocate(above, 100);
  CHECK(pool->stats().current == 0);
  check_pool(*pool);
}

TEST(shrinking_needs_nothing) {
  const Faulty system;
  const auto pool = make_pool(8 * kMiB, system);
  Blocks held(*pool);
  void* const block = pool->allocate({4 * kMiB});
  held.take({4 * kMiB});
  for (Bytes size = 4 * kMiB; size > 1; size /= 2) {
    system.calls_left = 0;
    failing_new::calls_left = 0;
    const bool done = pool->resize(block, size, size / 2);
    failing_new::calls_left = -1;
    system.calls_left = Faulty::kMany;
    CHECK(done && pool->size_of(block) == size / 2);
    check_pool(*pool);
  }
  pool->deallocate(block, 1);
}

// The rest of a chunk whose records have no memory stays with the block.
TEST(shrinking_without_memory_for_the_metadata) {
  const Faulty system;
  const auto pool = make_pool(Bytes{4} * kGiB, system);
  Blocks held(*pool);
  void* const block = pool->allocate({kMiB});
  Bytes size = kMiB;
  bool kept = false;
  std::size_t rows = 0;
  for (int round = 0; !kept; ++round) {  // one record more, or two
    CHECK(size > 100000 && round < 50000);
    held.take({70000, round % 3 == 0 ? Bytes{64} : Bytes{4096}});
    if (round % 32 == 0) rows = pool->layout().size();
    if (rows % 4096 < 4000) continue;  // the metadata get memory for so many at once
    system.calls_left = 0;
    CHECK(pool->resize(block, size, size - 64));
    system.calls_left = Faulty::kMany;
    size -= 64;
    kept = room_of(*pool, block) > size;
    if (!kept) CHECK(room_of(*pool, block) == size);
  }
  check_pool(*pool);
  CHECK(pool->resize(block, size, size + 64) && pool->resize(block, size + 64, 100));
  CHECK(room_of(*pool, block) == 128);
  pool->deallocate(block, 100);
}

// Whatever call fails, a block that cannot grow is as it was.
TEST(growth_may_fail_at_any_call) {
  for (const bool heap : {false, true}) {
    for (const Bytes size : {Bytes{100}, Bytes{60000}, 3 * kMiB}) {
      for (int grants = 0, successes = 0; successes < 10; ++grants) {
        CHECK(grants < 100);
        const Faulty system;
        {
          const auto pool = make_pool(96 * kMiB, system);
          Blocks held(*pool);
          held.take({2 * kMiB, 64, Lifetime::long_lived, "b"});
          void* const block = pool->allocate({size, 4096, Lifetime::unknown, "a"});
          fill(block, size, 7);
          const State before(*pool);
          if (heap) failing_new::calls_left = grants;
          if (!heap) system.calls_left = grants;
          const bool done = pool->resize(block, size, 12 * kMiB);
          failing_new::calls_left = -1;
          system.calls_left = Faulty::kMany;
          CHECK(has(block, size, 7) && held.intact());
          if (!done) CHECK(State(*pool) == before);
          check_pool(*pool);
          check_layout(*pool);
          CHECK(pool->size_of(block) == (done ? 12 * kMiB : size));
          if (done) fill(block, 12 * kMiB, 8);
          pool->deallocate(block, done ? 12 * kMiB : size);
          CHECK(pools::grants(*pool, {90 * kMiB}));  // all that was drawn is back
          successes = done ? successes + 1 : 0;
        }
        CHECK(system.has_all_back());
      }
    }
  }
}

// Under a limit the pages of free chunks, and of blocks that caches keep, pay for new
// ones.
TEST(growth_pays_with_idle_pages) {
  const Faulty system;
  const auto pool = make_pool(8 * kMiB, system);
  void* const low = pool->allocate({3 * kMiB});
  void* const block = pool->allocate({kMiB});
  std::vector<void*> kept;
  for (int i = 0; i < 30; ++i) kept.push_back(pool->allocate({4096}));
  void* const high = pool->allocate({100});
  for (void* address : kept) pool->deallocate(address, 4096);
  pool->deallocate(low, 3 * kMiB);
  CHECK(count(*pool, HeapExtent::cached) == 30);
  CHECK(!pool->resize(block, kMiB, 2 * kMiB));  // the kept blocks lie above it
  pool->deallocate(block, kMiB);
  void* const other = pool->allocate({2 * kMiB, 64, Lifetime::short_lived});
  CHECK(!pool->resize(other, 2 * kMiB, 2 * kMiB + 1));  // the end of all addresses
  pool->deallocate(other, 2 * kMiB);
  pool->deallocate(high, 100);
  pool->trim(0);
  void* const first = pool->allocate({kMiB});
  for (void*& address : kept) address = pool->allocate({4096, 64, Lifetime::unknown});
  void* const last = pool->allocate({6 * kMiB + 512 * kKiB});
  for (void* address : kept) pool->deallocate(address, 4096);
  const Bytes size = 6 * kMiB + 512 * kKiB;
  CHECK(pool->resize(last, size, 7 * kMiB - 64 * kKiB));
  pool->deallocate(first, kMiB);
  CHECK(pool->resize(last, 7 * kMiB - 64 * kKiB, 8 * kMiB));
  CHECK(pool->stats().current == 8 * kMiB);
  CHECK(system.most <= 8 * kMiB + system.page_size());
  check_pool(*pool);
  pool->deallocate(last, 8 * kMiB);
}

TEST(the_limit_of_all_pools_is_reserved) {
  const Bytes before = memcfg::tracked_bytes();
  const auto pool = make_pool(kNoLimit);
  const auto other = make_pool(kNoLimit);
  void* const block = pool->allocate({kMiB});
  std::vector<void*> blocks;
  for (int i = 0; i < 20; ++i) blocks.push_back(other->allocate({8192}));
  for (void* address : blocks) other->deallocate(address, 8192);  // kept, and charged
  memcfg::set_host_limits({before + 4 * kMiB, kNoLimit});
  CHECK(!pool->resize(block, kMiB, 4 * kMiB + 1));
  CHECK(pool->resize(block, kMiB, 4 * kMiB));
  CHECK(memcfg::tracked_bytes() == before + 4 * kMiB);
  CHECK(pool->resize(block, 4 * kMiB, 100));
  CHECK(memcfg::tracked_bytes() == before + 128);
  memcfg::set_host_limits({kNoLimit, memcfg::resident_size() + 64 * kMiB});
  CHECK(!pool->resize(block, 100, 512 * kMiB));
  memcfg::set_host_limits({});
  CHECK(memcfg::tracked_bytes() == before + 128);
  pool->deallocate(block, 100);
  CHECK(memcfg::tracked_bytes() == before);
}

TEST(adaptors_keep_their_metadata) {
  const auto pool = make_pool(64 * kMiB);
  const auto limiting = std::make_shared<memcfg::LimitingResource>(pool, 4 * kMiB);
  memcfg::StatisticsResource resource(limiting);
  resource.push();
  void* const block = resource.allocate({kMiB, 64, Lifetime::unknown, "a"});
  const State before(resource);
  CHECK(!resource.resize(block, kMiB, 4 * kMiB + 1));  // the limit on the way
  CHECK(State(resource) == before && limiting->stats().largest_free == 3 * kMiB);
  CHECK(resource.resize(block, kMiB, 3 * kMiB - 10));
  CHECK(limiting->stats().largest_free == kMiB &&
        limiting->size_of(block) == pool->size_of(block));
  CHECK(resource.resize(block, 3 * kMiB - 10, 2 * kMiB));
  CHECK(limiting->stats().largest_free == 2 * kMiB);
  const memcfg::Counters in = resource.pop();
  CHECK(in.bytes.current == 2 * kMiB && in.bytes.peak == 3 * kMiB);
  CHECK(in.bytes.total == 3 * kMiB && in.blocks.total == 1 && in.blocks.current == 1);
  for (Resource* each : {static_cast<Resource*>(pool.get()),
                         static_cast<Resource*>(limiting.get()),
                         static_cast<Resource*>(&resource)}) {
    CHECK(each->stats().current == 2 * kMiB && each->stats().peak == 3 * kMiB);
    CHECK(each->owners() == memcfg::Owners({{"a", 2 * kMiB}}));
    each->check();
  }
  void* const above = pool->allocate({kMiB});
  CHECK(number(above) == number(block) + 2 * kMiB);
  CHECK(!resource.resize(block, 2 * kMiB, 3 * kMiB));  // what was drawn goes back
  CHECK(limiting->stats().largest_free == 2 * kMiB &&
        resource.stats().peak == 3 * kMiB);
  pool->deallocate(block, 2 * kMiB);  // behind their backs
  CHECK_THROWS(bad_free, resource.resize(block, 2 * kMiB, kMiB));
  CHECK_THROWS(bad_free, resource.resize(block, 2 * kMiB, 3 * kMiB));
  CHECK(limiting->stats().largest_free == 2 * kMiB);
  resource.check();
  pool->deallocate(above, kMiB);
}

// What a thread's blocks need no more is no thread's hoard.
TEST(small_blocks_resize_in_the_cache_of_their_thread) {
  const auto pool = make_pool(kMiB);
  std::vector<void*> blocks;
  for (int i = 0; i < 16; ++i) blocks.push_back(pool->allocate({8192}));
  for (int round = 0; round < 100; ++round) {
    for (void* block : blocks) CHECK(pool->resize(block, 8192, 8000));
    const Bytes used = pool->stats().current;
    CHECK(used == 16 * align_up(8000) && pool->stats().largest_free == kMiB - used);
    for (void* block : blocks) CHECK(pool->resize(block, 8000, 8192));
    check_pool(*pool);
  }
  CHECK(pool->stats().peak == 16 * 8192);
  for (void* block : blocks) CHECK(pool->resize(block, 8192, 7900));
  in_a_thread([&] {  // another thread can have the rest
    const Bytes rest = pool->stats().largest_free;
    CHECK(rest >= kMiB - 16 * 8192);
    pool->deallocate(pool->allocate({rest}), rest);
  });
  for (void* block : blocks) pool->deallocate(block, 7900);
  check_pool(*pool);
}

// Of two threads that change the same block one is wrong, and both are told apart.
TEST(one_of_two_resizes_is_refused) {
  const auto pool = make_pool(64 * kMiB);
  for (const Bytes size : {Bytes{100}, Bytes{8000}, 2 * kMiB}) {
    for (int round = 0; round < 200; ++round) {
      void* const block = pool->allocate({size});
      std::atomic<int> done{0};
      std::atomic<int> freed{0};
      Threads threads;
      Meeting meeting(2);
      for (const Bytes now : {size + 64, size - 10}) {
        threads.start([&, now] {
          meeting.arrive();
          try {
            if (now > size) {
              done += pool->resize(block, size, now) ? 1 : 0;
            } else {
              pool->deallocate(block, size);
              ++freed;
            }
          } catch (const bad_free&) {
          }
        });
      }
      threads.finish();
      check_pool(*pool);
      CHECK(done + freed <= 2 && pool->blocks().size() <= 1);
      if (!pool->blocks().empty()) {
        pool->deallocate(block, pool->size_of(block));
      }
      CHECK(pool->stats().current == 0);
    }
  }
}

// A block is out while its size changes, whoever looks.
TEST(nobody_sees_a_resize_half_done) {
  const auto pool = make_pool(64 * kMiB);
  void* const small = pool->allocate({8192, 64, Lifetime::unknown, "small"});
  void* const large = pool->allocate({kMiB, 64, Lifetime::long_lived, "large"});
  std::atomic<bool> done{false};
  Threads threads;
  threads.start([&] {
    while (!done) {
      CHECK(pool->resize(small, 8192, 8100) && pool->resize(small, 8100, 8192));
      CHECK(pool->resize(small, 8192, 100) && pool->resize(small, 100, 8192));
    }
  });
  threads.start([&] {
    while (!done) {
      CHECK(pool->resize(large, kMiB, 100000));
      if (!pool->resize(large, 100000, kMiB)) done = true;
    }
  });
  for (int look = 0; look < 300; ++look) {
    const std::vector<LiveBlock> rows = pool->blocks();
    CHECK(rows.size() == 2);
    for (const LiveBlock& row : rows) {
      CHECK(row.tag == (row.address == number(small) ? "small" : "large"));
    }
    const Bytes used = pool->stats().current;
    CHECK(used >= 128 + align_up(100000) && used <= 8192 + kMiB);
    check_busy_pool(*pool);
    std::this_thread::yield();
  }
  CHECK(!done);
  done = true;
  threads.finish();
  pool->deallocate(small, 8192);
  pool->deallocate(large, kMiB);
}

// Blocks go from thread to thread, and every one of them resizes and frees.
TEST(threads_resize_and_free) {
  const Faulty system;
  {
    const auto pool = make_pool(48 * kMiB, system);
    struct Row {
      void* address;
      Bytes size;
      unsigned char value;
    };
    std::mutex mutex;
    std::vector<Row> shelf;
    std::atomic<int> resized{0};
    Threads threads;
    for (unsigned seed = 0; seed < 4; ++seed) {
      threads.start([&, seed] {
        std::mt19937 random(seed);
        const auto any_size = [&] {
          const Bytes most = random() % 4 == 0 ? 3 * kMiB : 20 * kKiB;
          return 1 + random() % most;
        };
        for (int step = 0; step < (kThreadSanitizer ? 300 : 1500); ++step) {
          Row row{nullptr, any_size(), static_cast<unsigned char>(random())};
          {
            const std::lock_guard<std::mutex> lock(mutex);
            if (!shelf.empty() && (shelf.size() > 40 || random() % 2 == 0)) {
              std::swap(shelf[random() % shelf.size()], shelf.back());
              row = shelf.back();
              shelf.pop_back();
            }
          }
          if (row.address == nullptr) {
            try {
              const bool zeroed = random() % 2 == 0;
              row.address =
                  pool->allocate({row.size, 64, Lifetime::unknown, "x", zeroed});
              if (zeroed) CHECK(has(row.address, row.size, 0));
              fill(row.address, row.size, row.value);
            } catch (const out_of_memory&) {
              continue;
            }
          }
          CHECK(has(row.address, row.size, row.value));
          const Bytes now = any_size();
          if (pool->resize(row.address, row.size, now)) {
            CHECK(has(row.address, std::min(now, row.size), row.value));
            row.size = now;
            row.value = static_cast<unsigned char>(random());
            fill(row.address, now, row.value);
            ++resized;
          }
          if (random() % 3 == 0) {
            pool->deallocate(row.address, row.size);
            continue;
          }
          const std::lock_guard<std::mutex> lock(mutex);
          shelf.push_back(row);
        }
      });
    }
    while (threads.at_work()) {
      check_busy_pool(*pool);
      pool->trim(kMiB);
      std::this_thread::yield();
    }
    threads.finish();
    CHECK(resized > (kThreadSanitizer ? 100 : 500));
    for (const Row& row : shelf) pool->deallocate(row.address, row.size);
    CHECK(pool->stats().current == 0 && pool->owners().empty());
    check_pool(*pool);
    pool->trim(0);
    CHECK(system.open == 0);
  }
  CHECK(system.has_all_back());
}

TEST(zeroed_memory_that_is_fresh_is_not_touched) {
  const auto pool = make_pool(256 * kMiB);
  const Request request{40 * kMiB, 64, Lifetime::unknown, "", true};
  Blocks neighbours(*pool);
  neighbours.take({100});  // so that the block shares its first page
  const Bytes before = resident(*pool);
  void* block = pool->allocate(request);
  CHECK(resident(*pool) <= before + 4 * pool->system().page_size());
  CHECK(has(block, request.size, 0));
  fill(block, request.size, 9);
  pool->deallocate(block, request.size);
  block = pool->allocate(request);  // the pages have been used
  CHECK(has(block, request.size, 0) && neighbours.intact());
  fill(block, request.size, 9);
  pool->deallocate(block, request.size);
  pool->trim(0);
  const Bytes idle = resident(*pool);
  block = pool->allocate(request);  // and now they are gone
  CHECK(resident(*pool) <= idle + 4 * pool->system().page_size());
  CHECK(has(block, request.size, 0) && neighbours.intact());
  fill(block, request.size, 9);
  pool->deallocate(block, request.size);
  pool->trim(20 * kMiB);  // some are, some are not
  block = pool->allocate(request);
  CHECK(has(block, request.size, 0) && neighbours.intact());
  pool->deallocate(block, request.size);
}

// The memory of many pages goes back instead; where the system keeps it, or it is to
// stay, it is written.
TEST(zeroed_memory_that_was_used) {
  const Faulty system;
  const auto pool = make_pool(256 * kMiB, system);
  const Request request{40 * kMiB, 64, Lifetime::unknown, "", true};
  Blocks neighbours(*pool);
  neighbours.take({100});
  for (const int grants : {Faulty::kMany, 0}) {
    void* block = pool->allocate(request);
    fill(block, request.size, 9);
    pool->deallocate(block, request.size);
    CHECK(resident(*pool) >= request.size);
    system.calls_left = grants;
    block = pool->allocate(request);
    system.calls_left = Faulty::kMany;
    if (grants > 0) CHECK(resident(*pool) <= 16 * pool->system().page_size());
    CHECK(has(block, request.size, 0) && neighbours.intact());
    pool->deallocate(block, request.size);
    check_pool(*pool);
  }
  Pool fixed("fixed", 64 * kMiB, false);
  void* const block = fixed.allocate(request);
  CHECK(resident(fixed) == 64 * kMiB && has(block, request.size, 0));
  fixed.deallocate(block, request.size);
}

// The system refuses to take locked memory back, but it must be zero all the same.
TEST(zeroed_memory_that_is_locked) {
  const auto pool = make_pool(64 * kMiB);
  const Request request{40 * kKiB + 4096 * 8, 4096, Lifetime::unknown, "", true};
  void* const block = pool->allocate(request);
  CHECK(has(block, request.size, 0));
  fill(block, request.size, 9);
  const bool locked = mlock(block, request.size) == 0;
  if (!locked) std::printf("mlock is not allowed here\n");
  pool->deallocate(block, request.size);
  CHECK(pool->trim(0) > 0);
  if (locked && can_drop_locked()) CHECK(resident(*pool) == 0);
  void* const again = pool->allocate(request);
  CHECK(again == block && has(again, request.size, 0));
  munlock(block, request.size);
  pool->deallocate(again, request.size);
}
