// Where huge pages are asked for, and that they never cost more than is committed.
#include <sys/mman.h>

#include <algorithm>
#include <cstdio>
#include <memory>
#include <random>
#include <string>

#include "check.hpp"
#include "memcfg/huge_pages.hpp"
#include "pools.hpp"

using memcfg::Access;
using memcfg::HugePages;
using memcfg::kAlignment;
using memcfg::round_down;
using memcfg::round_up;
using namespace pools;

namespace {

constexpr Bytes kUnit = 2 * kMiB;
constexpr Bytes kPage = 4096;

// Addresses that nothing stands behind; remembers which units are advised, and where
// advice has ever begun or ended.
class Recorder final : public memcfg::System {
 public:
  static constexpr std::uintptr_t kFirst = std::uintptr_t{1} << 40;

  explicit Recorder(std::size_t units)
      : advised(units), cut(units + 1), size(units * kUnit) {}

  mutable std::vector<bool> advised;
  mutable std::vector<bool> cut;
  mutable bool refuses = false;
  mutable int calls = 0;
  const Bytes size;

  Bytes page_size() const noexcept override { return kPage; }
  Bytes memory_size() const noexcept override { return kGiB; }
  Bytes huge_page_size() const noexcept override { return kUnit; }
  bool advise_huge(void* address, Bytes bytes, bool wanted) const noexcept override {
    const Bytes from = number(address) - kFirst;
    if (calls++ == 0) return true;  // the whole segment, which is new
    if (from % kUnit != 0 || bytes % kUnit != 0 || from + bytes > size) std::abort();
    if (refuses) return false;
    for (Bytes unit = from / kUnit; unit < (from + bytes) / kUnit; ++unit) {
      advised[unit] = wanted;
    }
    cut[from / kUnit] = cut[(from + bytes) / kUnit] = true;
    return true;
  }
  std::size_t cuts() const {
    return static_cast<std::size_t>(std::count(cut.begin(), cut.end(), true));
  }

  void* reserve(Bytes, Access) const noexcept override { return nullptr; }
  bool commit(void*, Bytes, Access) const noexcept override { return false; }
  void decommit(void*, Bytes, Access) const noexcept override {}
  bool populate(void*, Bytes) const noexcept override { return false; }
  void release(void*, Bytes) const noexcept override {}
  void* map_metadata(Bytes bytes) const noexcept override {
    return memcfg::host_system().map_metadata(bytes);
  }
  void unmap_metadata(void* address, Bytes bytes) const noexcept override {
    memcfg::host_system().unmap_metadata(address, bytes);
  }
  void* reserve_metadata(Bytes) const noexcept override { return nullptr; }
  bool commit_metadata(void*, Bytes) const noexcept override { return false; }
  void* allocate(Bytes, Bytes) const noexcept override { return nullptr; }
  void deallocate(void*, Bytes) const noexcept override {}
};

// Bytes of [first, last) that are resident. Pre: whole pages.
Bytes resident(std::uintptr_t first, std::uintptr_t last) {
  if (first >= last) return 0;
  const Bytes page = memcfg::host_system().page_size();
  std::vector<unsigned char> pages((last - first) / page);
  CHECK(mincore(reinterpret_cast<void*>(first), last - first, pages.data()) == 0);
  return page * static_cast<Bytes>(std::count_if(
                    pages.begin(), pages.end(), [](auto each) { return each & 1; }));
}

// What the pool's addresses have resident, in bytes; no free chunk has more than it
// says.
Bytes resident(const Pool& pool) {
  const Bytes page = pool.system().page_size();
  Bytes sum = 0;
  std::uintptr_t end = 0;
  for (const HeapExtent& row : pool.layout()) {
    const std::uintptr_t first = round_up(row.address, page);
    const std::uintptr_t last = round_down(row.address + row.size, page);
    if (row.state == HeapExtent::free) CHECK(resident(first, last) <= row.committed);
    const std::uintptr_t begin = std::max(end, round_down(row.address, page));
    end = round_up(row.address + row.size, page);
    sum += resident(begin, end);
  }
  return sum;
}

std::size_t mappings() {
  std::FILE* const file = std::fopen("/proc/self/maps", "r");
  if (file == nullptr) return 0;
  std::size_t lines = 0;
  for (int each = std::fgetc(file); each != EOF; each = std::fgetc(file)) {
    lines += each == '\n' ? 1 : 0;
  }
  std::fclose(file);
  return lines;
}

void touch(void* address, Bytes size) {
  auto* const bytes = static_cast<volatile unsigned char*>(address);
  for (Bytes at = 0; at < size; at += kPage) bytes[at] = 1;
  bytes[size - 1] = 1;
}

}  // namespace

TEST(advice_agrees_with_a_model) {
  constexpr std::size_t kUnits = 200;
  const std::size_t before = HugePages::split_count();
  {
    const Recorder system(kUnits);
    const std::uintptr_t base = Recorder::kFirst + 5 * kPage;  // in unit 0
    HugePages pages(system, base, system.size - 9 * kPage);
    std::vector<bool> wanted(kUnits);
    std::mt19937 random(3);
    for (int step = 0; step < 20000; ++step) {
      const Bytes from = 5 * kPage + random() % (system.size - 14 * kPage);
      const Bytes most = std::min(system.size - 4 * kPage - from,
                                  random() % 2 == 0 ? 40 * kMiB : 5 * kMiB);
      const std::uintptr_t first = Recorder::kFirst + from;
      const std::uintptr_t last = first + 1 + random() % most;
      system.refuses = random() % 10 == 0;
      const int calls = system.calls;
      if (random() % 2 == 0) {
        pages.advise(first, last);
        const Bytes low = round_up(first - Recorder::kFirst, kUnit) / kUnit;
        const Bytes high = round_down(last - Recorder::kFirst, kUnit) / kUnit;
        bool news = false;
        for (Bytes unit = low; unit < high; ++unit) news = news || !wanted[unit];
        CHECK(system.calls == calls + (news ? 1 : 0));
        if (system.refuses) continue;
        for (Bytes unit = low; unit < high; ++unit) wanted[unit] = true;
      } else {
        pages.forgo(first, last, false);
        const Bytes low = (first - Recorder::kFirst) / kUnit;
        const Bytes high = round_up(last - Recorder::kFirst, kUnit) / kUnit;
        if (system.refuses) continue;
        for (Bytes unit = low; unit < high; ++unit) wanted[unit] = false;
      }
      CHECK(system.advised == wanted);
      if (step % 50 == 0) pages.check();
    }
    CHECK(HugePages::split_count() >= before + system.cuts());
    CHECK(HugePages::split_count() <= before + kUnits + 1);
  }
  CHECK(HugePages::split_count() == before);
}

TEST(cuts_are_bounded) {
  constexpr std::size_t kUnits = HugePages::kMaxSplits * 2;
  const std::size_t before = HugePages::split_count();
  {
    const Recorder system(kUnits);
    HugePages pages(system, Recorder::kFirst, system.size);
    const auto at = [](std::size_t unit) { return Recorder::kFirst + unit * kUnit; };
    pages.advise(at(0), at(1000));
    pages.forgo(at(500) + 1, at(500) + 2, false);
    for (std::size_t unit = 1001; unit + 1 < kUnits; unit += 2) {
      pages.advise(at(unit), at(unit + 1));
    }
    CHECK(HugePages::split_count() == HugePages::kMaxSplits);
    CHECK(!system.advised[kUnits - 3] && system.advised[1001]);
    pages.check();
    CHECK(system.advised[300] && !system.advised[500] && system.advised[700]);
    pages.forgo(
        at(300), at(301), false);  // there is no cut left: all up to the nearest
    for (std::size_t unit = 0; unit < 500; ++unit) CHECK(!system.advised[unit]);
    CHECK(!system.advised[500] && system.advised[501] && system.advised[999]);
    pages.forgo(at(700), at(702), false);
    for (std::size_t unit = 501; unit < 1000; ++unit) CHECK(!system.advised[unit]);
    pages.advise(at(500), at(1000));  // between cuts that are there
    CHECK(system.advised[500] && system.advised[999] && !system.advised[499]);
    pages.check();
    HugePages other(system, Recorder::kFirst, system.size);
    const int calls = system.calls;
    other.advise(at(10), at(20));
    CHECK(system.calls == calls);
  }
  CHECK(HugePages::split_count() == before);
}

TEST(what_was_forgone_for_good_is_not_advised_again) {
  const Recorder system(100);
  HugePages pages(system, Recorder::kFirst, system.size);
  const auto at = [](std::size_t unit) { return Recorder::kFirst + unit * kUnit; };
  pages.advise(at(10), at(30));
  pages.forgo(at(12), at(14), true);
  pages.forgo(at(20), at(22), false);
  pages.forgo(at(50), at(60), true);  // they had no advice to lose
  const int calls = system.calls;
  pages.advise(at(10), at(14));
  pages.advise(at(13), at(20));
  CHECK(system.calls == calls);
  pages.advise(at(14), at(60));
  CHECK(system.calls == calls + 1 && system.advised[20] && system.advised[59]);
  CHECK(!system.advised[12] && !system.advised[13]);
  pages.check();
}

TEST(a_system_without_huge_pages) {
  HugePages none;
  none.advise(0, kGiB);
  none.forgo(0, kGiB, true);
  none.check();
  CHECK(none.bytes() == 0);
}

TEST(large_blocks_are_advised) {
  const Faulty system;
  if (system.huge_page_size() != kUnit) return;
  const auto pool = make_pool(256 * kMiB, system);
  const auto units_of = [](void* block, Bytes size) {
    const std::uintptr_t first = round_up(number(block), kUnit);
    const std::uintptr_t last = round_down(number(block) + size, kUnit);
    return std::make_pair(reinterpret_cast<void*>(first), last - first);
  };
  void* const small = pool->allocate({4 * kMiB - 64});
  const int calls = system.hints;
  CHECK(calls == 1 && !system.is_huge(small, 64));  // the segment, against
  void* block = pool->allocate({24 * kMiB});
  CHECK(system.hints == calls + 1);
  const auto [first, size] = units_of(block, 24 * kMiB);
  CHECK(first == block && size == 24 * kMiB && system.is_huge(first, size));
  CHECK(!system.is_huge(first, 26 * kMiB));
  pool->deallocate(block, 24 * kMiB);
  block = pool->allocate({24 * kMiB});  // the same pages
  CHECK(system.hints == calls + 1 && system.is_huge(first, size));
  CHECK(pool->resize(block, 24 * kMiB, 10 * kMiB));
  CHECK(system.hints == calls + 1 && system.is_huge(first, size));
  CHECK(pool->trim(0) > 0);  // the tail
  CHECK(system.is_huge(first, 6 * kMiB) && !system.is_huge(first, 12 * kMiB));
  CHECK(pool->resize(block, 10 * kMiB, 50 * kMiB));
  const auto [whole, most] = units_of(block, 50 * kMiB);
  CHECK(system.is_huge(whole, most));
  pool->deallocate(block, 50 * kMiB);
  pool->deallocate(small, 4 * kMiB - 64);
  pool->trim(0);
  CHECK(!system.is_huge(first, kUnit));
}

// Where there is no memory yet, so that no unit is shared; but not at the price of a
// page that the limit does not have, nor of pages that are there.
TEST(large_blocks_lie_on_whole_units) {
  const Faulty system;
  if (system.huge_page_size() != kUnit) return;
  const auto pool = make_pool(64 * kMiB, system);
  for (const Lifetime lifetime : {Lifetime::unknown, Lifetime::short_lived}) {
    Blocks blocks(*pool);
    blocks.take({100});
    CHECK(number(blocks.take({5 * kMiB, 64, lifetime})) % kUnit == 0);
    CHECK(number(blocks.take({4 * kMiB, 64, lifetime})) % kUnit == 0);
    CHECK(number(blocks.take({9 * kMiB, kUnit * 2, lifetime})) % (kUnit * 2) == 0);
    check_layout(*pool);
    blocks.clear();
    pool->trim(0);
  }
  Blocks blocks(*pool);
  blocks.take({100});
  const Bytes most = pool->stats().largest_free;
  CHECK(most > 63 * kMiB);
  blocks.take({most});
  CHECK(number(blocks.address(1)) % kUnit != 0 && pool->stats().largest_free == 0);
  CHECK(system.most <= 64 * kMiB + kPage);
  blocks.give(1);
  const Bytes committed = pool->stats().reserved;
  blocks.take({6 * kMiB});  // in the same hole, which has memory
  CHECK(number(blocks.address(1)) % kUnit != 0);
  CHECK(pool->stats().reserved == committed);
}

// Advice that the system refuses is no failure.
TEST(advice_may_be_refused) {
  const Faulty system;
  const auto pool = make_pool(256 * kMiB, system);
  pool->deallocate(pool->allocate({64}), 64);
  const int calls = system.hints;
  system.once = true;
  system.calls_left = 1;  // the pages, then the advice
  void* const block = pool->allocate({24 * kMiB});
  CHECK(system.hints == calls + 1 && system.calls_left < 0);
  touch(block, 24 * kMiB);
  pool->deallocate(block, 24 * kMiB);
  CHECK(pool->trim(0) > 0 && system.hints == calls + 1);  // nothing to take back
  system.calls_left = Faulty::kMany;
  check_pool(*pool);
}

// Blocks of all sizes come, are written all over, change their size and go; now and
// then memory goes back. `Faulty` ends the program if a huge unit loses a page.
TEST(resident_is_never_more_than_committed) {
  const Faulty system;
  {
    const auto pool = make_pool(192 * kMiB, system);
    struct Row {
      void* address;
      Bytes size;
    };
    std::vector<Row> rows;
    std::mt19937 random(5);
    const auto any_size = [&] {
      if (random() % 3 == 0) return 1 + random() % (100 * kKiB);
      return 1 + random() % (random() % 3 == 0 ? 30 * kMiB : 7 * kMiB);
    };
    for (int step = 0; step < 1500; ++step) {
      const std::size_t pick = rows.empty() ? 0 : random() % rows.size();
      const auto kind = random() % 16;
      if (rows.empty() || (kind < 7 && rows.size() < 60)) {
        const Row row{nullptr, any_size()};
        try {
          rows.push_back({pool->allocate({row.size}), row.size});
          touch(rows.back().address, row.size);
        } catch (const out_of_memory&) {
          pool->deallocate(rows[pick].address, rows[pick].size);
          rows[pick] = rows.back();
          rows.pop_back();
        }
      } else if (kind < 12) {
        pool->deallocate(rows[pick].address, rows[pick].size);
        rows[pick] = rows.back();
        rows.pop_back();
      } else if (kind < 14) {
        const Bytes now = any_size();
        if (pool->resize(rows[pick].address, rows[pick].size, now)) {
          rows[pick].size = now;
          touch(rows[pick].address, now);
        }
      } else if (kind == 14) {
        const Bytes idle = pool->stats().idle;
        pool->trim(idle == 0 ? 0 : random() % idle);
      } else {
        for (const Row& row : rows) touch(row.address, row.size);
      }
      if (step % 5 != 0) continue;
      check_pool(*pool);
      CHECK(resident(*pool) <= pool->stats().reserved);
    }
    for (const Row& row : rows) pool->deallocate(row.address, row.size);
    pool->trim(0);
    CHECK(resident(*pool) == 0 && pool->stats().reserved == 0);
  }
  CHECK(system.has_all_back());
}

// As where the machine uses huge pages without being asked.
TEST(small_blocks_are_not_huge) {
  const Faulty system;
  system.eager = true;
  const auto pool = make_pool(kNoLimit, system);
  std::vector<std::pair<void*, Bytes>> blocks;
  std::mt19937 random(2);
  for (int step = 0; step < 200; ++step) {
    const Bytes size = 1 + random() % (random() % 10 == 0 ? kMiB : 10 * kKiB);
    const Request request{size, kAlignment, static_cast<Lifetime>(random() % 3)};
    blocks.emplace_back(pool->allocate(request), size);
    touch(blocks.back().first, size);
  }
  CHECK(resident(*pool) > 0 && resident(*pool) <= pool->stats().reserved);
  for (const auto& [address, size] : blocks) pool->deallocate(address, size);
  pool->trim(0);
  CHECK(resident(*pool) == 0);
}

// The same as the process sees it. One page of each unit stays, and is written again.
TEST(what_is_left_of_a_huge_page_is_small) {
  const auto pool = make_pool(kNoLimit);
  std::vector<void*> pages;
  const Bytes size = 64 * kMiB;
  void* block = pool->allocate({size, kUnit});
  touch(block, size);
  CHECK(resident(*pool) >= size);
  pool->deallocate(block, size);
  pool->trim(0);
  CHECK(resident(*pool) == 0);
  for (int i = 0; i < 32; ++i) {  // where huge pages were
    pages.push_back(pool->allocate({80 * kKiB, kUnit}));
    touch(pages.back(), 80 * kKiB);
  }
  CHECK(pool->stats().reserved == 32 * 80 * kKiB);
  CHECK(resident(*pool) == 32 * 80 * kKiB);
  std::vector<void*> blocks;
  for (int i = 0; i < 8; ++i) {  // and will be between them
    blocks.push_back(pool->allocate({7 * kMiB}));
    touch(blocks.back(), 7 * kMiB);
  }
  CHECK(resident(*pool) <= pool->stats().reserved);
  for (void* each : blocks) CHECK(pool->resize(each, 7 * kMiB, 100 * kKiB));
  pool->trim(0);
  CHECK(resident(*pool) <= pool->stats().reserved);
  for (void* each : blocks) touch(each, 100 * kKiB);
  for (void* each : pages) touch(each, 80 * kKiB);
  CHECK(pool->stats().reserved <= 32 * 80 * kKiB + 8 * 104 * kKiB);
  CHECK(resident(*pool) <= pool->stats().reserved);
  for (void* each : blocks) pool->deallocate(each, 100 * kKiB);
  for (void* each : pages) pool->deallocate(each, 80 * kKiB);
}

// Each cut costs a mapping at most, whatever is advised, touched and given back.
TEST(mappings_are_bounded) {
  const std::size_t cuts = HugePages::split_count();
  const auto pool = make_pool(kNoLimit);
  void* const first = pool->allocate({64});
  const std::size_t before = mappings();
  std::vector<void*> blocks(40);
  for (int round = 0; round < 20; ++round) {
    const Bytes size = 4 * kMiB + static_cast<Bytes>(round % 4) * kMiB;
    for (void*& block : blocks) {
      block = pool->allocate({size});
      for (Bytes at = 0; at < size; at += kUnit) static_cast<char*>(block)[at] = 1;
    }
    for (std::size_t i = 0; i < blocks.size(); i += 2) {
      pool->deallocate(blocks[i], size);
    }
    pool->trim(0);
    CHECK(mappings() <= before + HugePages::split_count() - cuts + 40);
    for (std::size_t i = 1; i < blocks.size(); i += 2) {
      pool->deallocate(blocks[i], size);
    }
    pool->trim(0);
  }
  CHECK(HugePages::split_count() - cuts <= 40 * 4 + 2);  // as many as units
  pool->deallocate(first, 64);
}
