// Each call that may fail fails, in turn: nothing changes, nothing is left behind.
#include <cstdio>
#include <functional>
#include <memory>
#include <optional>

#include "check.hpp"
#include "failing_new.hpp"
#include "memcfg/arena.hpp"
#include "pools.hpp"
#include "threading.hpp"

using memcfg::Arena;
using namespace pools;

namespace {

// Where a pool takes the pages of a system.
class Pages final : public Resource {
 public:
  explicit Pages(const Faulty& system) : system_(system) {}
  const std::string& name() const noexcept override { return name_; }
  memcfg::SpaceKind kind() const noexcept override { return memcfg::SpaceKind::host; }
  void* allocate(const Request&) override { throw std::bad_alloc(); }
  void deallocate(void*, Bytes) override {}
  Bytes size_of(const void*) const override { return 0; }
  std::vector<memcfg::LiveBlock> blocks() const override { return {}; }
  ResourceStats stats() const override { return {}; }
  void reset_peak() override {}
  memcfg::Owners owners() const override { return {}; }
  Bytes trim(Bytes) override { return 0; }
  void check() const override {}
  const memcfg::System* pages() const noexcept override { return &system_; }

 private:
  const Faulty& system_;
  const std::string name_ = "pages";
};

constexpr Bytes kLimit = 96 * kMiB;

// A pool on a system, and what has been taken from it so far.
struct Script {
  explicit Script(const Faulty& faulty) : system(faulty) {}
  ~Script() {
    arena.reset();
    blocks.reset();
  }

  void make(bool growth, Bytes limit = kLimit) {
    pool = std::make_shared<Pool>(
        "device", limit, growth, std::make_shared<Pages>(system));
  }
  void open() { blocks.emplace(*pool); }
  void take(Bytes size,
            Bytes alignment = 64,
            Lifetime lifetime = Lifetime::unknown,
            const char* tag = "") {
    if (pool == nullptr) return;
    if (!blocks) open();
    blocks->take({size, alignment, lifetime, tag});
  }
  void give_half() {
    if (!blocks) return;
    for (std::size_t i = blocks->count() / 2; i > 0; --i) blocks->give(i - 1);
  }

  const Faulty& system;
  std::shared_ptr<Pool> pool;
  std::optional<Blocks> blocks;
  std::unique_ptr<Arena> arena;
};

using Step = std::function<void(Script&)>;

// A block that cannot change its size where it lies stays as it is.
Step resize_last(Bytes size) {
  return [=](Script& script) {
    if (!script.blocks || script.blocks->count() == 0) return;
    script.blocks->resize(script.blocks->count() - 1, size);
  };
}

Step take(Bytes size,
          Bytes alignment = 64,
          Lifetime lifetime = Lifetime::unknown,
          const char* tag = "") {
  return [=](Script& script) { script.take(size, alignment, lifetime, tag); };
}

const std::vector<Step> kSteps = {
    [](Script& script) { script.make(true); },
    take(100),
    take(1, 64, Lifetime::long_lived, "a tag that takes memory of its own"),
    take(40 * kKiB, 64, Lifetime::short_lived, "a"),
    take(3 * kMiB, 64, Lifetime::long_lived, "b"),
    take(70000, 64 * kKiB, Lifetime::short_lived, "c"),
    [](Script& script) {
      for (int i = 0; i < 300; ++i) script.take(64);  // a table of starts
    },
    [](Script& script) { script.give_half(); },
    resize_last(10),
    take(64 * kMiB),  // a second segment
    resize_last(10 * kMiB),
    resize_last(50 * kMiB),
    [](Script& script) {
      if (script.pool) script.pool->trim(0);
    },
    take(kMiB, 2 * kMiB),
    [](Script& script) {
      if (script.pool == nullptr) return;
      script.arena =
          std::make_unique<Arena>(script.pool, 64 * kMiB, "the arena's name");
    },
    [](Script& script) {
      if (script.arena) script.arena->grow(5 * kMiB);
    },
    [](Script& script) {
      if (script.arena) script.arena->grow(script.arena->size() + 100000);
    },
    [](Script& script) {
      if (script.arena) script.arena->shrink(100);
    },
    [](Script& script) {
      if (script.blocks) script.blocks->clear();
    },
    take(kLimit - 128),  // no hole is so large
    [](Script& script) {
      if (script.blocks) script.blocks->clear();
      if (script.pool) script.pool->set_limit(8 * kMiB);
    },
    take(8 * kMiB - 4096),
    [](Script& script) { script.give_half(); },
};

// Which calls fail: all from the n-th on, or that one alone, of the system or the heap.
enum class Kind { system, system_once, heap };

void arm(Script& script, Kind kind, int grants) {
  script.system.once = kind == Kind::system_once;
  if (kind == Kind::heap) {
    failing_new::calls_left = grants;
  } else {
    script.system.calls_left = grants;
  }
}

void disarm(Script& script) {
  failing_new::calls_left = -1;
  script.system.calls_left = Faulty::kMany;
}

// True: the step has failed.
bool fails(Script& script, const Step& step, Kind kind, int grants) {
  const bool made = script.pool != nullptr;
  if (made && !script.blocks) script.open();
  std::optional<State> before;
  if (made) before.emplace(*script.pool);
  bool failed = false;
  try {
    arm(script, kind, grants);
    step(script);
  } catch (const std::bad_alloc&) {
    failed = true;
  } catch (...) {
    disarm(script);
    throw;
  }
  disarm(script);
  if (made) check_pool(*script.pool);
  if (made) check_layout(*script.pool);
  if (script.arena) script.arena->check();
  if (!made && failed) CHECK(script.pool == nullptr && script.system.has_all_back());
  return failed;
}

// Plays the steps; so many of one step's calls succeed. True: that step has failed.
bool play(const std::vector<Step>& steps, std::size_t faulty, Kind kind, int grants) {
  const Faulty system;
  bool failed = false;
  {
    Script script(system);
    for (std::size_t i = 0; i < steps.size(); ++i) {
      if (i != faulty) {
        steps[i](script);
      } else {
        failed = fails(script, steps[i], kind, grants);
      }
      if (script.blocks) CHECK(script.blocks->intact());
    }
    if (script.blocks) script.blocks->clear();
    script.arena.reset();
    if (script.pool) {
      check_pool(*script.pool);
      CHECK(script.pool->stats().current == 0 && script.pool->owners().empty());
      script.pool->trim(0);
      CHECK(system.open == 0 && system.guarded == 0);
    }
  }
  CHECK(system.has_all_back());
  return failed;
}

void play_all(const std::vector<Step>& steps) {
  for (const Kind kind : {Kind::system, Kind::system_once, Kind::heap}) {
    for (std::size_t step = 0; step < steps.size(); ++step) {
      int successes = 0;  // a call that fails alone may be made up for
      for (int grants = 0; successes < 15; ++grants) {
        CHECK(grants < 500);
        successes = play(steps, step, kind, grants) ? 0 : successes + 1;
      }
    }
  }
}

}  // namespace

TEST(a_script_with_a_failure_at_each_call) {
  play_all(kSteps);
}

TEST(a_pool_that_does_not_grow) {
  play_all({
      [](Script& script) { script.make(false, 8 * kMiB); },
      take(5 * kMiB),
      take(2 * kMiB, kMiB),
      [](Script& script) { script.give_half(); },
      take(3 * kMiB),
  });
}

// A single step that fails leaves the numbers alone, whatever call it was.
TEST(a_failed_step_changes_nothing) {
  const std::vector<Step> steps = {
      take(100, 64, Lifetime::unknown, "another tag that takes memory"),
      take(200 * kKiB, 2 * kMiB, Lifetime::short_lived),
      take(80 * kMiB, 64, Lifetime::long_lived),
      [](Script& script) {
        if (!script.blocks->resize(0, 40 * kMiB)) throw std::bad_alloc();
      },
      [](Script& script) { script.arena->grow(6 * kMiB); },
  };
  for (const Kind kind : {Kind::system, Kind::heap}) {
    for (const Step& step : steps) {
      for (int grants = 0;; ++grants) {
        CHECK(grants < 100);
        const Faulty system;
        Script script(system);
        script.make(true);
        script.take(1000, 64, Lifetime::unknown, "a");
        script.arena = std::make_unique<Arena>(script.pool, 64 * kMiB, "b");
        script.arena->grow(100);
        const State before(*script.pool);
        if (!fails(script, step, kind, grants)) break;
        CHECK(State(*script.pool) == before && script.blocks->intact());
      }
    }
  }
}

// A thread whose first request fails at any call, and its end.
TEST(the_cache_of_a_thread) {
  for (const Kind kind : {Kind::system, Kind::heap}) {
    for (int grants = 0; grants < 20; ++grants) {
      const Faulty system;
      Script script(system);
      script.make(true);
      script.take(100);
      const State before(*script.pool);
      threading::in_a_thread([&] {
        const std::string tag = "a tag that takes memory of its own";
        void* address = nullptr;
        arm(script, kind, grants);
        try {
          address = script.pool->allocate({2000, 64, Lifetime::unknown, tag});
        } catch (const std::bad_alloc&) {
        }
        disarm(script);
        check_pool(*script.pool);
        if (address == nullptr) CHECK(State(*script.pool) == before);
        if (address == nullptr) return;
        arm(script, kind, 0);
        script.pool->deallocate(address, 2000);  // giving back needs nothing
        disarm(script);
      });
      CHECK(script.pool->stats().current == 128);
      check_pool(*script.pool);
    }
  }
}
