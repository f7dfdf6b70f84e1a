#include <algorithm>
#include <cstdint>
#include <memory>
#include <random>
#include <set>
#include <vector>

#include "check.hpp"
#include "memcfg/heap.hpp"
#include "memcfg/pool.hpp"
#include "memcfg/system_resource.hpp"
#include "systems.hpp"

using memcfg::align_up;
using memcfg::AllocationFailed;
using memcfg::Bytes;
using memcfg::Chunk;
using memcfg::ChunkId;
using memcfg::Heap;
using memcfg::HeapExtent;
using memcfg::kAlignment;
using memcfg::kNoLimit;
using memcfg::Lifetime;
using memcfg::OutOfMemoryInfo;

namespace {

constexpr Bytes kKiB = Bytes{1} << 10;
constexpr Bytes kMiB = Bytes{1} << 20;
const Bytes kPage = memcfg::host_system().page_size();

// Who holds which addresses; not what stands behind them.
std::vector<std::pair<std::uintptr_t, Bytes>> places(const Heap& heap) {
  std::vector<std::pair<std::uintptr_t, Bytes>> rows;
  for (const HeapExtent& row : heap.layout()) rows.emplace_back(row.address, row.size);
  return rows;
}

// A heap with the blocks that a test has taken from it.
class Model {
 public:
  explicit Model(const memcfg::System& system) : heap(system) {}

  ChunkId take(Bytes size, Bytes alignment = kAlignment, Lifetime lifetime = {}) {
    const ChunkId id = heap.allocate(size, alignment, lifetime).id;
    ids.push_back(id);
    const std::uintptr_t address = heap[id].address;
    CHECK(heap[id].size == size && address % alignment == 0);
    CHECK(heap.find(reinterpret_cast<void*>(address)) == id);
    taken += size;
    return id;
  }
  bool try_take(Bytes size, Bytes alignment = kAlignment, Lifetime lifetime = {}) {
    const auto before = places(heap);
    try {
      take(size, alignment, lifetime);
      return true;
    } catch (const AllocationFailed&) {
    }
    // A segment may have come in which nothing is.
    for (const auto& row : before) {
      const auto after = places(heap);
      CHECK(std::find(after.begin(), after.end(), row) != after.end());
    }
    return false;
  }

  void give(std::size_t index) {
    const ChunkId id = ids[index];
    void* const address = reinterpret_cast<void*>(heap[id].address.load());
    taken -= heap[id].size;
    heap.release(heap[id]);
    CHECK(heap.find(address) == 0);
    ids[index] = ids.back();
    ids.pop_back();
  }
  // False: it stays as it was.
  bool resize(std::size_t index, Bytes size) {
    Chunk& chunk = heap[ids[index]];
    const Bytes before = chunk.size;
    const std::uintptr_t address = chunk.address;
    bool done = size == before;
    try {
      if (size < before) done = heap.shrink(chunk, size);
      if (size > before) done = heap.extend(chunk, size);
    } catch (const AllocationFailed&) {
    }
    CHECK(chunk.address == address && chunk.size == (done ? size : before));
    CHECK(heap.find(reinterpret_cast<void*>(address)) == ids[index]);
    taken += chunk.size - before;
    return done;
  }
  void clear() {
    while (!ids.empty()) give(ids.size() - 1);
  }

  void compare() const {
    heap.check();
    CHECK(heap.allocated() == taken);
    std::set<std::uintptr_t> starts;
    for (const ChunkId id : ids) starts.insert(heap[id].address);
    CHECK(starts.size() == ids.size());
    Bytes holes = 0;
    Bytes largest = 0;
    for (const HeapExtent& row : heap.layout()) {
      CHECK((row.state != HeapExtent::free) == (starts.count(row.address) == 1));
      if (row.state != HeapExtent::free) continue;
      holes += row.committed;
      largest = std::max(largest, row.committed);
    }
    CHECK(heap.spare() == holes && heap.largest_spare() == largest);
    CHECK(heap.idle() <= holes && heap.committed() <= heap.ceiling());
    compare_pieces();
  }

  // Pieces with memory make up whole pages, as many as are committed, and the pieces of
  // each stretch make it up.
  void compare_pieces() const {
    const auto pieces = heap.layout({}, true);
    auto piece = pieces.begin();
    Bytes memory = 0;
    std::uintptr_t end = 0;  // of the memory so far
    for (const HeapExtent& row : heap.layout()) {
      Bytes committed = 0;
      std::uintptr_t place = row.address;
      for (; piece != pieces.end() && place < row.address + row.size; ++piece) {
        CHECK(piece->address == place && piece->state == row.state);
        CHECK(piece->committed == piece->size || piece->committed == 0);
        CHECK(piece->tag == row.tag && piece->requested == row.requested);
        place += piece->size;
        committed += piece->committed;
        if (piece->committed == 0) continue;
        if (piece->address != end)
          CHECK(end % kPage == 0 && piece->address % kPage == 0);
        end = place;
      }
      CHECK(place == row.address + row.size && committed == row.committed);
      memory += committed;
    }
    CHECK(piece == pieces.end() && end % kPage == 0 && memory == heap.committed());
  }

  Heap heap;
  std::vector<ChunkId> ids;
  Bytes taken = 0;
};

Bytes random_size(std::mt19937& random, int bits) {
  return align_up(1 + random() % (Bytes{1} << (6 + random() % bits)));
}

void random_step(Model& model,
                 std::mt19937& random,
                 int bits = 15,
                 bool resizes = true) {
  if (resizes && !model.ids.empty() && random() % 4 == 0) {
    try {
      model.resize(random() % model.ids.size(), random_size(random, bits));
    } catch (const std::bad_alloc&) {
    }
  } else if (!model.ids.empty() && random() % 2 == 0) {
    model.give(random() % model.ids.size());
  } else {
    const Bytes alignment =
        random() % 8 == 0 ? kAlignment << random() % 12 : kAlignment;
    try {
      model.try_take(
          random_size(random, bits), alignment, static_cast<Lifetime>(random() % 3));
    } catch (const std::bad_alloc&) {  // no memory for the metadata
    }
  }
}

struct Budget final : memcfg::PageBudget {
  Bytes most = kNoLimit;  // bytes that may be reserved
  Bytes reserved = 0;
  bool reserve(Bytes more) noexcept override {
    if (reserved > most || more > most - reserved) return false;
    reserved += more;
    return true;
  }
  void release(Bytes size) noexcept override { reserved -= size; }
};

}  // namespace

TEST(random_blocks_are_where_they_belong) {
  for (const Bytes page : {kPage, 64 * kKiB}) {
    const Faulty system(page);
    {
      std::mt19937 random(1);
      Model model(system);
      for (int step = 0; step < 6000; ++step) {
        random_step(model, random);
        if (step % 40 == 0) model.compare();
        if (step % 500 == 0) model.heap.decommit_free(random() % (4 * kMiB));
        CHECK(system.open == model.heap.committed());
        CHECK(system.reserved == model.heap.addresses());
      }
      model.clear();
      model.compare();
      model.heap.decommit_free(kNoLimit);
      CHECK(model.heap.committed() == 0 && system.open == 0);
    }
    CHECK(system.has_all_back());
  }
}

// A large block begins at a huge page, unless that takes a page too many.
TEST(whole_units_are_no_reason_to_refuse) {
  const Faulty system;
  Model model(system);
  model.take(64);
  const Bytes size = 10 * kMiB - 64;
  model.heap.set_ceiling(10 * kMiB);
  model.take(size);
  CHECK(model.heap.committed() == 10 * kMiB);
  model.compare();
  model.give(1);
  model.heap.decommit_free(kNoLimit);
  model.heap.set_ceiling(10 * kMiB + kPage);
  const ChunkId id = model.take(size);
  const Bytes unit = system.huge_page_size();
  if (unit == 2 * kMiB) CHECK(model.heap[id].address % unit == 0);
  model.compare();
}

// The stretch below a block that could not be committed ends in a page without memory.
TEST(a_refused_commit_leaves_no_page_behind) {
  const Faulty system;
  Model model(system);
  model.take(align_up(3 * kPage / 4));
  const Bytes rest = model.heap.addresses() - model.taken - kPage / 2;
  system.calls_left = 0;
  CHECK(!model.try_take(rest, kAlignment, Lifetime::short_lived));
  system.calls_left = Faulty::kMany;
  model.take(kPage / 2);
  model.compare();
}

// Two free chunks with a block between them: the upper one loses its pages before they
// join.
TEST(a_free_chunk_knows_of_its_own_pages_only) {
  const Faulty system;
  Model model(system);
  model.take(64);
  model.take(4 * kMiB);
  model.give(1);
  model.take(64, kMiB);
  model.take(64);  // in the lower hole, which is the younger one now
  model.heap.decommit_free(2 * kMiB);
  model.give(1);
  model.compare();
  model.take(2 * kMiB);
  model.compare();
}

// What a free chunk says of its pages stays true, whoever takes and gives them when,
// and whether the system has them or not.
TEST(pages_come_and_go_all_the_time) {
  for (const int bits : {6, 10, 13, 16}) {
    for (const bool refuses : {false, true}) {
      const Faulty system(16 * kKiB);
      std::mt19937 random(9);
      Model model(system);
      for (int step = 0; step < 2000; ++step) {
        if (refuses) system.calls_left = static_cast<int>(random() % 6);
        random_step(model, random, bits);
        system.calls_left = Faulty::kMany;
        if (random() % 4 == 0) model.heap.decommit_free(random() % (kMiB / 4));
        if (random() % 16 == 0) model.heap.decommit_old();
        if (random() % 64 == 0) model.clear();
        model.heap.check();
        if (step % 40 == 0) model.compare();
      }
    }
  }
}

// Against a search of all free chunks. A large block may go to a larger one with
// memory.
TEST(the_best_free_chunk_is_taken) {
  const Faulty system;
  std::mt19937 random(2);
  Model model(system);
  for (int step = 0; step < 3000; ++step) {
    if (!model.ids.empty() && random() % 2 == 0) {
      model.give(random() % model.ids.size());
      continue;
    }
    const Bytes size = random_size(random, 15);
    const auto before = model.heap.layout();
    const std::uintptr_t address = model.heap[model.take(size)].address;
    Bytes best = kNoLimit;
    const HeapExtent* got = nullptr;
    for (const HeapExtent& row : before) {
      if (row.state != HeapExtent::free) continue;
      if (row.size >= size) best = std::min(best, row.size);
      if (row.address <= address && address < row.address + row.size) got = &row;
    }
    if (best == kNoLimit) continue;  // there are fresh addresses
    CHECK(got != nullptr && got->address == address);
    if (got->size == best) continue;
    CHECK(size > 64 * kKiB && got->committed + 2 * kPage > got->size);
  }
}

TEST(lifetimes_choose_an_end_of_the_free_chunk) {
  const Faulty system;
  Model model(system);
  const auto at = [&](Lifetime lifetime, Bytes alignment = kAlignment) {
    return model.heap[model.take(100 * kKiB, alignment, lifetime)].address.load();
  };
  const auto low = at(Lifetime::long_lived);
  const auto high = at(Lifetime::short_lived);
  const auto segment = model.heap.layout().front();
  CHECK(low == segment.address);
  CHECK(high + 100 * kKiB == low + model.heap.addresses());
  CHECK(at(Lifetime::long_lived, kMiB) < low + 2 * kMiB);
  CHECK(at(Lifetime::short_lived, kMiB) > high - 2 * kMiB);
  model.compare();
}

TEST(large_alignments) {
  const Faulty system;
  Model model(system);
  for (Bytes alignment = kAlignment; alignment <= Bytes{1} << 30; alignment *= 2) {
    for (const Lifetime lifetime : {Lifetime::long_lived, Lifetime::short_lived}) {
      model.take(kAlignment, alignment, lifetime);
      model.take(align_up(alignment + 1) % (3 * kMiB) + 64, alignment, lifetime);
    }
    model.compare();
  }
}

// Blocks of one line: each span of addresses gets a table, and gives it back.
TEST(tables_come_and_go) {
  const Faulty system;
  Bytes most = 0;
  Model model(system);
  for (int round = 0; round < 4; ++round) {
    std::mt19937 random(3);
    for (int i = 0; i < 20000; ++i) model.take(kAlignment);
    while (model.ids.size() > 10) model.give(random() % model.ids.size());
    model.compare();
    if (round == 0) most = model.heap.metadata();
    CHECK(model.heap.metadata() == most);
    model.clear();
  }
}

TEST(the_ceiling_holds) {
  for (const Bytes page : {kPage, 64 * kKiB}) {
    for (const Bytes ceiling : {page, 3 * page, 2 * kMiB, 16 * kMiB + page}) {
      const Faulty system(page);
      std::mt19937 random(4);
      Model model(system);
      model.heap.set_ceiling(ceiling);
      for (int step = 0; step < 3000; ++step) {
        random_step(model, random);
        CHECK(system.open <= ceiling && system.most <= ceiling);
        if (step % 40 == 0) model.compare();
      }
      model.clear();
      model.take(ceiling);
      CHECK(!model.try_take(kAlignment));
    }
  }
}

// The pages of all free chunks pay for one block, which takes fresh addresses.
TEST(free_chunks_pay_for_what_fits_none_of_them) {
  const Faulty system;
  Model model(system);
  model.heap.set_ceiling(4 * kMiB);
  for (int i = 0; i < 64; ++i) model.take(64 * kKiB);
  CHECK(!model.try_take(kAlignment));
  for (std::size_t i = 0; i < 32; ++i) model.give(i);
  CHECK(model.heap.largest_request(kNoLimit, kNoLimit) == 2 * kMiB);
  model.take(2 * kMiB);
  CHECK(!model.try_take(kAlignment) && system.open == 4 * kMiB);
  model.compare();
}

// Each run of pages is a call of the system, for which the request waits.
TEST(a_few_long_runs_of_pages_pay_before_many_short_ones) {
  const Faulty system;
  memcfg::Heap heap(system);
  const auto take = [&](Bytes size) {
    return heap.allocate(size, kAlignment, Lifetime::unknown).id;
  };
  std::vector<ChunkId> ids;
  for (int i = 0; i < 64; ++i) {
    ids.push_back(take(16 * kKiB));
    take(16 * kKiB);
  }
  for (int i = 0; i < 4; ++i) {
    ids.push_back(take(4 * kMiB));
    take(16 * kKiB);
  }
  for (const ChunkId id : ids) heap.release(heap[id]);  // the short ones are older
  take(5 * kMiB);
  CHECK(system.decommits > 0 && system.decommits <= 4);
  heap.check();
}

TEST(so_much_is_given_back) {
  const Faulty system;
  std::mt19937 random(5);
  Model model(system);
  for (int step = 0; step < 4000; ++step) {
    random_step(model, random);
    if (step % 20 != 0) continue;
    const Bytes idle = model.heap.idle();
    const Bytes wanted = random() % 4 == 0 ? idle : random() % (idle + kPage);
    const Bytes given = model.heap.decommit_free(wanted);
    CHECK(given >= std::min(wanted, idle) && given < wanted + kPage);
    CHECK(model.heap.idle() == idle - given);
    CHECK(system.open == model.heap.committed());
    model.compare();
  }
}

TEST(each_page_is_reserved_while_it_is_committed) {
  const Faulty system;
  std::mt19937 random(6);
  Budget budget;
  Model model(system);
  budget.most = 4 * kMiB;
  model.heap.set_budget(&budget);
  for (int step = 0; step < 3000; ++step) {
    if (step % 3 == 0) system.calls_left = static_cast<int>(random() % 6);
    random_step(model, random);
    system.calls_left = Faulty::kMany;
    CHECK(system.most <= 4 * kMiB);
    CHECK(budget.reserved == model.heap.committed());
    if (step % 50 == 0) model.compare();
  }
  model.clear();
  model.take(4 * kMiB);
  try {
    model.take(kAlignment);
    CHECK(false);
  } catch (const AllocationFailed& refused) {
    CHECK(refused.cause == OutOfMemoryInfo::rss_limit);
  }
  budget.most = 5 * kMiB;
  model.take(kAlignment);
  model.compare();
}

TEST(a_heap_that_goes_releases_its_pages) {
  const Faulty system;
  Budget budget;
  {
    Model model(system);
    model.heap.set_budget(&budget);
    model.take(kMiB);
    CHECK(budget.reserved >= kMiB);
  }
  CHECK(budget.reserved == 0);
}

TEST(what_is_filled_stays) {
  const Faulty system;
  {
    Model model(system);
    model.heap.set_ceiling(8 * kMiB + kPage);
    model.heap.fill(8 * kMiB);
    CHECK(model.heap.committed() == 8 * kMiB && model.heap.idle() == 8 * kMiB);
    model.compare();
    std::mt19937 random(7);
    for (int step = 0; step < 2000; ++step) random_step(model, random, 15, false);
    model.clear();
    CHECK(model.heap.committed() >= 7 * kMiB);
    model.compare();
  }
  CHECK(system.has_all_back());
  for (int grants = 0;; ++grants) {
    system.calls_left = grants;
    try {
      Heap heap(system);
      try {
        heap.fill(8 * kMiB);
        break;
      } catch (const AllocationFailed&) {
        CHECK(heap.committed() == 0 && heap.allocated() == 0);
        heap.check();
      }
    } catch (const std::bad_alloc&) {
    }
    CHECK(system.has_all_back() && grants < 20);
  }
}

TEST(requests_that_no_address_space_has) {
  const Faulty system;
  Model model(system);
  model.take(kMiB);
  for (const Bytes size : {kNoLimit / 64 * 64, kNoLimit / 128 * 64, Bytes{1} << 60}) {
    for (const Bytes alignment : {kAlignment, kMiB, Bytes{1} << 63}) {
      CHECK(!model.try_take(size, alignment));
    }
  }
  CHECK(!model.try_take(kAlignment, Bytes{1} << 63));
  model.compare();
}

// Where addresses and memory come together: segments come and go, slots are used again.
TEST(segments_of_whole_blocks) {
  const Faulty system;
  {
    const auto below = std::make_shared<memcfg::SystemResource>(
        "d", std::shared_ptr<const memcfg::System>(std::shared_ptr<void>(), &system));
    const memcfg::BlockSystem blocks(below);
    std::mt19937 random(8);
    Model model(blocks);
    model.heap.set_ceiling(40 * kMiB);
    for (int step = 0; step < 4000; ++step) {
      random_step(model, random, 17);
      if (step % 100 != 0) continue;
      if (step % 200 == 0) model.clear();
      model.heap.decommit_free(kNoLimit);
      model.compare();
      CHECK(below->stats().current == model.heap.committed());
      CHECK(model.heap.addresses() == model.heap.committed());
    }
    model.clear();
    model.heap.decommit_free(kNoLimit);
    CHECK(model.heap.committed() == 0 && below->stats().current == 0);
    for (int round = 0; round < 300; ++round) {  // more than there are slots
      model.take(3 * kMiB);
      model.take(30 * kMiB);
      model.clear();
      model.heap.decommit_free(kNoLimit);
    }
    model.compare();
  }
  CHECK(system.has_all_back());
}

// Where the system refuses at the n-th call, the heap is as it was.
TEST(the_system_may_refuse_at_any_call) {
  for (const bool once : {false, true}) {
    const Faulty system;
    int refused = 1;
    for (int grants = 0; refused > 0; ++grants) {
      refused = 0;
      try {
        system.once = once;
        system.calls_left = grants;
        Model model(system);
        const auto attempt = [&](Bytes size, Bytes alignment, Lifetime lifetime) {
          try {
            refused += model.try_take(size, alignment, lifetime) ? 0 : 1;
          } catch (const std::bad_alloc&) {
            ++refused;
          }
          model.compare();
        };
        attempt(100 * 64, kAlignment, Lifetime::unknown);
        for (int i = 0; i < 40; ++i) attempt(kAlignment, kAlignment, Lifetime::unknown);
        attempt(3 * kMiB, 2 * kMiB, Lifetime::short_lived);
        attempt(100 * kMiB, kAlignment, Lifetime::long_lived);  // a second segment
        while (model.ids.size() > 1) model.give(model.ids.size() / 2);
        model.compare();
        attempt(2 * kMiB, 64 * kKiB, Lifetime::unknown);
        model.heap.set_ceiling(std::max(10 * kMiB, model.heap.committed()));
        attempt(9 * kMiB, kAlignment, Lifetime::unknown);
        model.clear();
        model.compare();
      } catch (const std::bad_alloc&) {
        ++refused;
      }
      CHECK(system.has_all_back() && grants < 200);
    }
  }
}
