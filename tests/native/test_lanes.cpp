#include <atomic>
#include <chrono>
#include <cstring>
#include <memory>
#include <optional>
#include <random>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "check.hpp"
#include "children.hpp"
#include "files.hpp"
#include "memcfg/error.hpp"
#include "memcfg/program.hpp"

using memcfg::Arena;
using memcfg::ArenaSpace;
using memcfg::Bytes;
using memcfg::Codec;
using memcfg::Kernel;
using memcfg::Lane;
using memcfg::Offset;
using memcfg::Pool;
using memcfg::Program;
using memcfg::ScratchFile;
using memcfg::Space;

namespace {

#if defined(__SANITIZE_THREAD__)
constexpr bool kThreadSanitizer = true;
#else
constexpr bool kThreadSanitizer = false;
#endif

constexpr Bytes kSize = 4096;  // bytes of an arena

std::shared_ptr<Arena> make_arena() {
  auto arena = std::make_shared<Arena>(std::make_shared<Pool>("cpu"), 1 << 20, "model");
  arena->grow(kSize);
  return arena;
}

float& at(Arena& arena, Bytes offset) {
  return *reinterpret_cast<float*>(arena.base() + offset);
}

// Its bytes are not where it says: only copies reach them. Late, or failing, if asked.
class Remote final : public Space {
 public:
  Bytes size() const override { return kSize; }
  std::byte* base() const noexcept override { return nullptr; }
  void read(Offset offset, void* to, Bytes size) const override {
    wait();
    std::memcpy(to, bytes_.data() + offset, size);
  }
  void write(Offset offset, const void* from, Bytes size) override {
    wait();
    if (fails) throw std::runtime_error("the link is down");
    std::memcpy(bytes_.data() + offset, from, size);
  }
  std::atomic<int> milliseconds{0};
  std::atomic<bool> fails{false};
  std::atomic<bool> hangs{false};

 private:
  void wait() const {
    while (hangs) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    std::this_thread::sleep_for(std::chrono::milliseconds(milliseconds));
  }
  std::vector<std::byte> bytes_ = std::vector<std::byte>(kSize);
};

// y = x + 1.
class AddOne final : public Kernel {
 public:
  AddOne() : Kernel({{4}, {4}}) {}
  void run(void* const* operands, void*, RunState*) const override {
    *static_cast<float*>(operands[1]) = *static_cast<float*>(operands[0]) + 1.0F;
  }
};

class Fails final : public Kernel {
 public:
  void run(void* const*, void*, RunState*) const override {
    throw std::out_of_range("no such row");
  }
};

struct Machine {
  std::shared_ptr<Arena> arena = make_arena();
  std::shared_ptr<Remote> remote = std::make_shared<Remote>();
  std::shared_ptr<Arena> host = make_arena();
  Program program{arena,
                  {remote, std::make_shared<ArenaSpace>(host)},
                  {std::make_shared<Lane>(), std::make_shared<Lane>()}};
  std::size_t add(Offset x, Offset y) {
    return program.compute(std::make_shared<AddOne>(), {x, y}, {4, 4}, std::nullopt);
  }
};

constexpr std::size_t kOut = 1, kIn = 2;  // queues

}  // namespace

TEST(tasks_run_in_order) {
  Lane lane;
  static std::vector<std::size_t> seen;
  seen.clear();
  std::uint64_t last = 0;
  for (std::size_t i = 0; i < 3 * Lane::kCapacity; ++i) {
    last = lane.submit(
        {[](void*, std::size_t index) noexcept { seen.push_back(index); }, nullptr, i});
  }
  lane.wait(last);
  CHECK(seen.size() == last);
  for (std::size_t i = 0; i < seen.size(); ++i) CHECK(seen[i] == i);
}

TEST(a_tensor_goes_and_comes_back) {
  Machine m;
  m.remote->milliseconds = 2;
  m.add(0, 64);
  const std::size_t out = m.program.copy(kOut, {0, 64}, {1, 128}, 4);
  m.program.wait(0, out);
  m.add(0, 64);  // others' bytes by now
  const std::size_t in = m.program.copy(kIn, {1, 128}, {0, 192}, 4);
  m.program.wait(0, in);
  m.add(192, 256);
  at(*m.arena, 0) = 5.0F;
  for (int step = 0; step < 3; ++step) {
    at(*m.arena, 192) = 0.0F;
    CHECK(m.program.run(true, 1) == Program::kEnded && at(*m.arena, 256) == 7.0F);
  }
  CHECK(m.program.queue_of(out) == kOut && m.program.queue_of(in) == kIn);
}

TEST(waits_that_are_missing_are_derived) {
  Machine m;
  m.remote->milliseconds = 5;
  m.add(0, 64);
  m.program.copy(kOut, {0, 64}, {1, 0}, 4);
  m.program.copy(kIn, {1, 0}, {0, 192}, 4);  // waits for the other lane
  m.add(128, 64);                            // waits: a copy still reads
  m.add(192, 256);                           // waits: a copy still writes
  CHECK(m.program.size() == 5 + 3);
  at(*m.arena, 0) = 1.0F;
  at(*m.arena, 128) = 10.0F;
  CHECK(m.program.run(true, 1) == Program::kEnded);
  CHECK(at(*m.arena, 64) == 11.0F && at(*m.arena, 256) == 3.0F);
}

TEST(what_does_not_touch_does_not_wait) {
  Machine m;
  m.program.copy(kOut, {0, 0}, {1, 0}, 64);
  m.add(0, 128);                                // reads what is read
  m.program.copy(kOut, {0, 128}, {1, 64}, 64);  // on the same lane, and read inline
  m.program.copy(kIn, {1, 256}, {0, 256}, 64);
  CHECK(m.program.size() == 4);
  const std::size_t event = m.program.record(kOut);
  CHECK(event == 2);
  m.program.wait(kIn, event);
  m.program.copy(kIn, {1, 64}, {0, 320}, 64);
  m.program.copy(kIn, {1, 0}, {0, 384}, 64);
  CHECK(m.program.size() == 7);
  CHECK(m.program.run(true, 1) == Program::kEnded);
}

// Against a run without lanes: random copies and additions, late by random times.
TEST(random_programs_give_the_same_bytes) {
  for (unsigned seed = 0; seed < (kThreadSanitizer ? 10 : 40); ++seed) {
    std::mt19937 random(seed);
    Machine m;
    std::vector<std::vector<float>> truth(2, std::vector<float>(16, 0.0F));
    const auto step = [&](bool build) {
      std::mt19937 same(seed);
      for (int i = 0; i < 60; ++i) {
        const Offset a = same() % 16, b = same() % 16;
        switch (same() % 3) {
          case 0:
            if (build) m.add(64 * a, 64 * b);
            truth[0][b] = truth[0][a] + 1.0F;
            break;
          case 1:
            if (build) m.program.copy(kOut, {0, 64 * a}, {1, 64 * b}, 4);
            truth[1][b] = truth[0][a];
            break;
          default:
            if (build) m.program.copy(kIn, {1, 64 * a}, {0, 64 * b}, 4);
            truth[0][b] = truth[1][a];
        }
      }
    };
    step(true);
    m.program.set_jitter(seed, 200);
    m.program.run(true, 1);
    for (int again = 0; again < 2; ++again) {
      step(false);
      m.program.run(true, 1);
    }
    for (Offset i = 0; i < 16; ++i) CHECK(at(*m.arena, 64 * i) == truth[0][i]);
  }
}

TEST(places_and_queues_are_checked) {
  Machine m;
  const auto refused = [&](std::size_t queue, Program::Place from, Program::Place to) {
    CHECK_THROWS(std::invalid_argument, m.program.copy(queue, from, to, 128));
  };
  refused(3, {0, 0}, {1, 0});
  refused(kOut, {3, 0}, {1, 0});
  refused(kOut, {0, 0}, {3, 0});
  refused(kOut, {0, kSize - 64}, {1, 0});
  refused(kOut, {0, 0}, {1, kSize - 64});
  refused(kOut, {0, 4}, {1, 0});
  refused(kOut, {0, 0}, {1, 4});
  refused(kOut, {0, 0}, {0, 64});
  CHECK_THROWS(std::invalid_argument, m.program.wait(0, 0));
  CHECK_THROWS(std::invalid_argument, m.program.wait(3, Program::kNone));
  CHECK_THROWS(std::invalid_argument, m.program.record(3));
  CHECK_THROWS(std::invalid_argument, m.program.protect(64, {1, 0}));
  CHECK_THROWS(std::invalid_argument, m.program.protect(64, {0, 64}));
  CHECK_THROWS(std::invalid_argument, memcfg::find_codec("zip"));
  CHECK(m.program.size() == 0 && m.program.record(kOut) == Program::kNone);
}

TEST(what_fails_on_a_lane_ends_the_run) {
  Machine m;
  m.program.copy(kOut, {0, 0}, {1, 0}, 64);
  m.program.copy(kOut, {0, 64}, {1, 64}, 64);
  for (int round = 0; round < 2; ++round) {
    m.remote->fails = true;
    try {
      m.program.run(true, 1);
      CHECK(false);
    } catch (const memcfg::kernel_failure& error) {
      CHECK(std::string(error.what()) == "instruction 0 failed: the link is down");
    }
    CHECK_THROWS(memcfg::kernel_failure, m.program.run_timed(1));
    m.remote->fails = false;
    CHECK(m.program.run(true, 1) == Program::kEnded);
  }
}

TEST(a_fault_in_any_instruction_leaves_what_is_protected) {
  for (const bool kernel_fails : {false, true}) {
    Machine m;
    m.remote->milliseconds = 1;
    m.program.copy(kOut, {0, 0}, {1, 0}, 64);
    m.program.protect(128, {2, 64});
    m.add(0, 0);
    m.program.copy(kOut, {0, 0}, {1, 64}, 64);
    m.add(64, 64);
    m.program.copy(kIn, {1, 64}, {0, 256}, 64);
    m.add(256, 320);
    if (kernel_fails) {
      m.program.compute(std::make_shared<Fails>(), {}, {}, std::nullopt);
    }
    for (std::size_t i = 0; i < m.program.size(); ++i) {
      m.program.fail_at(i);
      at(*m.arena, 0) = 5.0F;
      at(*m.arena, 64) = 7.0F;
      CHECK_THROWS(memcfg::kernel_failure, m.program.run(true, 1));
      CHECK(at(*m.arena, 0) == 5.0F && at(*m.arena, 64) == 7.0F);
      CHECK_THROWS(memcfg::kernel_failure, m.program.run_timed(1));
      CHECK(at(*m.arena, 0) == 5.0F && at(*m.arena, 64) == 7.0F);
    }
    m.program.fail_at(Program::kNone);
    if (kernel_fails) continue;
    CHECK(m.program.run(true, 1) == Program::kEnded);
    CHECK(at(*m.arena, 0) == 6.0F && at(*m.arena, 320) == 7.0F);
  }
}

namespace {

// y = x + 1, late if asked; touches its scratch. What runs on a lane may hang.
class Slow final : public Kernel {
 public:
  explicit Slow(int milliseconds = 0, Bytes scratch = 0)
      : Kernel({{4}, {4}}), milliseconds_(milliseconds), scratch_(scratch) {}
  Bytes scratch_bytes() const noexcept override { return scratch_; }
  std::unique_ptr<RunState> make_run_state() const override {
    ++states;
    return nullptr;
  }
  void run(void* const* operands, void* scratch, RunState*) const override {
    while (hangs) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    std::this_thread::sleep_for(std::chrono::milliseconds(milliseconds_));
    if (scratch != nullptr) std::memset(scratch, 0, scratch_);
    *static_cast<float*>(operands[1]) = *static_cast<float*>(operands[0]) + 1.0F;
  }
  mutable int states = 0;
  std::atomic<bool> hangs{false};

 private:
  int milliseconds_;
  Bytes scratch_;
};

}  // namespace

TEST(kernels_run_on_lanes_beside_others) {
  Machine m;
  const auto slow = std::make_shared<Slow>(3);
  const std::size_t sum = m.program.compute(slow, {0, 64}, {4, 4}, std::nullopt, kOut);
  const std::size_t beside = m.add(128, 192);
  const std::size_t wait = m.program.wait(0, sum);
  m.add(64, 256);
  m.program.compute(slow, {256, 320}, {4, 4}, std::nullopt);
  CHECK(m.program.queue_of(sum) == kOut && m.program.size() == 5);
  CHECK(slow->states == 2);  // one for each queue that may run it meanwhile
  for (int step = 0; step < 3; ++step) {
    at(*m.arena, 64) = 0.0F;
    const auto spans = m.program.run_traced(1);
    CHECK(at(*m.arena, 320) == 3.0F && at(*m.arena, 192) == 1.0F);
    CHECK(spans[beside].begin < spans[sum].end && spans[wait].end >= spans[sum].end);
  }
  CHECK(m.program.run_timed(1)[sum] >= 0.003 && at(*m.arena, 320) == 3.0F);
}

TEST(waits_for_kernels_on_lanes_are_derived) {
  Machine m;
  const auto slow = std::make_shared<Slow>(3, 64);
  const auto size_after = [&](std::size_t instruction) {
    static_cast<void>(instruction);
    return m.program.size();
  };
  const Program::Place scratch = 512;
  m.program.compute(slow, {0, 64}, {4, 4}, scratch, kOut);
  CHECK(size_after(m.add(0, 128)) == 2);    // both read
  CHECK(size_after(m.add(192, 512)) == 4);  // over its scratch
  m.program.compute(slow, {0, 64}, {4, 4}, scratch, kOut);
  CHECK(size_after(m.add(64, 192)) == 7);  // its result
  m.program.compute(slow, {0, 64}, {4, 4}, scratch, kOut);
  CHECK(size_after(m.add(256, 0)) == 10);  // over what it reads
  m.program.compute(slow, {0, 64}, {4, 4}, scratch, kOut);
  CHECK(size_after(m.program.compute(slow, {64, 0}, {4, 4}, scratch, kOut)) == 12);
  m.program.copy(kIn, {1, 0}, {0, 64}, 64);  // a lane waits for both on another
  CHECK(m.program.size() == 15);
  CHECK(m.program.run(true, 1) == Program::kEnded);
  CHECK_THROWS(std::invalid_argument,
               m.program.compute(slow, {0, 64}, {4, 4}, scratch, 3));
  CHECK(m.program.size() == 15);
}

TEST(a_kernel_that_fails_on_a_lane_ends_the_run_and_is_named) {
  for (const bool calls : {false, true}) {
    Machine m;
    m.program.protect(64, {2, 0});
    m.add(0, 0);
    static std::atomic<bool> fails;
    fails = true;
    std::shared_ptr<Kernel> kernel = std::make_shared<Fails>();
    if (calls) {
      kernel = std::make_shared<memcfg::CallbackKernel>(
          [](void*, void* const*, void*) { return fails ? -1 : 0; }, nullptr);
    }
    const std::size_t failed = m.program.compute(kernel, {}, {}, std::nullopt, kOut);
    m.add(64, 128);
    for (int round = 0; round < 2; ++round) {
      at(*m.arena, 0) = 5.0F;
      try {
        m.program.run(true, 1);
        CHECK(false);
      } catch (const memcfg::kernel_failure& error) {
        CHECK(!calls &&
              std::string(error.what()) == "instruction 2 failed: no such row");
      } catch (const memcfg::callback_raised&) {
        CHECK(calls);
      }
      CHECK(at(*m.arena, 0) == 5.0F && m.program.failed_at() == failed);
    }
    fails = false;
    if (calls) {
      CHECK(m.program.run(true, 1) == Program::kEnded && at(*m.arena, 0) == 6.0F);
      CHECK(m.program.failed_at() == Program::kNone);
    }
  }
}

TEST(random_programs_with_kernels_on_lanes_give_the_same_bytes) {
  std::mt19937 random(7);
  for (int round = 0; round < 20; ++round) {
    Machine one, other;
    other.program.set_jitter(static_cast<std::uint32_t>(random()), 200);
    const auto slow = std::make_shared<Slow>();
    for (int i = 0; i < 40; ++i) {
      const Offset from = random() % 6 * 64, to = random() % 6 * 64;
      if (from == to) continue;
      const std::size_t queue = random() % 3;
      one.program.compute(slow, {from, to}, {4, 4}, std::nullopt);
      other.program.compute(slow, {from, to}, {4, 4}, std::nullopt, queue);
    }
    CHECK(one.program.run(true, 1) == Program::kEnded);
    CHECK(other.program.run(true, 1) == Program::kEnded);
    CHECK(std::memcmp(one.arena->base(), other.arena->base(), 6 * 64) == 0);
  }
}

TEST(a_guard_ends_the_copies_too) {
  Machine m;
  m.remote->milliseconds = 5;
  m.program.copy(kOut, {0, 64}, {1, 0}, 64);
  m.program.guard(0);
  at(*m.arena, 0) = NAN;
  CHECK(m.program.run(true, 1) == 1);
  at(*m.arena, 64) = 1.0F;  // nobody reads it any more
}

TEST(a_trace_tells_when_each_ran) {
  Machine m;
  m.remote->milliseconds = 3;
  const std::size_t out = m.program.copy(kOut, {0, 0}, {1, 0}, 64);
  const std::size_t inline_ = m.add(128, 192);
  const std::size_t wait = m.program.wait(0, out);
  const auto spans = m.program.run_traced(1);
  CHECK(spans[out].end - spans[out].begin >= 0.003);
  CHECK(spans[inline_].end <= spans[out].end && spans[wait].end >= spans[out].end);
  CHECK(m.program.run_timed(1)[out] >= 0.003);
  std::vector<Program::Span> own(m.program.size());
  CHECK(m.program.run(true, 1, 0, own.size(), &own) == Program::kEnded);
  CHECK(own[out].end - own[out].begin >= 0.003);
  CHECK(m.program.run(true, 1) == Program::kEnded);  // and notes nothing
}

TEST(a_copy_takes_as_long_as_its_bytes_at_the_bandwidth) {
  const auto begin = std::chrono::steady_clock::now();
  const auto lane = std::make_shared<Lane>(1e5);  // 2048 bytes: 20 ms
  CHECK(lane->bytes_per_second() == 1e5);
  const auto arena = make_arena(), host = make_arena();
  Program program(arena, {std::make_shared<ArenaSpace>(host)}, {lane});
  std::memset(arena->base(), 7, 2048);
  for (const Offset offset : {Offset{0}, Offset{1024}}) {
    program.wait(0, program.copy(1, {0, offset}, {1, offset}, 1024));
  }
  CHECK(program.run(true, 1) == Program::kEnded);
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
  CHECK(took.count() >= 0.02048);
  CHECK(std::memcmp(arena->base(), host->base(), 2048) == 0);
}

TEST(lanes_are_shared_by_programs_of_several_arenas) {
  const auto lane = std::make_shared<Lane>();
  std::vector<std::thread> threads;
  for (int i = 0; i < 3; ++i) {
    threads.emplace_back([lane, i] {
      const auto arena = make_arena(), host = make_arena();
      Program program(arena, {std::make_shared<ArenaSpace>(host)}, {lane});
      program.copy(1, {0, 0}, {1, 0}, 4);
      program.copy(1, {1, 0}, {0, 64}, 4);
      for (int step = 0; step < 50; ++step) {
        at(*arena, 0) = static_cast<float>(100 * i + step);
        program.run(true, 1);
        CHECK(at(*arena, 64) == at(*arena, 0));
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

// -- lanes that hang -----------------------------------------------------------------

namespace {

constexpr double kSoon = 0.5;  // seconds

// What a run throws; empty: nothing.
std::string told(Program& program) {
  try {
    program.run(true, 1);
  } catch (const memcfg::kernel_failure& error) {
    return error.what();
  }
  return {};
}

bool says(const std::string& text, const char* words) {
  return text.find(words) != std::string::npos;
}

// Runs until what had hung has ended, which a run tells once.
bool ends(Program& program) {
  for (int tries = 0; tries < 10000; ++tries) {
    const std::string text = told(program);
    if (says(text, "has ended since")) return true;
    if (!says(text, "has not ended")) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return false;
}

struct Hanging {
  std::shared_ptr<Arena> arena = make_arena(), host = make_arena();
  std::shared_ptr<Remote> remote = std::make_shared<Remote>();
  std::shared_ptr<Lane> out = std::make_shared<Lane>(0, kSoon);
  std::shared_ptr<Lane> in = std::make_shared<Lane>(0, kSoon);
  Program program{arena, {remote, std::make_shared<ArenaSpace>(host)}, {out, in}};
};

}  // namespace

TEST(a_lane_that_hangs_fails_the_run_and_gives_the_state_back) {
  Hanging m;
  const auto add = std::make_shared<AddOne>();
  m.program.protect(64, {2, 0});
  m.program.compute(add, {0, 0}, {4, 4}, std::nullopt);  // changes the state
  m.program.copy(kOut, {0, 128}, {1, 0}, 64);
  const std::size_t in = m.program.copy(kIn, {1, 0}, {0, 192}, 64);
  m.program.wait(0, in);
  m.program.compute(add, {192, 256}, {4, 4}, std::nullopt);
  at(*m.arena, 0) = 1.0F;
  at(*m.arena, 128) = 7.0F;
  m.remote->hangs = true;
  CHECK(says(told(m.program), "has not got on for 0.5 s"));
  CHECK(at(*m.arena, 0) == 1.0F && !m.program.ended());
  CHECK(says(told(m.program), "has not ended"));
  CHECK(says(told(m.program), "has not ended"));
  try {  // what lies where may be another there
    Program other(m.arena, {}, {});
    CHECK(false);
  } catch (const memcfg::kernel_failure& error) {
    CHECK(says(error.what(), "has not ended"));
  }
  m.remote->hangs = false;
  CHECK(ends(m.program) && m.program.ended());
  CHECK(at(*m.arena, 0) == 1.0F);
  CHECK(told(m.program).empty());
  CHECK(at(*m.arena, 0) == 2.0F && at(*m.arena, 256) == 8.0F);
}

TEST(a_kernel_that_hangs_on_a_lane_fails_the_run_and_gives_the_state_back) {
  Hanging m;
  const auto slow = std::make_shared<Slow>();
  m.program.protect(64, {2, 0});
  m.program.compute(std::make_shared<AddOne>(), {0, 0}, {4, 4}, std::nullopt);
  const std::size_t sum =
      m.program.compute(slow, {64, 128}, {4, 4}, std::nullopt, kOut);
  m.program.wait(0, sum);
  at(*m.arena, 0) = 1.0F;
  slow->hangs = true;
  CHECK(says(told(m.program), "has not got on for 0.5 s"));
  CHECK(at(*m.arena, 0) == 1.0F && !m.program.ended());
  slow->hangs = false;
  CHECK(ends(m.program) && told(m.program).empty() && at(*m.arena, 0) == 2.0F);
}

TEST(other_programs_of_the_arena_wait_for_a_lane_that_hangs) {
  Hanging m;
  Program other(m.arena, {}, {});
  other.compute(std::make_shared<AddOne>(), {0, 64}, {4, 4}, std::nullopt);
  m.program.copy(kOut, {0, 128}, {1, 0}, 64);
  m.remote->hangs = true;
  CHECK(says(told(m.program), "has not got on"));
  CHECK(says(told(other), "has not ended"));
  m.remote->hangs = false;
  CHECK(ends(other) && told(other).empty() && told(m.program).empty());
}

TEST(a_traced_run_that_hangs_leaves_no_address_behind) {
  Hanging m;
  m.program.copy(kOut, {0, 128}, {1, 0}, 64);
  m.remote->hangs = true;
  try {
    m.program.run_traced(1);
    CHECK(false);
  } catch (const memcfg::kernel_failure& error) {
    CHECK(says(error.what(), "has not got on"));
  }
  m.remote->hangs = false;  // the lane notes when the copy ended
  CHECK(ends(m.program));
  const auto spans = m.program.run_traced(1);
  CHECK(spans.size() == 1 && spans[0].begin <= spans[0].end);
}

TEST(a_timed_run_hears_of_a_lane_that_hangs) {
  Hanging m;
  m.program.copy(kOut, {0, 128}, {1, 0}, 64);
  m.remote->hangs = true;
  try {
    m.program.run_timed(1);
    CHECK(false);
  } catch (const memcfg::kernel_failure& error) {
    CHECK(says(error.what(), "has not got on"));
  }
  m.remote->hangs = false;
  CHECK(ends(m.program) && told(m.program).empty());
}

TEST(a_full_queue_hears_of_a_lane_that_hangs) {
  Lane lane(0, kSoon);
  std::atomic<bool> hangs{true};
  const auto wait = [](void* context, std::size_t) noexcept {
    while (*static_cast<std::atomic<bool>*>(context)) std::this_thread::yield();
  };
  std::uint64_t last = 0;
  try {
    for (;;) last = lane.submit({wait, &hangs, 0});
  } catch (const memcfg::lane_stalled&) {
  }
  CHECK(last == Lane::kCapacity && !lane.ended(1) && !lane.settle(last));
  hangs = false;
  while (!lane.ended(last)) std::this_thread::yield();
  lane.wait(last);
  CHECK(lane.settle(last));
}

TEST(what_gets_on_does_not_hang) {
  Lane lane(0, kSoon);
  const auto slow = [](void*, std::size_t) noexcept {
    const auto end = std::chrono::steady_clock::now() + std::chrono::milliseconds(1500);
    while (std::chrono::steady_clock::now() < end) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
      Lane::get_on();
    }
  };
  lane.wait(lane.submit({slow, nullptr, 0}));
  Lane::get_on();  // of no lane: nothing
}

TEST(a_lane_that_keeps_to_a_bandwidth_does_not_hang) {
  auto arena = make_arena();
  auto lane = std::make_shared<Lane>(kSize / (3 * kSoon), kSoon);
  Program program(arena, {std::make_shared<Remote>()}, {lane});
  program.copy(kOut, {0, 0}, {1, 0}, kSize);
  CHECK(told(program).empty());
}

TEST(a_lane_without_a_timeout_is_waited_for) {
  Machine m;
  m.program.copy(kOut, {0, 0}, {1, 0}, 64);
  m.remote->hangs = true;
  std::thread later([&m] {
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
    m.remote->hangs = false;
  });
  CHECK(told(m.program).empty());
  later.join();
}

// -- forks --------------------------------------------------------------------------

TEST(a_child_starts_lanes_of_its_own) {
  if (kThreadSanitizer) return;  // it allows no threads in a child
  Machine m;
  m.program.copy(kOut, {0, 0}, {1, 0}, 64);
  m.program.copy(kIn, {1, 0}, {0, 64}, 64);
  m.program.run(true, 1);
  for (int i = 0; i < 3; ++i) {
    CHECK(children::child_does([&] {
      at(*m.arena, 0) = 3.0F;
      CHECK(m.program.run(true, 1) == Program::kEnded && at(*m.arena, 64) == 3.0F);
      CHECK(children::child_does([&] { m.program.run(true, 1); }));
    }));
  }
  CHECK(m.program.run(true, 1) == Program::kEnded);
}

TEST(a_fork_amid_a_copy_is_an_error_in_the_child) {
  if (kThreadSanitizer) return;
  Lane lane;
  static std::atomic<bool> open;
  open = false;
  const auto wait = [](void*, std::size_t) noexcept {
    while (!open) std::this_thread::yield();
  };
  const std::uint64_t number = lane.submit({wait, nullptr, 0});
  CHECK(children::child_does([&] {
    CHECK_THROWS(std::runtime_error, lane.wait(number));
    lane.settle(number);
    open = true;
    lane.wait(lane.submit({wait, nullptr, 0}));
  }));
  open = true;
  lane.wait(number);
}

TEST(a_child_does_not_write_to_its_parents_file) {
  const files::Folder folder;
  ScratchFile file(folder.path(), kSize);
  CHECK(folder.content().empty());  // it has no name
  const std::vector<char> ours(kSize, 'p'), theirs(kSize, 'c');
  file.write(0, ours.data(), kSize);
  CHECK(children::child_does([&] {
    file.prepare();
    file.write(0, theirs.data(), kSize);
  }));
  std::vector<char> found(kSize);
  file.prepare();
  file.read(0, found.data(), kSize);
  CHECK(found == ours);
}

TEST(tensors_in_a_file) {
  const files::Folder folder;
  const auto arena = make_arena();
  const auto lane = std::make_shared<Lane>();
  const auto file = std::make_shared<ScratchFile>(folder.path(), Bytes{1} << 20);
  Program program(arena, {file}, {lane});
  program.copy(1, {0, 0}, {1, 1 << 19}, kSize / 2);
  program.copy(1, {1, 1 << 19}, {0, kSize / 2}, kSize / 2);
  for (Bytes i = 0; i < kSize / 2; i += 4) at(*arena, i) = static_cast<float>(i);
  program.run(true, 1);
  CHECK(std::memcmp(arena->base(), arena->base() + kSize / 2, kSize / 2) == 0);
  CHECK_THROWS(std::invalid_argument, program.copy(1, {0, 0}, {1, 1 << 20}, 64));
}

TEST(a_file_that_cannot_be_made) {
  CHECK(files::error_of([] { ScratchFile("/nowhere", 64); }) == ENOENT);
}

// -- codecs -------------------------------------------------------------------------

TEST(programs_encode_and_decode) {
  Machine m;
  const Codec& codec = memcfg::find_codec("zvc");
  const Bytes capacity = codec.bound(256);
  m.program.encode(codec, 0, 256, 512, capacity);
  m.program.decode(codec, 512, capacity, 1024, 256);
  for (Bytes i = 0; i < 256; i += 8) at(*m.arena, i) = static_cast<float>(i);
  m.program.run(true, 1);
  CHECK(std::memcmp(m.arena->base(), m.arena->base() + 1024, 256) == 0);
  m.program.run_timed(1);
  CHECK(std::memcmp(m.arena->base(), m.arena->base() + 1024, 256) == 0);
  m.program.encode(codec, 0, 256, 512, 64);
  CHECK_THROWS(memcfg::kernel_failure, m.program.run(true, 1));
  CHECK_THROWS(std::invalid_argument, m.program.encode(codec, 0, 256, kSize, 64));
}

// What does not fit is kept as it is, in the room and behind it in another space.
TEST(programs_keep_what_does_not_fit) {
  const auto arena = make_arena(), host = make_arena();
  const Codec& codec = memcfg::find_codec("zvc");
  Program program(arena, {std::make_shared<ArenaSpace>(host)});
  const std::size_t code = program.encode(codec, 0, 1024, 1024, 256, {{1, 64}});
  program.decode(codec, 1024, 256, 2048, 1024, code);
  for (const bool dense : {true, false, true}) {
    for (Bytes i = 0; i < 1024; i += 4) {
      at(*arena, i) = dense || i % 128 == 0 ? 1.0F + static_cast<float>(i) : 0.0F;
    }
    std::memset(arena->base() + 2048, 7, 1024);
    program.run(true, 1);
    CHECK(std::memcmp(arena->base(), arena->base() + 2048, 1024) == 0);
    CHECK(program.coded(code).used == (dense ? 1024 : 64 + 8 * 8));
    if (!dense) continue;
    CHECK(std::memcmp(arena->base(), arena->base() + 1024, 256) == 0);
    CHECK(std::memcmp(arena->base() + 256, host->base() + 64, 768) == 0);
  }
  CHECK(program.coded(code).runs == 3);
  CHECK(program.coded(code).raw == 2);
  // Room for the bytes, not for a header.
  const std::size_t tight = program.encode(codec, 0, 256, 1024, 256, {{1, 64}});
  program.decode(codec, 1024, 256, 2048, 256, tight);
  program.run(true, 1);
  CHECK(program.coded(tight).raw == 1);
  CHECK(std::memcmp(arena->base(), arena->base() + 2048, 256) == 0);
}

TEST(what_overflows_waits_for_copies) {
  const auto arena = make_arena(), host = make_arena();
  const Codec& codec = memcfg::find_codec("zvc");
  Program program(arena,
                  {std::make_shared<ArenaSpace>(host)},
                  {std::make_shared<Lane>(), std::make_shared<Lane>()});
  program.set_jitter(1, 2000);
  for (Bytes i = 0; i < 512; i += 4) at(*arena, i) = 1.0F + static_cast<float>(i);
  program.copy(1, {0, 0}, {1, 0}, 512);  // where the overflow goes
  const std::size_t code = program.encode(codec, 0, 512, 1024, 64, {{1, 64}});
  program.copy(2, {1, 64}, {0, 3072}, 448);
  program.decode(codec, 1024, 64, 2048, 512, code);
  program.run(true, 1);
  CHECK(std::memcmp(arena->base(), arena->base() + 2048, 512) == 0);
  CHECK(std::memcmp(arena->base() + 64, arena->base() + 3072, 448) == 0);
}

TEST(wrong_overflows_are_refused) {
  const auto arena = make_arena(), host = make_arena();
  const Codec &codec = memcfg::find_codec("zvc"), &other = memcfg::find_codec("rle");
  Program program(arena, {std::make_shared<ArenaSpace>(host)});
  const auto refused = [&](Program::Place place) {
    CHECK_THROWS(std::invalid_argument,
                 program.encode(codec, 0, 1024, 1024, 64, place));
  };
  refused({0, 2048});
  refused({2, 0});
  refused({1, 32});
  refused({1, kSize - 64});
  const std::size_t code = program.encode(codec, 0, 1024, 1024, 64, {{1, 0}});
  const auto fails = [&](const Codec& by, Offset from, Bytes room, Bytes size) {
    CHECK_THROWS(std::invalid_argument,
                 program.decode(by, from, room, 2048, size, code));
  };
  fails(other, 1024, 64, 1024);
  fails(codec, 1088, 64, 1024);
  fails(codec, 1024, 128, 1024);
  fails(codec, 1024, 64, 960);
  CHECK_THROWS(std::invalid_argument, program.decode(codec, 1024, 64, 2048, 64, 9));
  CHECK_THROWS(std::invalid_argument, program.coded(9));
}

TEST(lanes_encode_what_they_copy) {
  constexpr Bytes kLarge = 1 << 18;
  auto arena = std::make_shared<Arena>(std::make_shared<Pool>("cpu"), 1 << 20, "model");
  auto host = std::make_shared<Arena>(std::make_shared<Pool>("cpu"), 1 << 20, "host");
  arena->grow(3 * kLarge);
  host->grow(kLarge + 64);
  const Codec& codec = memcfg::find_codec("zvc");
  Program program(arena,
                  {std::make_shared<ArenaSpace>(host)},
                  {std::make_shared<Lane>(1e6), std::make_shared<Lane>(1e6)});
  const std::size_t out =
      program.copy_encoded(1, codec, 0, kLarge, {1, 0}, kLarge + 64);
  program.copy_decoded(2, out, 2 * kLarge);
  const auto took = [&] {
    const auto begin = std::chrono::steady_clock::now();
    program.run(true, 1);
    CHECK(std::memcmp(arena->base(), arena->base() + 2 * kLarge, kLarge) == 0);
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin)
        .count();
  };
  for (Bytes i = 0; i < kLarge; i += 4) at(*arena, i) = i % 32 == 0 ? 1.0F : 0.0F;
  took();
  const Bytes used = 64 + kLarge / 128 * 4 + kLarge / 32 * 4;
  CHECK(program.coded(out).used == used);
  CHECK(program.coded(out).raw == 0);
  for (Bytes i = 0; i < kLarge; i += 4) at(*arena, i) = 1.0F + static_cast<float>(i);
  CHECK(took() >= 2 * static_cast<double>(kLarge) / 1e6);
  CHECK(program.coded(out).used == kLarge);  // as it is, without a header
  CHECK(program.coded(out).raw == 1);
  CHECK(std::memcmp(arena->base(), host->base(), kLarge) == 0);
}

TEST(wrong_coded_copies_are_refused) {
  const auto arena = make_arena(), host = make_arena();
  const Codec& codec = memcfg::find_codec("zvc");
  Program program(arena,
                  {std::make_shared<ArenaSpace>(host), std::make_shared<Remote>()},
                  {std::make_shared<Lane>()});
  const auto refused = [&](std::size_t queue, Program::Place to, Bytes capacity) {
    CHECK_THROWS(std::invalid_argument,
                 program.copy_encoded(queue, codec, 0, 256, to, capacity));
  };
  refused(0, {1, 0}, 320);
  refused(2, {1, 0}, 320);
  refused(1, {0, 1024}, 320);
  refused(1, {2, 0}, 320);  // no addresses
  refused(1, {1, 0}, 319);
  refused(1, {1, kSize - 256}, 320);
  const std::size_t here = program.encode(codec, 0, 256, 1024, 320);
  CHECK_THROWS(std::invalid_argument, program.copy_decoded(1, here, 2048));
  const std::size_t out = program.copy_encoded(1, codec, 0, 256, {1, 0}, 320);
  CHECK_THROWS(std::invalid_argument, program.copy_decoded(0, out, 2048));
  CHECK_THROWS(std::invalid_argument, program.copy_decoded(1, out, kSize));
  CHECK_THROWS(std::invalid_argument, program.copy_decoded(1, out + 1, 0));
}
