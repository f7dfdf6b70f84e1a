#include <cstdlib>
#include <random>
#include <thread>

#include "block.hpp"
#include "check.hpp"
#include "memcfg/limit.hpp"
#include "memcfg/system_resource.hpp"
#include "memcfg/thread_caches.hpp"
#include "pools.hpp"

using memcfg::bad_free;
using memcfg::Block;
using memcfg::Limit;
using memcfg::SimulatedResource;
using memcfg::SizeClass;
using memcfg::SystemResource;
using namespace pools;

namespace {

const Bytes kPage = memcfg::host_system().page_size();

std::shared_ptr<Pool> simulated_pool(Bytes limit) {
  return std::make_shared<Pool>(
      "gpu", limit, true, std::make_shared<SimulatedResource>("gpu", 64 * kGiB));
}

}  // namespace

TEST(limit_reserves_to_the_last_byte) {
  Limit limit(100);
  CHECK(limit.reserve(60) && limit.reserve(40));
  CHECK(!limit.reserve(1));
  CHECK(limit.free() == 0);
  limit.release(40);
  CHECK(!limit.reserve(41) && limit.reserve(40));
}

TEST(limit_does_not_overflow) {
  Limit limit(kNoLimit);
  CHECK(limit.reserve(kNoLimit - 1));
  CHECK(!limit.reserve(kNoLimit));
  CHECK(!limit.reserve(2));
  CHECK(limit.reserve(1));
}

TEST(limit_is_set_around_what_is_used) {
  Limit limit(100);
  CHECK(limit.reserve(50));
  CHECK(!limit.set(49) && limit.limit() == 100 && limit.free() == 50);
  CHECK(limit.set(50) && limit.free() == 0);
  CHECK(limit.set(kNoLimit) && limit.free() == kNoLimit - 50);
  CHECK(limit.set(80) && limit.free() == 30);
}

TEST(size_classes_are_close_and_in_order) {
  Bytes before = 0;
  for (Bytes size = 1; size <= SizeClass::kLargest; ++size) {
    const Bytes lines = align_up(size);
    const Bytes block = SizeClass::block(size);
    CHECK(block >= lines && block % memcfg::kAlignment == 0);
    CHECK(block <= lines + lines / 16 && block >= before);
    CHECK(block == SizeClass::size(SizeClass::of(size)));
    CHECK(size > 2048 || block == lines);
    before = block;
  }
  for (std::size_t number = 0; number < SizeClass::kCount; ++number) {
    CHECK(SizeClass::of(SizeClass::size(number)) == number);
  }
  CHECK(SizeClass::size(SizeClass::kCount - 1) == SizeClass::kLargest);
  CHECK(SizeClass::block(SizeClass::kLargest + 1) == SizeClass::kLargest + 1);
}

TEST(a_block_is_aligned_and_rounded) {
  const auto pool = make_pool(kNoLimit);
  for (const Bytes size : {Bytes{1}, Bytes{63}, Bytes{64}, Bytes{65}, Bytes{100000}}) {
    const Block block(pool, {size});
    CHECK(number(block.address()) % 64 == 0);
    CHECK(block.size() == align_up(size) && block.requested() == size);
    CHECK(pool->stats().current == block.size() && pool->stats().requested == size);
    std::memset(block.address(), 0xab, block.size());
    check_pool(*pool);
  }
  CHECK(pool->stats().current == 0);
}

TEST(a_detached_block_is_its_takers) {
  const auto pool = make_pool(kNoLimit);
  void* address = nullptr;
  {
    Block block(pool, {100, 64, Lifetime::unknown, "a"});
    address = block.detach();
    CHECK(block.address() == nullptr);
  }
  CHECK(pool->stats().current == 128);
  pool->deallocate(address, 100);
  CHECK(pool->stats().current == 0);
}

// Also where a cache has a block at hand.
TEST(requests_that_are_none) {
  const auto pool = make_pool(64 * kMiB);
  for (const Bytes size : {Bytes{1}, Bytes{100}, 100 * kKiB}) {
    pool->deallocate(pool->allocate({size}), size);
    for (const Bytes alignment : {Bytes{0}, Bytes{3}, Bytes{48}, Bytes{96}, kNoLimit}) {
      CHECK_THROWS(std::invalid_argument, pool->allocate({size, alignment}));
    }
    for (const Bytes alignment : {Bytes{1}, Bytes{2}, Bytes{32}}) {
      void* const address = pool->allocate({size, alignment});
      CHECK(number(address) % 64 == 0);
      pool->deallocate(address, size);
    }
  }
  CHECK_THROWS(std::invalid_argument, pool->allocate({0}));
  CHECK_THROWS(std::invalid_argument, pool->set_limit(0));
  CHECK_THROWS(std::invalid_argument, make_pool(0));
  CHECK(pool->limit() == 64 * kMiB && pool->stats().current == 0);
}

TEST(the_limit_is_on_rounded_bytes_and_exact) {
  const auto pool = make_pool(128);
  CHECK(pool->stats().largest_free == 128);
  const Block block(pool, {65});
  CHECK(pool->stats().largest_free == 0);
  CHECK(out_of_memory_error(*pool, {1}).cause == OutOfMemoryInfo::limit_reached);
  check_pool(*pool);
}

// The last byte, for many limits and ways to get there; then one byte more.
TEST(one_byte_over_the_limit_is_refused) {
  for (const Bytes limit : {Bytes{64}, kPage, kPage + 64, kMiB - 64, 10 * kMiB + 192}) {
    for (const Bytes first : {Bytes{1}, Bytes{64}, limit / 2, limit - 63, limit}) {
      const auto pool = make_pool(limit);
      Blocks blocks(*pool);
      blocks.take({first, 64, Lifetime::unknown, "first"});
      const Bytes rest = limit - align_up(first);
      CHECK(pool->stats().largest_free == rest);
      const OutOfMemoryInfo report = out_of_memory_error(*pool, {rest + 1});
      CHECK(report.cause == OutOfMemoryInfo::limit_reached);
      CHECK(report.requested == rest + 1 && report.rounded == rest + 64);
      CHECK(report.in_use == align_up(first) && report.limit == limit);
      CHECK(report.largest_free == rest && report.device == "device");
      CHECK(report.owners.size() == 1 && report.owners[0].first == "first");
      check_pool(*pool);
      if (rest > 0) blocks.take({rest});
      CHECK(pool->stats().current == limit && !grants(*pool, {1}));
      check_pool(*pool);
    }
  }
}

TEST(largest_free_is_whole_lines) {
  const auto pool = make_pool(1000);
  const Block block(pool, {10});
  CHECK(pool->stats().largest_free == 896);
  CHECK(out_of_memory_error(*pool, {897}).largest_free == 896);
  const Block rest(pool, {896});
}

TEST(an_error_tells_the_numbers) {
  const auto pool = make_pool(1024);
  const Block small(pool, {64, 64, Lifetime::unknown, "small"});
  const Block large(pool, {512, 64, Lifetime::unknown, "large"});
  const OutOfMemoryInfo report =
      out_of_memory_error(*pool, {1000, 64, Lifetime::unknown, "asker"});
  CHECK(report.cause == OutOfMemoryInfo::limit_reached);
  CHECK(report.requested == 1000 && report.rounded == 1024 && report.in_use == 576);
  CHECK(report.limit == 1024 && report.largest_free == 448);
  CHECK(report.reserved == pool->stats().reserved);
  CHECK(report.owners == (memcfg::Owners{{"large", 512}, {"small", 64}}));
  CHECK(pool->owners().size() == 2);  // the asker holds nothing
  check_pool(*pool);
}

TEST(huge_requests_are_refused) {
  for (const Bytes limit : {Bytes{1024}, kNoLimit}) {
    const auto pool = make_pool(limit);
    for (const Bytes size : {kNoLimit, kNoLimit - 1, kNoLimit - 63, kNoLimit / 2}) {
      for (const Bytes alignment : {Bytes{64}, kMiB, Bytes{1} << 63}) {
        CHECK(out_of_memory_error(*pool, {size, alignment}).requested == size);
      }
    }
    CHECK(!grants(*pool, {64, Bytes{1} << 63}));
    check_pool(*pool);
    CHECK(pool->stats().current == 0 && pool->stats().peak == 0);
  }
}

// Also of more bytes than the metadata can note of one block.
TEST(requests_of_many_tebibytes) {
  const auto pool = std::make_shared<Pool>(
      "gpu", kNoLimit, true, std::make_shared<SimulatedResource>("gpu", kNoLimit / 4));
  CHECK(grants(*pool, {1024 * kGiB + 1}));
  for (int bits = 48; bits < 64; ++bits) {
    CHECK(out_of_memory_error(*pool, {Bytes{1} << bits}).cause ==
          OutOfMemoryInfo::simulated_full);
    check_pool(*pool);
  }
  CHECK(pool->stats().current == 0 && pool->stats().peak == 1024 * kGiB + 64);
}

// TensorFlow's allocator gives a 30 MiB chunk to one of these.
TEST(a_small_block_leaves_space_for_large_ones) {
  const auto pool = make_pool(64 * kMiB);
  Blocks blocks(*pool);
  blocks.take({12});
  for (int i = 0; i < 3; ++i) blocks.take({16 * kMiB});
  blocks.take({15 * kMiB});
  check_pool(*pool);
}

TEST(what_is_free_in_two_places_serves_one_request) {
  const auto pool = make_pool(512 * kMiB);
  Blocks blocks(*pool);
  for (int i = 0; i < 128; ++i) blocks.take({4 * kMiB});
  CHECK(!grants(*pool, {1}));
  while (blocks.count() > 1) blocks.give(0);
  CHECK(pool->stats().largest_free == 508 * kMiB);
  blocks.take({508 * kMiB});
  CHECK(blocks.intact() && pool->stats().reserved <= 512 * kMiB + kPage);
  check_pool(*pool);
  check_layout(*pool);
}

TEST(bad_frees_change_nothing) {
  const auto pool = make_pool(64 * kMiB);
  for (const Bytes size : {Bytes{1}, Bytes{100}, Bytes{5000}, 64 * kKiB, 3 * kMiB}) {
    for (const bool through_the_cache : {false, true}) {
      Blocks others(*pool);
      others.take({size});
      void* const address = pool->allocate({size, 64, Lifetime::unknown, "a"});
      others.take({size});
      int local = 0;
      const State before(*pool);
      for (const Bytes wrong : {Bytes{0}, size - 1, size + 1, size + 64, kNoLimit}) {
        CHECK_THROWS(bad_free, pool->deallocate(address, wrong));
      }
      for (const Bytes inner : {Bytes{1}, Bytes{8}, Bytes{64}, size / 2 + 1}) {
        if (inner >= align_up(size)) continue;  // a neighbour may start there
        auto* const place = static_cast<std::byte*>(address) + inner;
        CHECK_THROWS(bad_free, pool->deallocate(place, size));
      }
      CHECK_THROWS(bad_free, pool->deallocate(&local, size));
      CHECK_THROWS(bad_free, pool->deallocate(nullptr, size));
      CHECK_THROWS(bad_free, pool->deallocate(reinterpret_cast<void*>(~0UL), size));
      CHECK(State(*pool) == before);
      pool->deallocate(address, size);
      if (!through_the_cache) empty_caches(*pool);
      const State after(*pool);
      CHECK_THROWS(bad_free, pool->deallocate(address, size));
      CHECK(State(*pool) == after && others.intact());
      check_pool(*pool);
    }
  }
}

// Freed blocks that have become the inside of a free chunk.
TEST(a_double_free_after_joining) {
  const auto pool = make_pool(kNoLimit);
  std::vector<void*> addresses;
  for (int i = 0; i < 64; ++i) addresses.push_back(pool->allocate({kMiB}));
  for (void* address : addresses) pool->deallocate(address, kMiB);
  for (void* address : addresses) {
    CHECK_THROWS(bad_free, pool->deallocate(address, kMiB));
  }
  check_pool(*pool);
}

TEST(all_that_was_freed_is_one_free_chunk_a_segment) {
  std::mt19937 random(3);
  const auto pool = make_pool(kNoLimit);
  Blocks blocks(*pool);
  for (int i = 0; i < 2000; ++i) {
    const Bytes alignment = Bytes{64} << random() % 12;
    const auto lifetime = static_cast<Lifetime>(random() % 3);
    blocks.take({1 + random() % (300 * kKiB), alignment, lifetime, "a"});
  }
  check_layout(*pool);
  while (blocks.count() > 0) blocks.give(random() % blocks.count());
  CHECK(count(*pool, HeapExtent::block) == 0);
  empty_caches(*pool);
  const std::vector<HeapExtent> rows = pool->layout();
  CHECK(count(*pool, HeapExtent::free) == rows.size() && rows.size() > 1);
  for (const HeapExtent& row : rows) CHECK(row.size >= 64 * kMiB);
  check_pool(*pool);
}

TEST(lifetimes_go_to_different_ends) {
  const auto pool = make_pool(kNoLimit);
  Blocks blocks(*pool);
  const auto at = [&](Bytes size, Lifetime lifetime) {
    return number(blocks.take({size, 64, lifetime, "a"}));
  };
  const auto low = at(kMiB, Lifetime::long_lived);
  const auto high = at(kMiB, Lifetime::short_lived);
  CHECK(at(kMiB, Lifetime::long_lived) == low + kMiB);
  CHECK(at(kMiB, Lifetime::short_lived) == high - kMiB);
  CHECK(at(kMiB, Lifetime::unknown) == low + 2 * kMiB);
  const auto small = at(100, Lifetime::long_lived);
  CHECK(small == low + 3 * kMiB);
  check_layout(*pool);
}

TEST(addresses_double) {
  const Faulty system;
  const auto pool = make_pool(kNoLimit, system);
  Blocks blocks(*pool);
  Bytes before = 0;
  for (int i = 0; i < 40; ++i) {
    blocks.take({16 * kMiB});
    const Bytes now = pool->stats().addresses;
    CHECK(now == before || now == std::max(64 * kMiB, 2 * before));
    CHECK(now == system.reserved);
    before = now;
  }
  blocks.take({3 * kGiB});  // larger than all before it
  CHECK(pool->stats().addresses == before + 3 * kGiB);
  CHECK(pool->stats().reserved <= 3 * kGiB + 41 * 16 * kMiB);
}

TEST(largest_free_can_be_had_and_no_more) {
  std::mt19937 random(5);
  for (const Bytes limit : {100 * kKiB, 10 * kMiB + 64, 64 * kMiB}) {
    const auto pool = make_pool(limit);
    Blocks blocks(*pool);
    for (int step = 0; step < 300; ++step) {
      if (blocks.count() > 0 && random() % 2 == 0) {
        blocks.give(random() % blocks.count());
      } else {
        blocks.try_take({1 + random() % (limit / 8), Bytes{64} << random() % 8});
      }
      empty_caches(*pool);
      const Bytes largest = pool->stats().largest_free;
      CHECK(largest % 64 == 0);
      CHECK(largest <= limit - blocks.charged());
      CHECK(largest == 0 || grants(*pool, {largest}));
      empty_caches(*pool);
      CHECK(!grants(*pool, {pool->stats().largest_free + 1}));
      check_pool(*pool);
    }
  }
}

TEST(trimming_returns_what_reserved_falls_by) {
  const Faulty system;
  const auto pool = make_pool(256 * kMiB, system);
  std::mt19937 random(9);
  Blocks blocks(*pool);
  for (int step = 0; step < 300; ++step) {
    if (blocks.count() > 0 && random() % 5 < 2) {
      blocks.give(random() % blocks.count());
    } else {
      blocks.try_take({1 + random() % (Bytes{1} << (6 + random() % 16))});
    }
    if (step % 10 != 0) continue;
    empty_caches(*pool);
    const ResourceStats before = pool->stats();
    const Bytes keep = random() % (before.idle + kPage);
    const Bytes given = pool->trim(keep);
    const ResourceStats after = pool->stats();
    CHECK(before.reserved - after.reserved == given && system.open == after.reserved);
    CHECK(before.idle - after.idle == given);
    CHECK(after.idle <= keep &&
          after.idle == std::min(before.idle, keep / kPage * kPage));
    CHECK(after.current == before.current && blocks.intact());
    CHECK(pool->trim(keep) == 0);
    check_layout(*pool);
  }
  blocks.clear();
  pool->trim(0);
  CHECK(pool->stats().reserved == 0 && system.open == 0);
}

TEST(what_nobody_used_lately_decays) {
  const Faulty system;
  const auto pool = make_pool(kNoLimit, system);
  Blocks blocks(*pool);
  for (int i = 0; i < 16; ++i) blocks.take({kMiB});
  while (blocks.count() > 8) blocks.give(blocks.count() - 1);
  pool->decay();
  const Bytes before = pool->stats().reserved;
  CHECK(before == 16 * kMiB && pool->stats().idle == 8 * kMiB);
  CHECK(pool->decay() == 8 * kMiB);
  CHECK(pool->stats().reserved == 8 * kMiB && pool->stats().idle == 0);
  for (int i = 0; i < 4; ++i) {  // used again and again: they stay
    blocks.take({kMiB});
    blocks.give(8);
    CHECK(pool->decay() == 0);
  }
  CHECK(pool->decay() == kMiB && pool->decay() == 0 && system.open == 8 * kMiB);
  check_pool(*pool);
}

// Ten thousand blocks, and the metadata of none.
TEST(an_empty_pool_resets_its_metadata) {
  const Bytes before = [] {
    const auto fresh = make_pool(kNoLimit);
    Blocks(*fresh).take({100});
    fresh->trim(0);
    return fresh->stats().metadata;
  }();
  const auto full = make_pool(kNoLimit);
  Blocks blocks(*full);
  for (int round = 0; round < 3; ++round) {
    for (int i = 0; i < 10000; ++i) blocks.take({Bytes{100} + i % 7 * 64});
    CHECK(full->stats().metadata > before + kMiB / 2);
    blocks.clear();
    full->trim(0);
    CHECK(full->stats().metadata == before && full->stats().reserved == 0);
    check_pool(*full);
    check_layout(*full);
  }
}

TEST(what_is_trimmed_is_gone_from_the_process) {
  const auto pool = make_pool(kNoLimit);
  std::vector<void*> addresses(256);
  const Bytes before = memcfg::resident_size();
  for (void*& address : addresses) {
    address = pool->allocate({kMiB});
    std::memset(address, 1, kMiB);
  }
  CHECK(memcfg::resident_size() >= before + 256 * kMiB);
  for (void* address : addresses) pool->deallocate(address, kMiB);
  CHECK(pool->trim(0) >= 256 * kMiB);
  if (kThreadSanitizer) return;  // its shadow of the memory stays
  CHECK(memcfg::resident_size() <= before + 4 * kMiB);
}

TEST(a_pool_that_does_not_grow_has_all_at_once) {
  const Bytes limit = 32 * kMiB + 64;
  const auto pool = std::make_shared<Pool>("device", limit, false);
  const ResourceStats fresh = pool->stats();
  CHECK(fresh.reserved == 32 * kMiB + kPage && fresh.peak_reserved == fresh.reserved);
  CHECK(fresh.current == 0 && fresh.largest_free == limit && !pool->growth());
  {
    Blocks blocks(*pool);
    blocks.take({limit});
    CHECK(pool->stats().reserved == fresh.reserved);
    blocks.clear();
    for (int i = 0; i < 32; ++i) blocks.take({kMiB});
    for (int i = 0; i < 16; ++i) blocks.give(i);
    blocks.take({16 * kMiB});  // no hole fits; those that there are pay
    CHECK(pool->stats().reserved <= limit + kPage);
    check_pool(*pool);
  }
  CHECK(pool->trim(0) > 0);
  CHECK(pool->stats().reserved == 0 && grants(*pool, {limit}));
  CHECK_THROWS(std::invalid_argument, Pool("device", kNoLimit, false));
  for (const Bytes huge :
       {kNoLimit - 1, kNoLimit - kPage, kNoLimit / 2, kNoLimit / 4}) {
    CHECK_THROWS(out_of_memory, Pool("device", huge, false));
  }
}

TEST(set_limit_below_use_changes_nothing) {
  const auto pool = make_pool(1024);
  const Block block(pool, {512});
  try {
    pool->set_limit(511);
    CHECK(false);
  } catch (const out_of_memory& error) {
    CHECK(error.info().cause == OutOfMemoryInfo::limit_lowered);
    CHECK(error.info().requested == 511 && error.info().in_use == 512);
    CHECK(error.info().limit == 1024);
  }
  CHECK(pool->limit() == 1024 && pool->stats().largest_free == 512);
  CHECK(pool->set_limit(512) == 1024);
  CHECK(!grants(*pool, {1}));
  CHECK(pool->set_limit(kNoLimit) == 512);
  CHECK(pool->stats().largest_free == kNoLimit);
  const Block more(pool, {100000});
  check_pool(*pool);
}

TEST(a_lower_limit_takes_idle_pages) {
  const Faulty system;
  const auto pool = make_pool(64 * kMiB, system);
  Blocks blocks(*pool);
  for (int i = 0; i < 64; ++i) blocks.take({kMiB});
  for (int i = 0; i < 48; ++i) blocks.give(0);
  CHECK(pool->stats().reserved == 64 * kMiB);
  CHECK(pool->set_limit(16 * kMiB) == 64 * kMiB);
  CHECK(pool->stats().reserved <= 16 * kMiB + kPage && blocks.intact());
  check_pool(*pool);
  CHECK(!grants(*pool, {1}) && pool->set_limit(17 * kMiB) == 16 * kMiB);
  CHECK(grants(*pool, {kMiB}) && !grants(*pool, {kMiB + 1}));
}

// A line of each page is in use: the bytes fit a lower limit, the pages do not.
TEST(a_limit_below_the_pages_in_use_changes_nothing) {
  const auto pool = make_pool(kMiB);
  Blocks blocks(*pool);
  for (Bytes i = 0; i < kMiB / kPage; ++i) blocks.take({kPage});
  std::vector<std::size_t> kept;
  Blocks lines(*pool);
  for (std::size_t i = blocks.count(); i-- > 0;) {
    blocks.give(i);
    lines.take({64});
    if (i > 0) blocks.give(i - 1);
    if (i > 0) --i;
  }
  check_pool(*pool);
  const ResourceStats before = pool->stats();
  Bytes lowest = before.current;
  for (; lowest < kMiB; lowest += 64) {
    try {
      pool->set_limit(lowest);
      break;
    } catch (const out_of_memory& error) {
      CHECK(error.info().cause == OutOfMemoryInfo::fragmented);
      CHECK(pool->limit() == kMiB && pool->stats().current == before.current);
    }
  }
  CHECK(lowest <= before.reserved);
  check_pool(*pool);
}

TEST(limits_near_the_end_of_numbers) {
  const auto pool = make_pool(kNoLimit);
  const Block block(pool, {10 * kMiB});
  {
    const Block freed(pool, {10 * kMiB});
  }
  for (const Bytes limit : {kNoLimit - 1, kNoLimit - kPage, kNoLimit - kPage - 1}) {
    const Bytes reserved = pool->stats().reserved;
    pool->set_limit(limit);
    CHECK(pool->limit() == limit && pool->stats().reserved == reserved);
    const Block more(pool, {100000});
    check_pool(*pool);
  }
}

TEST(the_peak_is_kept_and_reset) {
  const auto pool = make_pool(kNoLimit);
  const Block block(pool, {64});
  {
    const Block more(pool, {128});
  }
  CHECK(pool->stats().peak == 192 && pool->stats().current == 64);
  pool->reset_peak();
  CHECK(pool->stats().peak == 64);
  check_pool(*pool);
}

// One thread: exact at every step, whatever its cache does.
TEST(the_peak_of_one_thread_is_exact) {
  std::mt19937 random(21);
  const auto pool = make_pool(4 * kMiB);
  Blocks blocks(*pool);
  Bytes peak = 0;
  for (int step = 0; step < 4000; ++step) {
    if (blocks.count() > 0 && random() % 2 == 0) {
      blocks.give(random() % blocks.count());
    } else {
      blocks.try_take({1 + random() % (random() % 8 == 0 ? 300000 : 5000)});
    }
    peak = std::max(peak, blocks.charged());
    CHECK(pool->stats().peak == peak);
    CHECK(pool->stats().current == blocks.charged());
    CHECK(pool->stats().requested == blocks.requested());
    if (random() % 100 != 0) continue;
    pool->reset_peak();
    peak = blocks.charged();
    CHECK(pool->stats().peak == peak);
  }
}

TEST(a_refusal_by_the_pages_is_no_peak) {
  const Faulty system;
  const auto pool = make_pool(64 * kMiB, system);
  pool->deallocate(pool->allocate({100}), 100);  // there is a cache
  pool->reset_peak();
  pool->trim(0);
  system.calls_left = 0;
  const State before(*pool);
  CHECK(out_of_memory_error(*pool, {kMiB}).cause == OutOfMemoryInfo::no_memory);
  CHECK(out_of_memory_error(*pool, {128}).cause == OutOfMemoryInfo::no_memory);
  CHECK(State(*pool) == before && pool->stats().peak == 0);
}

TEST(tags_share_a_row) {
  const auto pool = make_pool(kNoLimit);
  const Request request{64, 64, Lifetime::unknown, "a"};
  void* const first = pool->allocate(request);
  const Block second(pool, {128, 64, Lifetime::unknown, "a"});
  const Block other(pool, {128});
  CHECK(pool->owners() == (memcfg::Owners{{"", 128}, {"a", 192}}));
  pool->deallocate(first, 64);
  CHECK(pool->owners() == (memcfg::Owners{{"", 128}, {"a", 128}}));
}

TEST(a_pool_knows_as_many_tags_as_it_says) {
  const auto pool = make_pool(64 * kMiB);
  int known = 0;
  try {
    for (; known < 70000; ++known) {
      const std::string tag = "tag " + std::to_string(known);
      pool->deallocate(pool->allocate({64, 64, Lifetime::unknown, tag}), 64);
    }
  } catch (const std::invalid_argument&) {
  }
  CHECK(known >= 65535 && pool->stats().current == 0);
  CHECK(grants(*pool, {64, 64, Lifetime::unknown, "tag 7"}) && grants(*pool, {64}));
  check_pool(*pool);
}

// Tags that hold nothing make room for others; those that hold something do not.
TEST(a_pool_with_as_many_tags_as_it_knows) {
  const auto pool = make_pool(kNoLimit);
  Blocks blocks(*pool);
  const auto take = [&](int number) {
    const std::string tag = "tag " + std::to_string(number);
    blocks.take({64, 64, Lifetime::unknown, tag});
  };
  try {
    for (int number = 0; number < 70000; ++number) take(number);
  } catch (const std::invalid_argument&) {
  }
  CHECK(blocks.count() == 65535 && pool->owners().size() == 65535);
  CHECK_THROWS(std::invalid_argument, take(70000));
  CHECK(pool->stats().current == blocks.charged());
  blocks.take({64});
  take(0);
  while (blocks.count() > 100) blocks.give(blocks.count() / 2);
  take(70000);
  check_pool(*pool);
}

TEST(the_metadata_of_a_large_pool_are_small) {
  for (const Bytes size : {128 * kKiB, kMiB, 64 * kMiB}) {
    const auto pool = simulated_pool(16 * kGiB);
    Blocks blocks(*pool);
    while (blocks.try_take({size})) continue;
    CHECK(blocks.charged() == 16 * kGiB);
    CHECK(pool->stats().metadata <= 16 * kMiB);
    while (blocks.count() > 0) blocks.give(blocks.count() / 2);
    CHECK(pool->stats().metadata <= 16 * kMiB);
    check_pool(*pool);
  }
}

TEST(a_pool_takes_blocks_of_a_resource) {
  const Faulty system;
  {
    const auto below = std::make_shared<SystemResource>(
        "d", std::shared_ptr<const memcfg::System>(std::shared_ptr<void>(), &system));
    for (const Bytes limit : {100 * kKiB, 10 * kMiB, 64 * kMiB}) {
      Pool pool("top", limit, true, below);
      {
        Blocks blocks(pool);
        blocks.take({limit});
        CHECK(below->stats().current == pool.stats().reserved);
        CHECK(pool.stats().reserved <= limit + kPage && !grants(pool, {1}));
        blocks.clear();
        for (int i = 0; i < 16; ++i) blocks.take({limit / 16});
        check_pool(pool);
      }
      CHECK(pool.trim(0) > 0 && pool.stats().reserved == 0);
      CHECK(below->stats().current == 0);
      check_pool(pool);
    }
  }
  CHECK(system.has_all_back());
}

TEST(a_pool_on_a_pool) {
  const Faulty system;
  {
    const auto below = make_pool(64 * kMiB, system);
    Pool pool("top", 48 * kMiB, true, below);
    std::mt19937 random(13);
    Blocks blocks(pool);
    for (int step = 0; step < 2000; ++step) {
      if (blocks.count() > 0 && random() % 2 == 0) {
        blocks.give(random() % blocks.count());
      } else {
        blocks.try_take({1 + random() % (Bytes{1} << (6 + random() % 17))});
      }
      if (step % 50 != 0) continue;
      if (step % 200 == 0) pool.trim(0);
      CHECK(below->stats().current == pool.stats().reserved);
      check_pool(pool);
      check_layout(pool);
      check_pool(*below);
    }
  }
  CHECK(system.has_all_back());
}

TEST(a_pool_on_a_pool_that_refuses) {
  const auto below = make_pool(8 * kMiB);
  Pool pool("top", 64 * kMiB, true, below);
  Blocks blocks(pool);
  while (blocks.try_take({kMiB})) check_pool(pool);
  CHECK(blocks.charged() >= 7 * kMiB);
  CHECK(out_of_memory_error(pool, {kMiB}).cause == OutOfMemoryInfo::upstream_exhausted);
  blocks.clear();
  pool.trim(0);
  blocks.take({8 * kMiB});
  check_pool(pool);
}

// The resource below has no large blocks: each of the pool's is a segment, until there
// are no more segments.
TEST(a_pool_on_small_blocks) {
  class Small final : public SystemResource {
   public:
    Small() : SystemResource("small") {}
    void* allocate(const Request& request) override {
      if (request.size > most) throw out_of_memory({});
      return SystemResource::allocate(request);
    }
    Bytes most = 64 * kKiB;
  };
  const auto below = std::make_shared<Small>();
  Pool pool("top", 64 * kMiB, true, below);
  Blocks blocks(pool);
  while (blocks.try_take({64 * kKiB})) CHECK(blocks.count() < 1000);
  CHECK(blocks.count() > 100);
  CHECK(out_of_memory_error(pool, {64 * kKiB}).cause == OutOfMemoryInfo::no_addresses);
  check_pool(pool);
  while (blocks.count() > 10) blocks.give(blocks.count() / 2);
  CHECK(out_of_memory_error(pool, {65 * kKiB}).cause ==
        OutOfMemoryInfo::upstream_exhausted);
  CHECK(pool.stats().idle == 0 && below->stats().current == 640 * kKiB);
  below->most = kMiB;
  blocks.take({kMiB});
  check_pool(pool);
}

TEST(a_pool_that_does_not_grow_on_a_pool) {
  const auto below = make_pool(64 * kMiB);
  {
    Pool pool("top", 32 * kMiB, false, below);
    CHECK(below->stats().current == pool.stats().reserved);
    CHECK(pool.stats().reserved >= 32 * kMiB && grants(pool, {32 * kMiB}));
    CHECK_THROWS(out_of_memory, Pool("other", 40 * kMiB, false, below));
    check_pool(pool);
  }
  CHECK(below->stats().current == 0);
}

// Pages larger than the host's, as other machines have them.
TEST(pages_of_other_sizes) {
  for (const Bytes page : {16 * kKiB, 64 * kKiB, 2 * kMiB}) {
    const Faulty system(page);
    {
      const auto pool = make_pool(40 * kMiB + 64, system);
      std::mt19937 random(17);
      Blocks blocks(*pool);
      for (int step = 0; step < 1500; ++step) {
        if (blocks.count() > 0 && random() % 2 == 0) {
          blocks.give(random() % blocks.count());
        } else {
          blocks.try_take({1 + random() % (Bytes{1} << (6 + random() % 17))});
        }
        if (step % 50 == 0) check_layout(*pool);
        if (step % 50 == 0) check_pool(*pool);
      }
      CHECK(system.most <= 40 * kMiB + 64 + page &&
            system.open == pool->stats().reserved);
    }
    CHECK(system.has_all_back());
  }
}

// Pages enough, and the limit says yes: the pool does.
TEST(random_steps_agree_with_a_model) {
  for (const Bytes limit : {200 * Bytes{64}, 2 * kMiB, 64 * kMiB + 192}) {
    std::mt19937 random(7);
    const Faulty system;
    const auto pool = make_pool(limit, system);
    Blocks blocks(*pool);
    for (int step = 0; step < 3000; ++step) {
      if (blocks.count() > 0 && random() % 2 == 0) {
        blocks.give(random() % blocks.count());
      } else {
        const Bytes size = 1 + random() % (limit / (random() % 10 == 0 ? 3 : 40));
        const bool fits = blocks.charged() + align_up(size) <= limit;
        const bool granted =
            blocks.try_take({size, 64, static_cast<Lifetime>(random() % 3), "a"});
        CHECK(granted ? fits : !fits || pool->stats().largest_free < align_up(size));
      }
      if (step % 10 == 0) check_pool(*pool);
      CHECK(system.most <= limit + kPage);
    }
    blocks.clear();
    CHECK(pool->stats().current == 0 && pool->owners().empty());
  }
}
