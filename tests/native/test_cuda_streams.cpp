// Work of a GPU that is none: its order, its graphs, and what fails.
#include <array>
#include <atomic>
#include <chrono>
#include <cstring>
#include <map>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "check.hpp"
#include "children.hpp"
#include "memcfg/cuda_stream.hpp"
#include "memcfg/error.hpp"
#include "memcfg/host_limits.hpp"
#include "stacks.hpp"

using cuda_stand_in::gpu;
using memcfg::Bytes;
using memcfg::CudaContext;
using memcfg::CudaDriver;
using memcfg::CudaEvent;
using memcfg::CudaFunction;
using memcfg::CudaGraph;
using memcfg::CudaModule;
using memcfg::CudaStream;
using memcfg::Pool;
using memcfg::cuda::Address;
using memcfg::cuda::Status;

namespace {

constexpr Bytes kMiB = Bytes{1} << 20;

// y[i] = a * y[i] + x[i], over bytes.
void scale_and_add(const unsigned* grid,
                   const unsigned* block,
                   void* const* arguments) {
  auto* const y = *static_cast<unsigned char**>(arguments[0]);
  const auto* const x = *static_cast<unsigned char**>(arguments[1]);
  const int a = *static_cast<int*>(arguments[2]);
  const unsigned count = grid[0] * block[0];
  for (unsigned i = 0; i < count; ++i)
    y[i] = static_cast<unsigned char>(a * y[i] + x[i]);
}
constexpr std::size_t kSizes[] = {8, 8, 4};

std::shared_ptr<const CudaContext> make_context() {
  gpu().kernels["scale_and_add"] = {scale_and_add, 3, kSizes};
  return std::make_shared<CudaContext>(
      std::make_shared<CudaDriver>(cuda_stand_in::api()), 0);
}

struct Memory {
  explicit Memory(const std::shared_ptr<const CudaContext>& context)
      : pool(std::make_shared<Pool>(
            "GPU:0", 64 * kMiB, true, memcfg::make_cuda_resource("", context))),
        pinned(std::make_shared<Pool>(
            "pinned", 8 * kMiB, true, memcfg::make_pinned_resource("", context))) {}
  std::shared_ptr<Pool> pool, pinned;
};

// Blocks of a pool, which go back with it.
class Blocks {
 public:
  explicit Blocks(std::shared_ptr<Pool> pool) : pool_(std::move(pool)) {}
  ~Blocks() {
    for (const auto& [address, size] : rows_) {
      pool_->deallocate(reinterpret_cast<void*>(address), size);
    }
  }
  Blocks(const Blocks&) = delete;
  Blocks& operator=(const Blocks&) = delete;
  Address take(Bytes size) {
    const auto address = reinterpret_cast<std::uintptr_t>(pool_->allocate({size}));
    rows_[address] = size;
    return address;
  }

 private:
  std::shared_ptr<Pool> pool_;
  std::map<Address, Bytes> rows_;
};

struct Kernels {
  explicit Kernels(const std::shared_ptr<const CudaContext>& context)
      : module(std::make_shared<CudaModule>(context, "kernels")),
        function(module, "scale_and_add") {}

  void launch(CudaStream& stream, Address y, Address x, int a, unsigned count) const {
    void* arguments[] = {&y, &x, &a};
    stream.launch(function, {count, 1, 1}, {1, 1, 1}, 0, arguments);
  }

  std::shared_ptr<const CudaModule> module;
  CudaFunction function;
};

unsigned char* bytes_of(Address address) {
  return reinterpret_cast<unsigned char*>(static_cast<std::uintptr_t>(address));
}

// Random work over buffers of the device and of the host, on several streams. With
// events between those that touch the same buffer it does what it would do in a row.
class RandomWork {
 public:
  static constexpr unsigned kBuffers = 6;  // the first two are pinned
  static constexpr unsigned kSize = 48;    // bytes of each

  struct Step {
    unsigned stream, kind, to, from;
    int number;
  };

  RandomWork(const std::shared_ptr<const CudaContext>& context, unsigned seed)
      : context_(context),
        memory_(context),
        device_(memory_.pool),
        host_(memory_.pinned),
        kernels_(context),
        random_(seed) {
    for (unsigned i = 0; i < 3; ++i) {
      streams_.push_back(std::make_unique<CudaStream>(context, 0));
    }
    for (unsigned i = 0; i < kBuffers; ++i) {
      buffers_[i] = i < 2 ? host_.take(kSize) : device_.take(kSize);
      expected_[i].fill(static_cast<unsigned char>(i + 1));
      if (i < 2) {
        std::memset(bytes_of(buffers_[i]), expected_[i][0], kSize);
      } else {
        streams_[0]->fill(buffers_[i], expected_[i][0], kSize);
      }
    }
    streams_[0]->synchronize();
  }

  std::vector<Step> steps(std::size_t count) {
    std::vector<Step> made(count);
    for (Step& step : made) {
      step.stream = pick() % 3;
      step.kind = pick() % 3;
      step.from = pick() % kBuffers;
      do {
        step.to = pick() % kBuffers;
      } while (step.to == step.from);
      if (step.kind > 0) step.to = 2 + step.to % 4;  // a fill, a kernel: the device's
      if (step.kind > 1) step.from = 2 + step.from % 4;
      step.number = static_cast<int>(pick() % 200);
    }
    return made;
  }

  void model(const std::vector<Step>& steps) {
    for (const Step& step : steps) {
      auto& to = expected_[step.to];
      const auto from = expected_[step.from];
      if (step.kind == 0) to = from;
      if (step.kind == 1) to.fill(static_cast<unsigned char>(step.number));
      if (step.kind < 2) continue;
      for (unsigned i = 0; i < kSize; ++i) {
        const int x = step.to == step.from ? to[i] : from[i];
        to[i] = static_cast<unsigned char>(step.number * to[i] + x);
      }
    }
  }

  void issue(const std::vector<Step>& steps, bool ordered = true) {
    std::array<std::map<unsigned, std::unique_ptr<CudaEvent>>, kBuffers> users;
    for (const Step& step : steps) {
      CudaStream& stream = *streams_[step.stream];
      for (const unsigned buffer : {step.to, step.from}) {
        if (!ordered) continue;
        for (const auto& [other, event] : users[buffer]) {
          if (other != step.stream) stream.wait(*event);
        }
      }
      if (step.kind == 0) stream.copy(buffers_[step.to], buffers_[step.from], kSize);
      if (step.kind == 1) {
        stream.fill(buffers_[step.to], static_cast<unsigned char>(step.number), kSize);
      }
      if (step.kind == 2) {
        kernels_.launch(
            stream, buffers_[step.to], buffers_[step.from], step.number, kSize);
      }
      for (const unsigned buffer : {step.to, step.from}) {
        auto& event = users[buffer][step.stream];
        event = std::make_unique<CudaEvent>(context_, false);
        stream.record(*event);
      }
    }
  }

  std::unique_ptr<CudaGraph> capture(const std::vector<Step>& steps) {
    CudaEvent event(context_, false);
    streams_[0]->begin_capture();
    streams_[0]->record(event);
    for (unsigned i : {1U, 2U}) streams_[i]->wait(event);
    issue(steps);
    for (unsigned i : {1U, 2U}) {
      CudaEvent ended(context_, false);
      streams_[i]->record(ended);
      streams_[0]->wait(ended);
    }
    return streams_[0]->end_capture();
  }

  void synchronize() {
    for (const auto& stream : streams_) stream->synchronize();
  }

  bool right() {
    synchronize();
    const Address found = host_.take(kSize);
    for (unsigned i = 0; i < kBuffers; ++i) {
      streams_[0]->copy(found, buffers_[i], kSize);
      streams_[0]->synchronize();
      if (std::memcmp(bytes_of(found), expected_[i].data(), kSize) != 0) return false;
    }
    return true;
  }

  CudaStream& stream() { return *streams_[0]; }

 private:
  unsigned pick() { return static_cast<unsigned>(random_()); }

  std::shared_ptr<const CudaContext> context_;
  Memory memory_;
  Blocks device_, host_;
  Kernels kernels_;
  std::mt19937 random_;
  std::vector<std::unique_ptr<CudaStream>> streams_;
  std::array<Address, kBuffers> buffers_{};
  std::array<std::array<unsigned char, kSize>, kBuffers> expected_{};
};

// Whether an action fails as a driver's call does, with these words.
template <typename Act>
bool fails(Act act, const char* words) {
  try {
    act();
  } catch (const memcfg::kernel_failure& error) {
    if (std::strstr(error.what(), words) != nullptr) return true;
    std::printf("it says: %s\n", error.what());
  }
  return false;
}

}  // namespace

TEST(work_is_done_in_the_order_of_streams_and_events) {
  for (unsigned seed = 0; seed < 30; ++seed) {
    {
      RandomWork work(make_context(), seed);
      gpu().random.seed(seed + 1);
      const auto steps = work.steps(25);
      work.issue(steps);
      work.model(steps);
      CHECK(work.right());
    }
    CHECK(gpu().all_back());
  }
}

// The stand-in finds it when an event is missing.
TEST(without_events_the_order_is_any) {
  unsigned wrong = 0;
  for (unsigned seed = 0; seed < 10; ++seed) {
    RandomWork work(make_context(), seed);
    gpu().random.seed(seed + 1);
    const auto steps = work.steps(25);
    work.issue(steps, false);
    work.model(steps);
    wrong += !work.right();
  }
  CHECK(wrong > 5);
}

TEST(a_graph_does_what_was_captured_whenever_it_is_launched) {
  for (unsigned seed = 0; seed < 30; ++seed) {
    {
      RandomWork work(make_context(), seed);
      gpu().random.seed(seed + 1);
      const auto steps = work.steps(20);
      const auto graph = work.capture(steps);
      CHECK(graph->nodes() == 20);
      CHECK(work.right());  // nothing has been done
      for (int i = 0; i < 3; ++i) {
        work.stream().launch(*graph);
        work.model(steps);
      }
      CHECK(work.right());
      const auto others = work.steps(10);
      work.issue(others);
      work.model(others);
      CHECK(work.right());
    }
    CHECK(gpu().all_back());
  }
}

TEST(events_tell_what_is_done) {
  const auto context = make_context();
  Memory memory(context);
  Blocks device(memory.pool);
  const Address block = device.take(kMiB);
  CudaStream stream(context, 0);
  CudaEvent begun(context, true);
  CudaEvent ended(context, true);
  CudaEvent untimed(context, false);
  CHECK(begun.done() && stream.done());
  begun.synchronize();
  stream.record(begun);
  stream.fill(block, 1, kMiB);
  stream.record(ended);
  stream.record(untimed);
  CHECK(!ended.done());
  CHECK(fails([&] { ended.seconds_since(begun); }, "cuEventElapsedTime"));
  while (!ended.done()) {
  }
  const double seconds = ended.seconds_since(begun);
  CHECK(seconds >= 0 && seconds < 10);
  CHECK(fails([&] { untimed.seconds_since(begun); }, "cuEventElapsedTime"));
  untimed.synchronize();
  CHECK(stream.done() && stream.handle() != nullptr);
}

TEST(a_context_tells_priorities_and_memory) {
  const auto context = make_context();
  CHECK(context->priorities().least == 0 && context->priorities().greatest < 0);
  CHECK(context->memory().free == gpu().memory);
  Memory memory(context);
  Blocks device(memory.pool);
  device.take(3 * kMiB);
  CHECK(context->memory().free == gpu().memory - 4 * kMiB);
  CHECK(context->memory().total == gpu().memory);
  context->synchronize();
}

TEST(pinned_memory_counts_as_the_host_s) {
  const auto before = memcfg::host_limits();
  const Bytes tracked = memcfg::tracked_bytes();
  {
    const auto context = make_context();
    Memory memory(context);
    CHECK(memory.pinned->touchable() && !memory.pool->touchable());
    {
      Blocks host(memory.pinned);
      const Address block = host.take(kMiB);
      std::memset(bytes_of(block), 1, kMiB);
      CHECK(gpu().pinned.size() == 1 && gpu().used == 0);
      CHECK(memcfg::tracked_bytes() >= tracked + kMiB);
      memory.pinned->check();
      memcfg::HostLimits limits = before;
      limits.tracked = memcfg::tracked_bytes() + kMiB;
      memcfg::set_host_limits(limits);
      CHECK_THROWS(memcfg::out_of_memory, host.take(2 * kMiB));
      memcfg::set_host_limits(before);
      CHECK_THROWS(memcfg::out_of_memory, host.take(8 * kMiB));
    }
    memory.pinned->trim(0);
    CHECK(gpu().pinned.empty() && memcfg::tracked_bytes() == tracked);
  }
  CHECK(gpu().all_back());
}

TEST(pinned_memory_goes_when_no_work_uses_it) {
  const auto context = make_context();
  Memory memory(context);
  Blocks device(memory.pool);
  CudaStream stream(context, 0);
  const Address block = device.take(kMiB);
  {
    Blocks host(memory.pinned);
    stream.copy(host.take(kMiB), block, kMiB);
  }
  CHECK(gpu().pending());
  memory.pinned->trim(0);
  CHECK(!gpu().pending() && gpu().pinned.empty());
}

TEST(modules_have_kernels) {
  const auto context = make_context();
  const Kernels kernels(context);
  CHECK(fails([&] { CudaModule(context, "/none"); }, "CUDA_ERROR_INVALID_IMAGE"));
  CHECK(fails([&] { CudaFunction(kernels.module, "none"); }, "no kernel 'none'"));
  Memory memory(context);
  Blocks device(memory.pool);
  CudaStream stream(context, 0);
  Address y = device.take(64);
  Address x = device.take(64);
  int a = 2;
  stream.fill(y, 3, 64);
  stream.fill(x, 1, 64);
  void* arguments[] = {&y, &x, &a};
  stream.launch(kernels.function, {64, 1, 1}, {1, 1, 1}, 200 << 10, arguments);
  stream.launch(kernels.function, {64, 1, 1}, {1, 1, 1}, 100 << 10, arguments);
  a = 99;  // arguments were copied
  const auto launch = [&](std::array<unsigned, 3> grid,
                          std::array<unsigned, 3> block,
                          unsigned shared) {
    stream.launch(kernels.function, grid, block, shared, arguments);
  };
  CHECK(fails([&] { launch({1, 1, 1}, {1, 1, 1}, 400 << 10); }, "cuFuncSetAttribute"));
  CHECK(fails([&] { launch({0, 1, 1}, {1, 1, 1}, 0); }, "cuLaunchKernel"));
  CHECK(fails([&] { launch({1, 1, 1}, {1025, 1, 1}, 0); }, "cuLaunchKernel"));
  stream.synchronize();
  CHECK(*cuda_stand_in::bytes_at(y + 63, 1) == 2 * (2 * 3 + 1) + 1);
}

// Two threads ask at once, as far as they can: the smaller number is told behind the
// larger one, before the thread of that one goes on.
constexpr int kSmall = 100 << 10, kLarge = 200 << 10;
std::atomic<int> told{0};
Status tell_the_smaller_last(memcfg::cuda::Function* function, int which, int value) {
  const auto pause = [](auto over) {
    for (int i = 0; i < 40 && !over(); ++i) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  };
  if (value == kSmall) pause([] { return told == kLarge; });
  const Status status = cuda_stand_in::cuFuncSetAttribute(function, which, value);
  told = value;
  if (value == kLarge) pause([] { return told == kSmall; });
  return status;
}

TEST(threads_that_share_a_kernel_keep_the_most_shared_memory_of_all) {
  told = 0;
  gpu().kernels["scale_and_add"] = {scale_and_add, 3, kSizes};
  memcfg::cuda::Api api = cuda_stand_in::api();
  api.cuFuncSetAttribute = tell_the_smaller_last;
  const auto context =
      std::make_shared<CudaContext>(std::make_shared<CudaDriver>(api), 0);
  Kernels kernels(context);
  Memory memory(context);
  Blocks device(memory.pool);
  const Address y = device.take(64);
  std::vector<std::thread> threads;
  std::atomic<int> failed{0};
  for (const int shared : {kSmall, kLarge}) {
    threads.emplace_back([&, shared] {
      if (shared == kLarge) std::this_thread::sleep_for(std::chrono::milliseconds(10));
      CudaStream stream(context, 0);
      Address block = y;
      int a = 1;
      void* arguments[] = {&block, &block, &a};
      try {
        stream.launch(kernels.function,
                      {64, 1, 1},
                      {1, 1, 1},
                      static_cast<unsigned>(shared),
                      arguments);
      } catch (const memcfg::kernel_failure&) {
        ++failed;
      }
      stream.synchronize();
    });
  }
  for (std::thread& each : threads) each.join();
  CHECK(failed == 0 && told == kLarge);
}

TEST(a_module_goes_when_its_work_is_done) {
  const auto context = make_context();
  Memory memory(context);
  Blocks device(memory.pool);
  const Address block = device.take(64);
  CudaStream stream(context, 0);
  stream.fill(block, 1, 64);
  {
    Kernels(context).launch(stream, block, block, 1, 64);
  }
  CHECK(*cuda_stand_in::bytes_at(block, 1) == 2);
}

TEST(a_failure_of_work_is_told_by_whoever_waits) {
  const auto context = make_context();
  Memory memory(context);
  Blocks device(memory.pool);
  const Address block = device.take(64);
  CudaStream stream(context, 0);
  CudaEvent event(context, false);
  gpu().work_left = 1;
  stream.fill(block, 1, 64);
  stream.fill(block, 2, 64);
  stream.record(event);
  CHECK(fails([&] { stream.synchronize(); }, "CUDA_ERROR_LAUNCH_FAILED"));
  CHECK(fails([&] { event.synchronize(); }, "cuEventSynchronize"));
  CHECK(fails([&] { stream.fill(block, 1, 64); }, "cuMemsetD8Async"));
  CHECK(fails([&] { stream.done(); }, "cuStreamQuery"));
  CHECK(fails([&] { context->synchronize(); }, "cuCtxSynchronize"));
  gpu().work_left = 1L << 60;
  gpu().failure = 0;
}

TEST(captures_end_whatever_happens) {
  const auto context = make_context();
  Memory memory(context);
  Blocks device(memory.pool);
  const Address block = device.take(64);
  CudaStream one(context, 0);
  CudaStream two(context, 0);
  CudaEvent event(context, false);
  CHECK(fails([&] { one.end_capture(); }, "no capture"));
  // A stream that does not come back.
  one.begin_capture();
  CHECK(fails([&] { one.begin_capture(); }, "cuStreamBeginCapture"));
  one.record(event);
  two.wait(event);
  two.fill(block, 1, 64);
  CHECK(fails([&] { one.end_capture(); }, "cuStreamEndCapture"));
  // A wait of the host; for what was not captured.
  for (const bool host : {true, false}) {
    two.record(event);
    one.begin_capture();
    one.fill(block, 1, 64);
    CHECK_THROWS(memcfg::kernel_failure, host ? one.synchronize() : one.wait(event));
    CHECK(fails([&] { one.end_capture(); }, "cuStreamEndCapture"));
  }
  // A capture that nobody ends.
  {
    CudaStream three(context, 0);
    three.begin_capture();
    three.fill(block, 1, 64);
  }
  one.begin_capture();
  one.fill(block, 4, 64);
  one.launch(*one.end_capture());  // the graph is gone before its work is done
  one.synchronize();
  CHECK(*cuda_stand_in::bytes_at(block, 1) == 4);
  context->synchronize();
}

TEST(a_wait_for_all_work_leaves_captures_alone) {
  const auto context = make_context();
  Memory memory(context);
  Blocks device(memory.pool);
  const Address block = device.take(64);
  CudaStream one(context, 0), two(context, 0), other(context, 0);
  for (int i = 0; i < 20; ++i) one.fill(block, 1, 64);
  one.begin_capture();
  CHECK(!gpu().pending());  // what was queued there nobody could wait for any more
  CudaEvent event(context, false);
  one.fill(block, 5, 64);
  one.record(event);
  two.wait(event);
  for (int i = 0; i < 20; ++i) other.fill(block, 1, 64);
  context->synchronize();
  CHECK(other.done());
  two.record(event);
  one.wait(event);
  one.launch(*one.end_capture());
  context->synchronize();
  CHECK(*cuda_stand_in::bytes_at(block, 1) == 5 && !gpu().pending());
}

TEST(threads_wait_for_all_work_while_others_capture) {
  const auto context = make_context();
  Memory memory(context);
  Blocks device(memory.pool);
  const Address block = device.take(64);
  std::atomic<int> running{2};
  std::vector<std::thread> threads;
  for (unsigned number = 0; number < 2; ++number) {
    threads.emplace_back([&, number] {
      CudaStream one(context, 0), two(context, 0);
      CudaEvent fork(context, false), join(context, false);
      for (int round = 0; round < 100; ++round) {
        one.begin_capture();
        one.fill(block + 16 * number, 1, 8);
        one.record(fork);
        two.wait(fork);
        two.fill(block + 16 * number + 8, 2, 8);
        two.record(join);
        one.wait(join);
        const auto graph = one.end_capture();
        CHECK(graph->nodes() == 2);
        one.launch(*graph);
        one.synchronize();
      }
      --running;
    });
  }
  threads.emplace_back([&] {
    CudaStream stream(context, 0);
    while (running > 0) {
      stream.fill(block + 32, 3, 8);
      context->synchronize();
      Blocks more(memory.pool);
      more.take(4 * kMiB);
      memory.pool->trim(0);
    }
  });
  for (std::thread& thread : threads) thread.join();
  CHECK(*cuda_stand_in::bytes_at(block + 24, 1) == 2);
}

// Pools go on amid a capture: what gives memory back waits for the other streams.
TEST(memory_goes_amid_a_capture) {
  const auto context = make_context();
  Memory memory(context);
  Blocks device(memory.pool);
  CudaStream captured(context, 0);
  CudaStream other(context, 0);
  const Address kept = device.take(64);
  {
    Blocks more(memory.pool);
    const Address block = more.take(20 * kMiB);
    other.fill(block, 1, kMiB);
    captured.begin_capture();
    captured.fill(kept, 5, 64);
  }
  memory.pool->trim(0);
  CHECK(gpu().used == 2 * kMiB && !gpu().pending());
  const auto graph = captured.end_capture();
  captured.launch(*graph);
  captured.synchronize();
  CHECK(*cuda_stand_in::bytes_at(kept, 1) == 5);
}

namespace {

// A capture as PyTorch begins it: its mode is global, and the driver forbids what may
// be unsafe to all threads whose own is not relaxed.
class ForeignCapture {
 public:
  ForeignCapture(const CudaContext& context, bool blocking) : current_(context) {
    gpu().foreign = true;
    const unsigned flags = blocking ? 0 : memcfg::cuda::kNonBlocking;
    cuda_stand_in::cuStreamCreateWithPriority(&stream_, flags, 0);
    cuda_stand_in::cuStreamBeginCapture_v2(stream_, 0);
    gpu().foreign = false;
  }
  memcfg::cuda::Status end() {
    gpu().foreign = true;
    memcfg::cuda::Graph* graph = nullptr;
    const auto status = cuda_stand_in::cuStreamEndCapture(stream_, &graph);
    if (graph != nullptr) cuda_stand_in::cuGraphDestroy(graph);
    cuda_stand_in::cuStreamDestroy_v2(stream_);
    gpu().foreign = false;
    return status;
  }

 private:
  const CudaContext::Current current_;
  memcfg::cuda::Stream* stream_ = nullptr;
};

}  // namespace

TEST(nothing_breaks_a_capture_of_another_library) {
  for (const bool blocking : {false, true}) {
    for (const bool pages : {true, false}) {
      std::shared_ptr<const CudaContext> context = make_context();
      std::atomic<bool> ready{false}, go{false};
      std::thread other([&] {  // whose mode is its own, and none of ours
        ForeignCapture capture(*context, blocking);
        ready = true;
        while (!go) std::this_thread::yield();
        CHECK(capture.end() == 0);
      });
      while (!ready) std::this_thread::yield();
      {
        const auto pool = std::make_shared<Pool>(
            "GPU:0", 64 * kMiB, true, memcfg::make_cuda_resource("", context, pages));
        const auto pinned = std::make_shared<Pool>(
            "pinned", 8 * kMiB, true, memcfg::make_pinned_resource("", context));
        const Kernels kernels(context);
        CudaStream stream(context, 0);
        CudaEvent event(context, true);
        {
          Blocks device(pool), host(pinned);
          const Address block = device.take(kMiB);
          stream.fill(block, 1, kMiB);
          stream.copy(host.take(64), block, 64);
          kernels.launch(stream, block, block, 1, 64);
          stream.record(event);
          stream.begin_capture();
          stream.fill(block, 2, 64);
          stream.launch(*stream.end_capture());
          event.synchronize();
          static_cast<void>(stream.done());
          stream.fill(block, 3, 64);
        }
        pool->trim(0);
        pinned->trim(0);
        CHECK(gpu().used == 0 && !gpu().pending());
        CHECK(context->memory().free == gpu().memory);
      }
      go = true;
      other.join();
      context.reset();
      CHECK(gpu().all_back());
    }
  }
}

// The driver lets work go on whose stream has gone; the stand-in ends the program.
TEST(a_stream_goes_when_its_work_is_done) {
  const auto context = make_context();
  Memory memory(context);
  Blocks device(memory.pool);
  const Address block = device.take(64);
  {
    CudaStream stream(context, 0);
    for (int i = 0; i < 20; ++i) stream.fill(block, 7, 64);
  }
  CHECK(!gpu().pending() && *cuda_stand_in::bytes_at(block, 1) == 7);
}

namespace {

// Everything that there is; whatever fails, it ends.
void do_everything(std::shared_ptr<const CudaContext>& context, int& done) {
  context = make_context();
  context->priorities();
  context->memory();
  Memory memory(context);
  Blocks device(memory.pool);
  Blocks host(memory.pinned);
  const Kernels kernels(context);
  CudaStream one(context, 0);
  CudaStream two(context, 1);
  CudaEvent event(context, true);
  const Address block = device.take(3 * kMiB);
  const Address pinned = host.take(kMiB);
  one.record(event);
  one.fill(block, 1, kMiB);
  one.copy(pinned, block, kMiB);
  one.begin_capture();
  one.record(event);
  two.wait(event);
  kernels.launch(two, block, block, 1, 64);
  two.record(event);
  one.wait(event);
  const auto graph = one.end_capture();
  one.launch(*graph);
  one.record(event);
  static_cast<void>(one.done());
  two.wait(event);
  two.synchronize();
  event.synchronize();
  static_cast<void>(event.done());
  one.copy(pinned, block, 64);
  one.synchronize();
  context->synchronize();
  CHECK(bytes_of(pinned)[63] == 2);
  memory.pool->check();
  memory.pinned->check();
  ++done;
}

}  // namespace

TEST(a_failure_at_any_call_of_the_driver_loses_nothing) {
  for (const bool once : {true, false}) {
    int done = 0;
    int failed = 0;
    for (long calls = 0; done == 0 || calls < 60; ++calls) {
      {
        std::shared_ptr<const CudaContext> context;
        gpu().random.seed(static_cast<unsigned>(calls));
        gpu().calls_left = calls;
        gpu().once = once;
        try {
          do_everything(context, done);
        } catch (const memcfg::out_of_memory&) {
          ++failed;
        } catch (const memcfg::kernel_failure&) {
          ++failed;
        } catch (const memcfg::missing_dependency&) {
          ++failed;
        }
        gpu().calls_left = 1L << 60;
      }
      CHECK(gpu().all_back());
      CHECK(calls < 400);
    }
    CHECK(failed > 30);  // the others give something back
  }
}

TEST(a_child_of_a_fork_is_told_at_once) {
  const auto context = make_context();
  Memory memory(context);
  Blocks device(memory.pool);
  const Address block = device.take(64);
  const Kernels kernels(context);
  CudaStream stream(context, 0);
  CudaEvent event(context, false);
  auto capturing = std::make_unique<CudaStream>(context, 0);
  capturing->begin_capture();
  stream.fill(block, 1, 64);
  stream.record(event);
  CHECK(children::child_does([&] {
    CHECK_THROWS(std::runtime_error, context->driver().version());
    CHECK_THROWS(std::runtime_error, context->memory());
    CHECK_THROWS(std::runtime_error, context->synchronize());
    CHECK_THROWS(std::runtime_error, stream.synchronize());
    CHECK_THROWS(std::runtime_error, static_cast<void>(stream.done()));
    CHECK_THROWS(std::runtime_error, stream.copy(block, block, 64));
    CHECK_THROWS(std::runtime_error, stream.fill(block, 1, 64));
    CHECK_THROWS(std::runtime_error, stream.record(event));
    CHECK_THROWS(std::runtime_error, stream.wait(event));
    CHECK_THROWS(std::runtime_error, kernels.launch(stream, block, block, 1, 1));
    CHECK_THROWS(std::runtime_error, event.synchronize());
    CHECK_THROWS(std::runtime_error, stream.begin_capture());
    CHECK_THROWS(std::runtime_error, capturing->end_capture());
    CHECK_THROWS(std::runtime_error, CudaDriver(cuda_stand_in::api()));
    CHECK_THROWS(std::runtime_error, CudaStream(context, 0));
    CHECK_THROWS(std::runtime_error, CudaEvent(context, false));
    CHECK_THROWS(std::runtime_error, CudaModule(context, "kernels"));
    capturing.reset();
    memory.pool->trim(0);
  }));
  capturing->end_capture();
  stream.synchronize();
}

TEST(threads_have_streams_of_their_own) {
  {
    const auto context = make_context();
    Memory memory(context);
    const Kernels kernels(context);
    std::atomic<int> right{0};
    std::vector<std::thread> threads;
    for (unsigned number = 0; number < 4; ++number) {
      threads.emplace_back([&, number] {
        CudaStream stream(context, 0);
        for (unsigned round = 0; round < 10; ++round) {
          Blocks device(memory.pool);
          Blocks host(memory.pinned);
          const Address block = device.take(1000 + 100000 * round);
          const Address pinned = host.take(64);
          stream.fill(block, static_cast<unsigned char>(number), 64);
          if (round % 3 == 0) stream.begin_capture();
          kernels.launch(stream, block, block, 1, 64);
          stream.copy(pinned, block, 64);
          if (round % 3 == 0) stream.launch(*stream.end_capture());
          stream.synchronize();
          right += bytes_of(pinned)[63] == 2 * number;
          if (round % 4 == 3) memory.pool->trim(0);
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
    CHECK(right == 40);
  }
  CHECK(gpu().all_back());
}
