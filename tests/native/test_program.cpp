#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <limits>
#include <memory>
#include <new>
#include <optional>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "check.hpp"
#include "memcfg/program.hpp"

using memcfg::Arena;
using memcfg::Bytes;
using memcfg::CallbackKernel;
using memcfg::Kernel;
using memcfg::Pool;
using memcfg::Program;

namespace {

std::atomic<int> allocations{0};  // calls of operator new in this program

}  // namespace

// Not inlined: the compiler would see malloc and delete, or new and free, as
// mismatched.
[[gnu::noinline]] void* operator new(std::size_t size) {
  ++allocations;
  if (void* const memory = std::malloc(size)) return memory;
  throw std::bad_alloc();
}
[[gnu::noinline]] void* operator new(std::size_t size, const std::nothrow_t&) noexcept {
  ++allocations;
  return std::malloc(size);
}
[[gnu::noinline]] void operator delete(void* memory) noexcept {
  std::free(memory);
}
[[gnu::noinline]] void operator delete(void* memory, std::size_t) noexcept {
  std::free(memory);
}

namespace {

constexpr Bytes kSize = 1024;  // bytes of the arena

// y = x + 1; notes its scratch.
class AddOne final : public Kernel {
 public:
  explicit AddOne(Bytes scratch = 0)
      : Kernel({{sizeof(float)}, {sizeof(float)}}), scratch_(scratch) {}
  Bytes scratch_bytes() const noexcept override { return scratch_; }
  void run(void* const* operands, void* scratch, RunState*) const override {
    *static_cast<float*>(operands[1]) = *static_cast<float*>(operands[0]) + 1.0F;
    seen = scratch;
  }
  mutable void* seen = nullptr;

 private:
  Bytes scratch_;
};

class Fails final : public Kernel {
 public:
  void run(void* const*, void*, RunState*) const override {
    throw std::out_of_range("no such row");
  }
};

std::shared_ptr<Arena> make_arena() {
  auto arena = std::make_shared<Arena>(std::make_shared<Pool>("cpu"), 1 << 20, "model");
  arena->grow(kSize);
  return arena;
}

float& at(Arena& arena, Bytes offset) {
  return *reinterpret_cast<float*>(arena.base() + offset);
}

}  // namespace

TEST(runs_in_order) {
  const auto arena = make_arena();
  Program program(arena);
  for (int i = 0; i < 3; ++i) {
    program.compute(std::make_shared<AddOne>(), {0, 64}, {4, 4}, std::nullopt);
    program.compute(std::make_shared<AddOne>(), {64, 0}, {4, 4}, std::nullopt);
  }
  CHECK(program.run(true, 0) == Program::kEnded && at(*arena, 0) == 6.0F);
  CHECK(program.run(true, 1) == Program::kEnded && at(*arena, 0) == 12.0F);
  CHECK(program.size() == 6);
}

TEST(running_takes_no_memory) {
  Program program(make_arena());
  program.compute(std::make_shared<AddOne>(), {0, 64}, {4, 4}, std::nullopt);
  program.guard(64);
  const std::size_t x = program.input({{0, 0}}, 4);
  alignas(64) const float batch[16] = {};
  const int before = allocations;
  for (int i = 0; i < 100; ++i) {
    program.bind(x, batch, 4);
    program.run(true, 1);
    program.unbind(x);
  }
  CHECK(allocations == before);
  CHECK(before > 0);
}

TEST(empty_program_ends) {
  Program program(make_arena());
  CHECK(program.run(true, 0) == Program::kEnded && program.run_timed(0).empty());
}

TEST(operands_stay_after_growth) {
  const auto arena = make_arena();
  Program program(arena);
  program.compute(std::make_shared<AddOne>(), {0, 64}, {4, 4}, std::nullopt);
  arena->grow(1 << 20);
  program.compute(std::make_shared<AddOne>(), {64, 1 << 19}, {4, 4}, std::nullopt);
  CHECK(program.run(true, 0) == Program::kEnded && at(*arena, 1 << 19) == 2.0F);
}

TEST(places_are_checked) {
  const auto arena = make_arena();
  Program program(arena);
  const auto add = std::make_shared<AddOne>();
  const auto refused = [&](Bytes offset, Bytes size) {
    CHECK_THROWS(std::invalid_argument,
                 program.compute(add, {0, offset}, {4, size}, std::nullopt));
  };
  refused(kSize - 64, 65);
  refused(kSize, 1);
  refused(kSize + 64, 0);
  refused(4, 4);
  refused(memcfg::kNoLimit - 63, 64);
  refused(0, memcfg::kNoLimit);
  CHECK_THROWS(std::invalid_argument, program.guard(kSize));
  CHECK_THROWS(std::invalid_argument, program.guard(4));
  CHECK_THROWS(std::invalid_argument, program.compute(add, {0}, {}, std::nullopt));
  CHECK_THROWS(std::invalid_argument, program.compute(nullptr, {}, {}, std::nullopt));
  CHECK(program.size() == 0 && program.run(true, 0) == Program::kEnded);
  program.compute(add, {0, kSize - 64}, {4, 64}, std::nullopt);
}

TEST(operands_are_as_many_and_as_large_as_the_kernel_needs) {
  const auto arena = make_arena();
  Program program(arena);
  const auto add = std::make_shared<AddOne>();
  const auto refused = [&](const std::vector<Bytes>& sizes) {
    const std::vector<Program::Place> places(sizes.size(), 64);
    CHECK_THROWS(std::invalid_argument,
                 program.compute(add, places, sizes, std::nullopt));
  };
  refused({});
  refused({4});
  refused({4, 4, 4});
  refused({4, 3});
  refused({0, 4});
  CHECK_THROWS(std::invalid_argument, program.compute(add, {0}, {4, 4}, std::nullopt));
  CHECK(program.size() == 0);
  program.compute(add, {0, 64}, {4, 64}, std::nullopt);
  CHECK_THROWS(std::invalid_argument, program.input({{0, 0}}, 3));
}

// Kernels are shared; what their runs change is each program's own.
TEST(each_program_has_states_of_its_own) {
  struct Counts final : Kernel {
    struct Count final : RunState {
      int runs = 0;
    };
    std::unique_ptr<RunState> make_run_state() const override {
      return std::make_unique<Count>();
    }
    void run(void* const*, void*, RunState* state) const override {
      most = std::max(most, ++static_cast<Count*>(state)->runs);
    }
    mutable int most = 0;
  };
  const auto kernel = std::make_shared<Counts>();
  Program first(make_arena()), second(make_arena());
  for (Program* program : {&first, &first, &second}) {
    program->compute(kernel, {}, {}, std::nullopt);
  }
  second.run(true, 0);
  CHECK(kernel->most == 1);
  first.run(true, 0);
  CHECK(kernel->most == 2);
  second.run(true, 0);
  CHECK(kernel->most == 2);
}

TEST(bound_inputs_are_read_elsewhere) {
  const auto arena = make_arena();
  Program program(arena);
  program.compute(std::make_shared<AddOne>(), {0, 64}, {4, 4}, std::nullopt);
  program.guard(64);
  program.compute(std::make_shared<AddOne>(), {64, 0}, {4, 4}, std::nullopt);
  program.compute(std::make_shared<AddOne>(), {0, 128}, {4, 4}, std::nullopt);
  const std::size_t x = program.input({{0, 0}}, 4);
  alignas(64) const float batch[16] = {10.0F};
  at(*arena, 0) = 1.0F;
  CHECK(program.bind(x, batch, 4) && program.run(true, 0) == Program::kEnded);
  // The room of the input is another tensor's by then, as in a plan.
  CHECK(at(*arena, 64) == 11.0F && at(*arena, 0) == 12.0F && batch[0] == 10.0F);
  CHECK(at(*arena, 128) == 13.0F);
  CHECK(program.run_timed(0).size() == 4 && at(*arena, 64) == 11.0F);
  program.unbind(x);
  program.unbind(x);
  at(*arena, 0) = 1.0F;
  CHECK(program.run(true, 0) == Program::kEnded && at(*arena, 64) == 2.0F);
}

TEST(all_operands_of_an_input_are_bound) {
  const auto arena = make_arena();
  Program program(arena);
  program.compute(std::make_shared<AddOne>(), {0, 64}, {4, 4}, std::nullopt);
  program.compute(std::make_shared<AddOne>(), {0, 128}, {4, 4}, std::nullopt);
  program.compute(std::make_shared<AddOne>(), {192, 256}, {4, 4}, std::nullopt);
  const std::size_t x = program.input({{0, 0}, {1, 0}}, 4);
  const std::size_t y = program.input({{2, 0}}, 4);
  alignas(64) const float first[16] = {5.0F};
  alignas(64) const float second[16] = {7.0F};
  CHECK(program.bind(x, first, 4) && program.bind(y, second, 4));
  program.run(true, 0);
  CHECK(at(*arena, 64) == 6.0F && at(*arena, 128) == 6.0F && at(*arena, 256) == 8.0F);
  CHECK(program.bind(x, second, 4));
  program.run(true, 0);
  CHECK(at(*arena, 64) == 8.0F && at(*arena, 128) == 8.0F);
}

TEST(what_cannot_be_bound_is_not) {
  const auto arena = make_arena();
  Program program(arena);
  program.compute(std::make_shared<AddOne>(), {0, 64}, {4, 4}, std::nullopt);
  const std::size_t x = program.input({{0, 0}}, 4);
  alignas(64) const float batch[32] = {5.0F};
  CHECK(!program.bind(x, batch + 1, 4) && !program.bind(x, batch, 8));
  CHECK(!program.bind(x, arena->base() + 64, 4));
  CHECK(!program.bind(x, arena->base() + arena->capacity() - 64, 4));
  CHECK(program.bind(x, batch + 16, 4) && program.bind(x, batch, 4));
  CHECK(!program.bind(x, batch + 1, 4));
  CHECK(program.run(true, 0) == Program::kEnded && at(*arena, 64) == 6.0F);

  using Operands = std::vector<Program::Operand>;
  for (const Operands& wrong : {Operands{}, {{0, 2}}, {{1, 0}}, {{0, 0}, {0, 1}}}) {
    CHECK_THROWS(std::invalid_argument, program.input(wrong, 4));
  }
  CHECK_THROWS(std::invalid_argument, program.bind(x + 1, batch, 4));
  CHECK_THROWS(std::invalid_argument, program.unbind(x + 1));
}

TEST(operands_added_later_leave_inputs_as_they_are) {
  const auto arena = make_arena();
  Program program(arena);
  program.compute(std::make_shared<AddOne>(), {0, 64}, {4, 4}, std::nullopt);
  const std::size_t x = program.input({{0, 0}}, 4);
  alignas(64) const float batch[16] = {5.0F};
  CHECK(program.bind(x, batch, 4));
  for (int i = 0; i < 100; ++i) {
    program.compute(std::make_shared<AddOne>(), {64, 64}, {4, 4}, std::nullopt);
  }
  program.run(true, 0);
  CHECK(at(*arena, 64) == 106.0F);
  program.unbind(x);
  program.run(true, 0);
  CHECK(at(*arena, 64) == 101.0F);
}

TEST(scratch_is_checked_and_passed) {
  const auto arena = make_arena();
  Program program(arena);
  const auto add = std::make_shared<AddOne>(128);
  CHECK_THROWS(std::invalid_argument,
               program.compute(add, {0, 0}, {4, 4}, std::nullopt));
  CHECK_THROWS(std::invalid_argument, program.compute(add, {0, 0}, {4, 4}, kSize - 64));
  program.compute(add, {0, 0}, {4, 4}, kSize - 128);
  program.run(true, 0);
  CHECK(add->seen == arena->base() + kSize - 128);
  const auto without = std::make_shared<AddOne>();
  program.compute(without, {0, 0}, {4, 4}, 0);
  program.run(true, 0);
  CHECK(without->seen == nullptr);
}

TEST(guards_stop_on_what_is_not_finite) {
  const auto arena = make_arena();
  Program program(arena);
  program.compute(std::make_shared<AddOne>(), {0, 64}, {4, 4}, std::nullopt);
  program.guard(64);
  program.compute(std::make_shared<AddOne>(), {64, 128}, {4, 4}, std::nullopt);
  using Float = std::numeric_limits<float>;
  for (const float bad : {Float::quiet_NaN(), Float::infinity(), -Float::infinity()}) {
    at(*arena, 0) = bad;
    at(*arena, 128) = 5.0F;
    CHECK(program.run(true, 0) == 1 && at(*arena, 128) == 5.0F);
    CHECK(program.run(false, 0) == Program::kEnded && at(*arena, 128) != 5.0F);
  }
  at(*arena, 0) = Float::max();
  CHECK(program.run(true, 0) == Program::kEnded);
  CHECK(program.run_timed(0).size() == 3);
}

TEST(failures_name_the_instruction) {
  Program program(make_arena());
  program.guard(0);
  program.compute(std::make_shared<Fails>(), {}, {}, std::nullopt);
  for (int round = 0; round < 2; ++round) {  // the program is free again afterwards
    try {
      program.run(true, 0);
      CHECK(false);
    } catch (const memcfg::kernel_failure& error) {
      CHECK(std::string(error.what()) == "instruction 1 failed: no such row");
    }
  }
  CHECK_THROWS(memcfg::kernel_failure, program.run_timed(0));
}

TEST(buffers_are_allocated_and_freed_in_a_run) {
  const auto pool = std::make_shared<Pool>("cpu");
  const auto arena = make_arena();
  Program program(arena);
  const auto add_buffer = [&](Bytes size) {
    return program.add_buffer(
        std::make_shared<memcfg::BufferSpace>(pool, size, "step"));
  };
  const std::size_t middle = add_buffer(100), last = add_buffer(128);
  const auto drop_all = [&] {
    program.drop(middle);
    program.drop(last);
  };
  const std::size_t allocation = program.allocate(middle);
  const auto first = std::make_shared<AddOne>(64);
  program.allocate(last);
  program.compute(first, {0, {middle, 64}}, {4, 4}, Program::Place{last, 64});
  program.compute(
      std::make_shared<AddOne>(), {{middle, 64}, {last, 0}}, {4, 4}, std::nullopt);
  program.free(middle);
  program.guard({last, 0});
  CHECK_THROWS(std::invalid_argument,
               program.compute(first, {0, {middle, 64}}, {4, 64}, {0}));
  CHECK_THROWS(std::invalid_argument, program.allocate(0));
  CHECK_THROWS(std::invalid_argument, program.free(9));
  CHECK(pool->stats().current == 0);
  for (int run = 0; run < 3; ++run) {
    CHECK(program.run(true, 0) == Program::kEnded);
    const auto kept = program.buffer(last);
    CHECK(program.buffer(middle) == nullptr && kept != nullptr);
    CHECK(*reinterpret_cast<float*>(kept->data()) == 2.0F);
    CHECK(first->seen == kept->data() + 64);
    CHECK(pool->stats().current == 128);
    std::vector<Bytes> in_use;
    program.run_timed(0, pool.get(), &in_use);
    CHECK((in_use == std::vector<Bytes>{128, 256, 256, 256, 256, 128}));
    drop_all();
    CHECK(pool->stats().current == 128);  // it is kept
    program.take(last, false);
    CHECK(program.buffer(last) != kept && pool->stats().current == 256);
    drop_all();
  }
  CHECK(pool->stats().current == 0);
  for (const bool fault : {true, false}) {
    if (fault) program.fail_at(allocation);
    if (!fault) pool->set_limit(128);
    CHECK_THROWS(memcfg::out_of_memory, program.run(true, 0));
    CHECK(program.failed_at() == (fault ? allocation : allocation + 1));
    program.fail_at(Program::kNone);
    drop_all();
    CHECK(pool->stats().current == 0);
  }
}

TEST(inputs_in_buffers_are_read_elsewhere) {
  const auto pool = std::make_shared<Pool>("cpu");
  const auto arena = make_arena();
  Program program(arena);
  const std::size_t x =
      program.add_buffer(std::make_shared<memcfg::BufferSpace>(pool, 64, "step"));
  program.compute(std::make_shared<AddOne>(), {{x, 0}, 0}, {4, 4}, std::nullopt);
  const std::size_t input = program.input({{0, 0}}, 4);
  alignas(64) float batch[16] = {6.0F};
  CHECK(program.bind(input, batch, 4));
  program.take(x, true);
  const auto taken = program.buffer(x);
  CHECK(!program.bind(input, taken->data(), 4));
  CHECK(program.run(true, 0) == Program::kEnded && at(*arena, 0) == 7.0F);
  program.unbind(input);
  *reinterpret_cast<float*>(taken->data()) = 1.0F;
  CHECK(program.run(true, 0) == Program::kEnded && at(*arena, 0) == 2.0F);
}

TEST(callbacks_run_and_stop) {
  Program program(make_arena());
  int calls = 0;
  const auto count = [](void* context, void* const*, void*) {
    return ++*static_cast<int*>(context) < 3 ? 0 : -1;
  };
  program.compute(
      std::make_shared<CallbackKernel>(count, &calls), {}, {}, std::nullopt);
  CHECK(program.run(true, 0) == Program::kEnded && program.run_timed(0).size() == 1);
  CHECK_THROWS(memcfg::callback_raised, program.run(true, 0));
  CHECK(calls == 3);
}

TEST(program_keeps_arena_and_kernels) {
  auto arena = make_arena();
  auto kernel = std::make_shared<AddOne>();
  const std::weak_ptr<Kernel> weak = kernel;
  {
    Program program(arena);
    program.compute(kernel, {0, 0}, {4, 4}, std::nullopt);
    kernel.reset();
    CHECK_THROWS(memcfg::still_held, arena->free());
    CHECK(!weak.expired() && program.run(true, 0) == Program::kEnded);
  }
  CHECK(weak.expired());
  arena->free();
  CHECK_THROWS(std::invalid_argument, Program(arena));
}

TEST(one_thread_at_a_time) {
  Program program(make_arena());
  struct Gate {
    std::atomic<bool> entered{false};
    std::atomic<bool> open{false};
  } barrier;
  const auto wait = [](void* context, void* const*, void*) {
    auto* const barrier = static_cast<Gate*>(context);
    barrier->entered = true;
    while (!barrier->open) std::this_thread::yield();
    return 0;
  };
  program.compute(
      std::make_shared<CallbackKernel>(wait, &barrier), {}, {}, std::nullopt);
  std::thread runner([&] { program.run(true, 0); });
  while (!barrier.entered) std::this_thread::yield();
  const auto attempt = [&](auto&& call) {
    try {
      call();
    } catch (const std::runtime_error&) {
      return true;
    }
    return false;
  };
  alignas(64) const float batch[16] = {};
  const bool refused = attempt([&] { program.run(true, 0); }) &&
                       attempt([&] { program.run_timed(0); }) &&
                       attempt([&] { program.guard(0); }) &&
                       attempt([&] { program.input({{0, 0}}, 4); }) &&
                       attempt([&] { program.bind(0, batch, 4); }) &&
                       attempt([&] { program.unbind(0); });
  barrier.open = true;
  runner.join();
  CHECK(refused && program.size() == 1);
  CHECK(program.run(true, 0) == Program::kEnded);
}

TEST(threads_with_arenas_of_their_own) {
  std::vector<std::shared_ptr<Arena>> arenas;
  for (int lane = 0; lane < 4; ++lane) arenas.push_back(make_arena());
  std::vector<std::thread> threads;
  for (const auto& arena : arenas) {
    threads.emplace_back([arena] {
      Program program(arena);
      program.compute(std::make_shared<AddOne>(), {0, 0}, {4, 4}, std::nullopt);
      for (int step = 0; step < 100; ++step) program.run(true, 0);
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const auto& arena : arenas) CHECK(at(*arena, 0) == 100.0F);
}

TEST(programs_of_one_arena_take_turns) {
  const auto arena = make_arena();
  Program inner(arena);
  inner.compute(std::make_shared<AddOne>(), {0, 0}, {4, 4}, std::nullopt);
  Program outer(arena);
  const auto nested = [](void* program, void* const*, void*) {
    static_cast<Program*>(program)->run(true, 0);
    return 0;
  };
  outer.compute(std::make_shared<CallbackKernel>(nested, &inner), {}, {}, std::nullopt);
  CHECK_THROWS(memcfg::kernel_failure, outer.run(true, 0));
  CHECK(at(*arena, 0) == 0.0F && inner.run(true, 0) == Program::kEnded);
}
