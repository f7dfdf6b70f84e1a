#include <atomic>
#include <cstring>
#include <map>
#include <memory>
#include <random>
#include <vector>

#include "check.hpp"
#include "conformance.hpp"
#include "failing_new.hpp"
#include "memcfg/pool.hpp"
#include "memcfg/workspace.hpp"
#include "systems.hpp"
#include "threading.hpp"

using conformance::kMiB;
using memcfg::align_up;
using memcfg::Bytes;
using memcfg::kNoLimit;
using memcfg::OutOfMemoryInfo;
using memcfg::Pool;
using memcfg::Resource;
using memcfg::Workspace;
using memcfg::WorkspaceRules;
using Kind = Workspace::Kind;

namespace {

std::shared_ptr<Pool> pool_of(const Faulty& system, Bytes limit = kNoLimit) {
  return std::make_shared<Pool>("d", limit, system);
}

WorkspaceRules rules_of(Bytes initial = 0) {
  WorkspaceRules rules;
  rules.name = "w";
  rules.initial = initial;
  return rules;
}

WorkspaceRules ring_of(Bytes initial, Bytes blocks = 1) {
  WorkspaceRules rules = rules_of(initial);
  rules.circular = true;
  rules.ring_blocks = blocks;
  return rules;
}

WorkspaceRules with(WorkspaceRules rules, bool WorkspaceRules::* flag) {
  rules.*flag = true;
  return rules;
}

std::shared_ptr<Workspace> make(const std::shared_ptr<Resource>& upstream,
                                const WorkspaceRules& rules) {
  return std::make_shared<Workspace>(upstream, upstream, rules);
}

Kind kind_of(const Workspace& workspace, const void* address) {
  const auto place = workspace.find_block(address, 0);
  CHECK(place.has_value());
  return place->kind;
}

// What every resource promises, but for tags: all is recorded under the workspace's
// name.
void conforms(Resource& resource) {
  conformance::blocks_are_aligned(resource);
  conformance::requests_that_are_none(resource);
  conformance::huge_requests_are_refused(resource);
  conformance::bad_frees_change_nothing(resource);
  conformance::bad_resizes_change_nothing(resource);
  conformance::zeroed_blocks_are_zero(resource);
  conformance::threads_share_it(resource);
}

}  // namespace

TEST(open_or_not_it_is_a_resource) {
  const std::vector<WorkspaceRules> all = {
      rules_of(),
      rules_of(8 * kMiB),
      ring_of(4 * kMiB),
      with(rules_of(8 * kMiB), &WorkspaceRules::reclaims),
      with(rules_of(8 * kMiB), &WorkspaceRules::overwrites)};
  for (const WorkspaceRules& rules : all) {
    for (const bool open : {false, true}) {
      const Faulty system;
      {
        const auto workspace = make(pool_of(system), rules);
        if (open) CHECK(workspace->open());
        conforms(*workspace);
        workspace->close();
        workspace->check();
        CHECK(workspace->owners().empty());
      }
      CHECK(system.has_all_back());
    }
  }
}

TEST(rules_that_are_none) {
  const Faulty system;
  const auto pool = pool_of(system);
  WorkspaceRules rules = rules_of(100);
  rules.maximum = 64;
  CHECK_THROWS(std::invalid_argument, make(pool, rules));
  rules = rules_of();
  rules.overallocation = -0.1;
  CHECK_THROWS(std::invalid_argument, make(pool, rules));
  rules.overallocation = 0;
  rules.ring_blocks = 2;
  CHECK_THROWS(std::invalid_argument, make(pool, rules));
  rules = with(ring_of(0), &WorkspaceRules::reclaims);
  CHECK_THROWS(std::invalid_argument, make(pool, rules));
  CHECK(pool->stats().current == 0);
}

TEST(the_first_cycle_teaches_the_size) {
  const Faulty system;
  const auto pool = pool_of(system);
  const auto workspace = make(pool, rules_of());
  for (int cycle = 0; cycle < 3; ++cycle) {
    CHECK(workspace->open());
    void* const block = workspace->allocate({1000});
    CHECK(kind_of(*workspace, block) == (cycle == 0 ? Kind::spilled : Kind::page));
    CHECK(pool->stats().current == 1024);
    CHECK(workspace->release(block));
    CHECK(workspace->close().escaped == 0);
    CHECK(workspace->numbers().size == 1024);
    CHECK(pool->stats().current == (cycle == 0 ? 0 : 1024));
  }
  workspace->destroy();
  CHECK(pool->stats().current == 0 && workspace->numbers().size == 0);
}

TEST(a_cycle_asks_the_pool_for_nothing) {
  const Faulty system;
  const auto pool = pool_of(system);
  const auto workspace = make(pool, rules_of(kMiB));
  const auto cycle = [&] {
    workspace->open();
    for (const Bytes size : {1000, 20000, 300000}) {
      CHECK(workspace->release(workspace->allocate({size})));
    }
    workspace->close();
  };
  cycle();
  const auto before = pool->stats().allocations;
  for (int i = 0; i < 1000; ++i) {
    const failing_new::After none(0);  // nor the heap
    cycle();
  }
  CHECK(pool->stats().allocations == before);
}

TEST(a_page_with_live_blocks_is_theirs) {
  const Faulty system;
  const auto pool = pool_of(system);
  const auto workspace = make(pool, rules_of(64 * 1024));
  workspace->open();
  auto* const kept = static_cast<unsigned char*>(workspace->allocate({100}));
  std::memset(kept, 7, 100);
  CHECK(workspace->close().escaped == 1);
  CHECK(kind_of(*workspace, kept) == Kind::retired);
  CHECK(workspace->numbers().retired == 65536);
  for (int cycle = 0; cycle < 3; ++cycle) {
    workspace->open();
    void* const block = workspace->allocate({60000});
    std::memset(block, 9, 60000);
    CHECK(workspace->release(block));
    workspace->close();
    workspace->check();
    // The second page, and the first: it has been cut behind its last block.
    CHECK(pool->stats().current == 65536 + 128);
    CHECK(workspace->numbers().retired == 128);
  }
  for (int i = 0; i < 100; ++i) CHECK(kept[i] == 7);
  CHECK(workspace->release(kept) && !workspace->release(kept));
  CHECK(pool->stats().current == 65536);
  CHECK(workspace->numbers().escaped == 1);
}

// As a variable of a loop does: the last cycle's block goes in the middle of the next.
TEST(two_pages_are_enough_for_a_block_that_lives_a_cycle_too_long) {
  const Faulty system;
  const auto pool = pool_of(system);
  const auto workspace = make(pool, rules_of(64 * 1024));
  void* kept = nullptr;
  for (int cycle = 0; cycle < 100; ++cycle) {
    workspace->open();
    void* const block = workspace->allocate({60000});
    if (kept != nullptr) CHECK(workspace->release(kept));
    kept = block;
    workspace->close();
    workspace->check();
  }
  CHECK(pool->stats().allocations == 2);
  CHECK(workspace->release(kept));
  CHECK(workspace->trim(0) == 65536 && pool->stats().current == 0);
}

TEST(memory_that_is_overwritten_stays_until_the_last_block_goes) {
  const Faulty system;
  const auto pool = pool_of(system);
  const auto workspace = make(pool, with(rules_of(4096), &WorkspaceRules::overwrites));
  workspace->open();
  void* const old = workspace->allocate_of({100}, 1);
  const auto generation = workspace->generation();
  CHECK(workspace->close().escaped == 1);
  CHECK(workspace->find_block(old, generation)->kind == Kind::overwritten);
  workspace->open();
  void* const fresh = workspace->allocate_of({200}, 2);
  CHECK(fresh == old);
  CHECK(workspace->find_block(fresh, generation + 1)->kind == Kind::page);
  CHECK(workspace->find_block(old, generation)->kind == Kind::overwritten);
  CHECK(workspace->stats().current == 256 && workspace->numbers().live == 2);
  CHECK(workspace->release_of(old, generation));
  CHECK(!workspace->release_of(old, generation));
  CHECK(workspace->find_block(fresh, generation + 1)->kind == Kind::page);
  workspace->close();
  workspace->destroy();
  CHECK(pool->stats().current == 4096);  // its last block is alive
  CHECK(workspace->release_of(fresh, generation + 1));
  CHECK(pool->stats().current == 0);
}

// Only what knows its generation comes into memory that is overwritten.
TEST(a_block_of_no_generation_is_not_overwritten) {
  const Faulty system;
  const auto workspace =
      make(pool_of(system), with(rules_of(4096), &WorkspaceRules::overwrites));
  workspace->open();
  CHECK(kind_of(*workspace, workspace->allocate({100})) == Kind::outside);
  CHECK(kind_of(*workspace, workspace->allocate_of({100}, 9)) == Kind::outside);
  CHECK(kind_of(*workspace, workspace->allocate_of({100}, 1)) == Kind::page);
  for (const auto& block : workspace->blocks()) {
    auto* const address = reinterpret_cast<void*>(block.address);
    CHECK(workspace->release(address));
  }
}

TEST(a_cycle_of_before_is_outside) {
  const Faulty system;
  const auto workspace = make(pool_of(system), rules_of(4096));
  workspace->open();
  workspace->close();
  workspace->open();
  void* const late = workspace->allocate_of({100}, 1);
  CHECK(kind_of(*workspace, late) == Kind::outside && workspace->numbers().live == 0);
  CHECK(workspace->release_of(late, 1));
  CHECK_THROWS(std::invalid_argument, workspace->open());
  workspace->cancel();
  CHECK(workspace->numbers().cycles == 1 && workspace->open());
}

TEST(a_ring_passes_what_is_alive) {
  const Faulty system;
  const auto pool = pool_of(system);
  const auto workspace = make(pool, ring_of(1024));
  const auto cycle = [&] {
    workspace->open();
    void* const block = workspace->allocate({256});
    workspace->close();
    return static_cast<std::byte*>(block);
  };
  std::vector<std::byte*> lap;
  for (int i = 0; i < 4; ++i) lap.push_back(cycle());
  for (int i = 0; i < 4; ++i)
    CHECK(lap[static_cast<std::size_t>(i)] == lap[0] + 256 * i);
  CHECK(workspace->release(lap[0]) && workspace->release(lap[1]));
  std::byte* const first = cycle();
  std::byte* const second = cycle();
  CHECK(first == lap[0] && second == lap[1]);
  CHECK(pool->stats().current == 1024);
  workspace->open();
  auto* const third = static_cast<std::byte*>(workspace->allocate({256}));
  CHECK(workspace->close().escaped == 4);  // it came round to one that is alive
  CHECK(pool->stats().current == 2048 && workspace->numbers().escaped == 4);
  CHECK(workspace->numbers().offset == 768);
  CHECK(kind_of(*workspace, lap[2]) == Kind::retired);
  for (void* block : {first, second, third, lap[2], lap[3]}) {
    CHECK(workspace->release(block));
    workspace->check();
  }
  CHECK(workspace->numbers().live == 0 && pool->stats().current == 2048);
}

TEST(a_ring_never_overwrites_the_cycle_that_is_on) {
  const Faulty system;
  const auto workspace =
      make(pool_of(system), with(ring_of(4096), &WorkspaceRules::overwrites));
  workspace->open();
  std::vector<conformance::Block> blocks(3);
  const std::vector<Bytes> sizes = {1345, 193, 2433};
  for (std::size_t i = 0; i < 3; ++i) {
    blocks[i].request.size = sizes[i];
    blocks[i].pattern = static_cast<unsigned char>(i + 1);
    blocks[i].address = workspace->allocate_of(blocks[i].request, 1);
    blocks[i].write();
  }
  workspace->check();
  const auto now = workspace->generation();
  for (const auto& block : blocks) {
    CHECK(block.intact() && workspace->release_of(block.address, now));
  }
}

TEST(nothing_is_learned_unasked) {
  const Faulty system;
  WorkspaceRules rules = rules_of();
  rules.learning = WorkspaceRules::never;
  rules.spill = WorkspaceRules::reallocate;
  for (const Bytes initial : {0, 1024}) {
    rules.initial = initial;
    const auto workspace = make(pool_of(system), rules);
    for (int cycle = 0; cycle < 3; ++cycle) {
      workspace->open();
      CHECK(workspace->release(workspace->allocate({5000})));
      workspace->close();
    }
    workspace->initialize();
    CHECK(workspace->numbers().size == initial);
  }
  Workspace::spill_everything(true);
  const auto workspace = make(pool_of(system), rules_of());
  workspace->open();
  CHECK(workspace->release(workspace->allocate({5000})));
  workspace->close();
  workspace->initialize();
  CHECK(workspace->numbers().size == 0);
  Workspace::spill_everything(false);
  workspace->initialize();
  CHECK(workspace->numbers().size == 5056);
}

TEST(space_that_was_taken_last_can_be_given_back) {
  const Faulty system;
  const auto workspace =
      make(pool_of(system), with(rules_of(4096), &WorkspaceRules::reclaims));
  workspace->open();
  void* const a = workspace->allocate({100});
  void* const b = workspace->allocate({200});
  void* const c = workspace->allocate({300});
  CHECK(workspace->numbers().cycle == 128 + 256 + 320);
  CHECK(workspace->release(b) && workspace->numbers().offset == 704);
  CHECK(workspace->release(c) && workspace->numbers().offset == 128);
  CHECK(workspace->numbers().cycle == 128);
  CHECK(workspace->allocate({1}) == b);
  CHECK(workspace->release(a) && workspace->release(b));
  workspace->close();
  CHECK(workspace->numbers().last_cycle == 704);
}

TEST(what_does_not_fit) {
  const Faulty system;
  const auto pool = pool_of(system, 12000);
  WorkspaceRules rules = rules_of(4096);
  for (const auto spill : {WorkspaceRules::external, WorkspaceRules::reallocate}) {
    rules.spill = spill;
    const auto workspace = make(pool, rules);
    workspace->open();
    void* const block = workspace->allocate({4097});
    CHECK(kind_of(*workspace, block) == Kind::spilled);
    CHECK(workspace->numbers().offset == 0 &&
          workspace->numbers().spilled.bytes == 4160);
    CHECK_THROWS(memcfg::out_of_memory, workspace->allocate({5000}));
    CHECK(workspace->numbers().spilled.blocks == 1);
    CHECK(workspace->release(block));
    workspace->close();
    const Bytes grown = spill == WorkspaceRules::reallocate ? 4160 : 4096;
    CHECK(workspace->numbers().size == grown);
    CHECK(workspace->numbers().spilled.bytes == 4160);
    CHECK(workspace->open() && workspace->numbers().spilled.bytes == 0);
    workspace->close();
  }
  rules.spill = WorkspaceRules::fail;
  const auto workspace = make(pool, rules);
  workspace->open();
  void* const held = workspace->allocate({100});
  try {
    workspace->allocate({4096});
    check::fail(__FILE__, __LINE__, "more than the page was granted");
  } catch (const memcfg::out_of_memory& error) {
    CHECK(error.info().cause == OutOfMemoryInfo::workspace_full);
    CHECK(error.info().in_use == 128 && error.info().limit == 4096);
    CHECK(error.info().largest_free == 3968);
  }
  CHECK(workspace->numbers().offset == 128 && workspace->numbers().cycle == 128);
  CHECK(workspace->release(held));
}

// A size need be no multiple of a line: its last bytes are there to be used.
// A block of upstream went back behind the workspace, and its address is out again.
TEST(blocks_that_upstream_got_back_are_not_counted_for_good) {
  const Faulty system;
  const auto pool = pool_of(system);
  const auto workspace = make(pool, rules_of(4096));
  CHECK(workspace->open());
  void* const in_page = workspace->allocate({64});
  CHECK(workspace->holds(in_page));  // the page begins there
  void* const spilled = workspace->allocate({8192});
  CHECK(workspace->holds(spilled) && kind_of(*workspace, spilled) == Kind::spilled);
  pool->deallocate(spilled, 8192);
  void* const again = workspace->allocate({8192});
  CHECK(again == spilled);
  workspace->check();
  CHECK(workspace->numbers().live == 2);
  workspace->deallocate(again, 8192);
  workspace->deallocate(in_page, 64);
  workspace->close();
  workspace->check();
  const memcfg::ResourceStats stats = workspace->stats();
  CHECK(stats.current == 0 && stats.allocations == stats.deallocations);
}

TEST(the_last_line_of_a_page_may_be_short) {
  const Faulty system;
  const auto workspace = make(pool_of(system), rules_of(1000));
  workspace->open();
  void* const whole = workspace->allocate({1000});
  CHECK(kind_of(*workspace, whole) == Kind::page);
  CHECK(workspace->numbers().offset == 1000 && workspace->numbers().cycle == 1024);
  void* const more = workspace->allocate({1});
  CHECK(kind_of(*workspace, more) == Kind::spilled);
  workspace->check();
  CHECK(workspace->release(whole) && workspace->release(more));
  workspace->close();
  workspace->open();
  void* const low = workspace->allocate({960});
  CHECK(kind_of(*workspace, low) == Kind::page);
  void* const high = workspace->allocate({40});
  CHECK(kind_of(*workspace, high) == Kind::page);
  workspace->check();
  CHECK(workspace->release(low) && workspace->release(high));
}

TEST(a_page_that_cannot_be_had) {
  const Faulty system;
  const auto pool = pool_of(system, 8192);
  CHECK_THROWS(memcfg::out_of_memory, make(pool, rules_of(8193)));
  CHECK(pool->stats().current == 0);
  const auto workspace = make(pool, rules_of());
  workspace->open();
  for (int i = 0; i < 3; ++i) CHECK(workspace->release(workspace->allocate({4096})));
  workspace->close();
  CHECK(workspace->numbers().size == 12288);
  CHECK(!workspace->open());
  CHECK_THROWS(memcfg::out_of_memory, workspace->rethrow_out_of_memory());
  void* const block = workspace->allocate({4096});
  CHECK(kind_of(*workspace, block) == Kind::spilled);
  CHECK(workspace->release(block));
  workspace->close();
  CHECK(workspace->shrink() == 0 && workspace->numbers().size == 4096);
  CHECK(workspace->open() && pool->stats().current == 4096);
  workspace->close();
}

TEST(numbers_are_of_whole_lines) {
  const Faulty system;
  const auto pool = pool_of(system);
  const auto workspace = make(pool, rules_of(1000));
  workspace->open();
  void* const block = workspace->allocate({1000});
  const auto stats = workspace->stats();
  CHECK(stats.current == 1024 && stats.reserved == 1024 && stats.idle == 0);
  CHECK(stats.requested == 1000 && stats.peak == 1024 && stats.peak_reserved == 1024);
  CHECK(workspace->release(block));
  workspace->close();
  CHECK(workspace->trim(kNoLimit) == 0 && workspace->stats().idle == 1024);
  workspace->destroy();
  CHECK(workspace->stats().reserved == 0 && workspace->stats().peak_reserved == 1024);
}

TEST(a_failed_initialize_changes_nothing) {
  const Faulty system;
  const auto pool = pool_of(system, 8192);
  WorkspaceRules rules = ring_of(0, 4);
  rules.learning = WorkspaceRules::over_time;
  const auto workspace = make(pool, rules);
  workspace->open();
  CHECK(workspace->release(workspace->allocate({4000})));
  workspace->close();
  for (int i = 0; i < 3; ++i) {
    CHECK_THROWS(memcfg::out_of_memory, workspace->initialize());
    CHECK(workspace->numbers().size == 0 && workspace->numbers().max_cycle == 4032);
  }
  pool->set_limit(kNoLimit);
  workspace->initialize();
  CHECK(workspace->numbers().block == 5248 && workspace->numbers().size == 4 * 5248);
}

TEST(under_fail_a_cycle_without_a_page_does_not_begin) {
  const Faulty system;
  const auto pool = pool_of(system);
  WorkspaceRules rules = rules_of();
  rules.spill = WorkspaceRules::fail;
  const auto workspace = make(pool, rules);
  const auto cycle = [&](Bytes size) {
    workspace->open();
    CHECK(workspace->release(workspace->allocate({size})));
    workspace->close();
  };
  cycle(16000);
  pool->set_limit(8192);
  for (int i = 0; i < 2; ++i) {
    CHECK_THROWS(memcfg::out_of_memory, workspace->open());
    CHECK(workspace->numbers().cycles == 1 && !workspace->numbers().open);
    CHECK(workspace->numbers().last_cycle == 16000);
  }
  pool->set_limit(kNoLimit);
  cycle(4000);
  CHECK(workspace->shrink() == 16000 && workspace->numbers().size == 4032);
  pool->set_limit(8192);
  CHECK(workspace->open() && workspace->numbers().cycles == 2);
  workspace->close();
}

TEST(pages_that_were_destroyed_are_cut) {
  const Faulty system;
  const auto pool = pool_of(system);
  const auto workspace = make(pool, rules_of(kMiB));
  for (int cycle = 0; cycle < 100; ++cycle) {
    workspace->open();
    workspace->close();
  }
  workspace->open();
  void* const kept = workspace->allocate({100});
  workspace->close();
  CHECK(pool->stats().current == kMiB);
  workspace->destroy();
  CHECK(pool->stats().current == 128 && workspace->numbers().retired == 128);
  CHECK(workspace->release(kept) && pool->stats().current == 0);
}

// A gap that a ring has padded, with somebody alive in it, and no memory for the
// metadata.
TEST(no_memory_for_the_metadata_of_a_gap) {
  for (int grants = 0; grants < 4; ++grants) {
    const Faulty system;
    const auto workspace = make(pool_of(system), ring_of(8192));
    std::vector<void*> held;
    const auto cycle = [&](Bytes alignment, int few) {
      workspace->open();
      for (int i = 0; i < 40; ++i) {
        try {
          const failing_new::After some(i > 2 ? few : -1);
          held.push_back(workspace->allocate({64, alignment}));
        } catch (const std::bad_alloc&) {
        }
        workspace->check();
      }
      workspace->close();
    };
    held.reserve(1000);
    for (int lap = 0; lap < 3; ++lap) {
      cycle(64, -1);
      cycle(64, -1);
      cycle(64, -1);
      cycle(128, grants);
      cycle(256, grants);
      for (std::size_t i = 0; i < held.size(); i += 2) {
        CHECK(workspace->release(held[i]));
        held[i] = nullptr;
      }
      for (void* block : held) {
        if (block != nullptr) CHECK(workspace->release(block));
      }
      held.clear();
    }
    workspace->check();
    CHECK(workspace->stats().current == 0 && workspace->numbers().live == 0);
  }
}

// Everything that can fail fails once, and leaves all as it was.
TEST(no_memory_for_the_metadata) {
  for (const WorkspaceRules& rules :
       {rules_of(),
        rules_of(4096),
        ring_of(4096),
        with(rules_of(4096), &WorkspaceRules::reclaims)}) {
    int refused = 0;
    for (int grants = 0; grants < 12; ++grants) {
      const Faulty system;
      const auto pool = pool_of(system);
      const auto workspace = make(pool, rules);
      std::vector<void*> held;
      held.reserve(100);
      for (int cycle = 0; cycle < 3; ++cycle) {
        workspace->open();
        for (int i = 0; i < 20; ++i) {
          const Bytes before = workspace->numbers().cycle;
          try {
            const failing_new::After few(i == cycle ? grants : -1);
            held.push_back(workspace->allocate({200}));
          } catch (const std::bad_alloc&) {
            ++refused;
            CHECK(workspace->numbers().cycle == before);
          }
          workspace->check();
        }
        const failing_new::After none(0);
        for (void* block : held) CHECK(workspace->release(block));
        held.clear();
        workspace->close();
      }
      CHECK(workspace->stats().current == 0);
    }
    CHECK(refused > 0);
  }
}

// Blocks keep their bytes whatever happens, and go in any order, in any cycle.
TEST(random_steps) {
  for (unsigned seed = 0; seed < 24; ++seed) {
    std::mt19937 random(seed);
    const Faulty system;
    const auto pool = pool_of(system);
    WorkspaceRules rules = seed % 2 == 0 ? rules_of() : ring_of(0, 1 + seed % 4);
    if (seed % 4 == 2) rules.reclaims = true;
    if (seed % 3 == 1) rules.spill = WorkspaceRules::reallocate;
    if (seed % 5 == 4) rules.maximum = 40000;
    const auto workspace = make(pool, rules);
    std::vector<conformance::Block> blocks;
    for (int step = 0; step < 3000; ++step) {
      const auto what = random() % 100;
      if (what < 8) {
        workspace->numbers().open ? (void)workspace->close() : (void)workspace->open();
      } else if (what == 8 && !workspace->numbers().open && random() % 4 == 0) {
        workspace->destroy();
      } else if (what == 9) {
        random() % 2 == 0 ? workspace->shrink() : workspace->trim(0);
      } else if (what < 60 && blocks.size() < 60) {
        conformance::Block block;
        block.request.size = conformance::log_uniform(random, 4000);
        block.request.alignment = random() % 16 == 0 ? 256 : 64;
        block.address = workspace->allocate(block.request);
        block.pattern = static_cast<unsigned char>(random());
        block.write();
        blocks.push_back(block);
      } else if (!blocks.empty()) {
        std::swap(blocks[random() % blocks.size()], blocks.back());
        CHECK(blocks.back().intact());
        CHECK(workspace->release(blocks.back().address));
        blocks.pop_back();
      }
      if (step % 16 == 0) workspace->check();
    }
    CHECK(workspace->blocks().size() == blocks.size());
    for (const auto& block : blocks) {
      CHECK(block.intact() && workspace->release(block.address));
    }
    workspace->close();
    workspace->destroy();
    CHECK(pool->stats().current == 0);
  }
}

// One thread makes the cycles; others take blocks in them, and free what they get.
TEST(threads_free_while_cycles_go_on) {
  for (const WorkspaceRules& rules :
       {rules_of(),
        rules_of(64 * 1024),
        ring_of(64 * 1024),
        with(rules_of(64 * 1024), &WorkspaceRules::reclaims)}) {
    const Faulty system;
    const auto pool = pool_of(system);
    const auto workspace = make(pool, rules);
    std::atomic<bool> done{false};
    std::mutex mutex;
    std::vector<conformance::Block> shelf;
    std::atomic<int> damaged{0};
    threading::Threads threads;
    for (unsigned seed = 0; seed < 2; ++seed) {
      threads.start([&, seed] {
        std::mt19937 random(seed);
        while (!done) {
          conformance::Block block;
          {
            const std::lock_guard<std::mutex> lock(mutex);
            if (shelf.empty()) continue;
            std::swap(shelf[random() % shelf.size()], shelf.back());
            block = shelf.back();
            shelf.pop_back();
          }
          if (!block.intact()) ++damaged;
          if (!workspace->release(block.address)) ++damaged;
          if (random() % 8 != 0) continue;
          workspace->release(workspace->allocate({100}));
          workspace->stats();
          workspace->check();
        }
      });
    }
    std::mt19937 random(7);
    for (int cycle = 0; cycle < 400; ++cycle) {
      workspace->open();
      for (int i = 0; i < 10; ++i) {
        conformance::Block block;
        block.request.size = conformance::log_uniform(random, 6000);
        block.pattern = static_cast<unsigned char>(random());
        block.address = workspace->allocate(block.request);
        block.write();
        const std::lock_guard<std::mutex> lock(mutex);
        shelf.push_back(block);
      }
      workspace->close();
    }
    done = true;
    threads.finish();
    for (const auto& block : shelf) {
      CHECK(block.intact() && workspace->release(block.address));
    }
    CHECK(damaged == 0);
    workspace->destroy();
    CHECK(pool->stats().current == 0);
  }
}
