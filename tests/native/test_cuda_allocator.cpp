// Blocks of a pool for libraries that free them in the order of their streams.
#include <sys/wait.h>
#include <unistd.h>

#include <map>
#include <random>
#include <thread>
#include <vector>

#include "check.hpp"
#include "cuda_stand_in.hpp"
#include "memcfg/arena.hpp"
#include "memcfg/cuda_allocator.hpp"
#include "memcfg/pool.hpp"

using cuda_stand_in::gpu;
using memcfg::Bytes;
using memcfg::CudaAllocator;
using memcfg::CudaContext;
using memcfg::CudaDriver;
using memcfg::CudaStream;
using memcfg::Pool;

namespace {

constexpr Bytes kMiB = Bytes{1} << 20;

struct Machine {
  explicit Machine(Bytes limit)
      : context(std::make_shared<CudaContext>(
            std::make_shared<CudaDriver>(cuda_stand_in::api()), 0)),
        pool(std::make_shared<Pool>(
            "GPU:0", limit, true, memcfg::make_cuda_resource("GPU:0", context))),
        allocator(std::make_shared<CudaAllocator>(pool, context, "others")),
        a(context, 0),
        b(context, 0) {}

  const std::shared_ptr<const CudaContext> context;
  const std::shared_ptr<Pool> pool;
  const std::shared_ptr<CudaAllocator> allocator;
  const CudaStream a, b;
};

memcfg::cuda::Address number(const void* address) {
  return reinterpret_cast<std::uintptr_t>(address);
}

}  // namespace

TEST(a_block_is_used_again_at_once_on_its_stream_and_later_elsewhere) {
  {
    const Machine m(64 * kMiB);
    void* const block = m.allocator->allocate(kMiB, m.a.handle());
    for (int i = 0; i < 20; ++i) m.a.fill(number(block), 1, kMiB);
    CHECK(m.allocator->free(block, m.a.handle()));
    CHECK(m.allocator->waiting() == kMiB && m.pool->stats().current == kMiB);
    void* const other = m.allocator->allocate(kMiB, m.b.handle());
    CHECK(other != block);  // the work is still queued
    CHECK(m.allocator->allocate(kMiB, m.a.handle()) == block);
    CHECK(m.allocator->waiting() == 0);
    CHECK(m.allocator->free(block, m.a.handle()));
    CHECK(m.allocator->free(other, m.b.handle()));
    m.context->synchronize();
    void* const larger = m.allocator->allocate(2 * kMiB, m.b.handle());
    CHECK(m.pool->stats().current == 2 * kMiB);  // both went back
    CHECK(m.allocator->free(larger, m.b.handle()));
  }
  CHECK(gpu().all_back());
}

TEST(a_pool_that_is_full_waits_for_the_work_of_freed_blocks) {
  {
    const Machine m(8 * kMiB);
    void* const block = m.allocator->allocate(6 * kMiB, m.a.handle());
    m.a.fill(number(block), 1, 6 * kMiB);
    CHECK(m.allocator->free(block, m.a.handle()));
    void* const other = m.allocator->allocate(7 * kMiB, m.b.handle());
    CHECK(m.allocator->waiting() == 0 && gpu().most <= 8 * kMiB);
    CHECK_THROWS(memcfg::out_of_memory, m.allocator->allocate(2 * kMiB, nullptr));
    CHECK(m.allocator->free(other, nullptr));
    m.allocator->settle();
    CHECK(m.pool->stats().current == 0);
  }
  CHECK(gpu().all_back());
}

TEST(whoever_asks_the_pool_has_what_was_freed) {
  for (const bool done : {true, false}) {
    {
      const Machine m(8 * kMiB);
      const auto fill = [&] {
        void* const block = m.allocator->allocate(6 * kMiB, m.a.handle());
        for (int i = 0; i < 40; ++i) m.a.fill(number(block), 1, 6 * kMiB);
        CHECK(m.allocator->free(block, m.a.handle()));
        if (done) m.a.synchronize();
        CHECK(m.allocator->waiting() == 6 * kMiB);
      };
      fill();
      void* const block = m.pool->allocate({5 * kMiB});
      CHECK(m.a.done() && m.allocator->waiting() == 0);
      m.pool->deallocate(block, 5 * kMiB);
      fill();
      {
        memcfg::Arena arena(m.pool, 8 * kMiB, "model");
        arena.grow(7 * kMiB);
        CHECK(m.a.done() && m.allocator->waiting() == 0);
      }
      fill();
      const CudaAllocator other(m.pool, m.context, "another library");
      void* const next = const_cast<CudaAllocator&>(other).allocate(7 * kMiB, nullptr);
      CHECK(m.allocator->waiting() == 0);
      CHECK(const_cast<CudaAllocator&>(other).free(next, nullptr));
      const_cast<CudaAllocator&>(other).settle();
      fill();
      m.pool->set_limit(4 * kMiB);
      CHECK(m.pool->stats().current == 0);
    }
    CHECK(gpu().all_back());
  }
}

TEST(trim_gives_back_what_was_freed_and_waits_for_nothing) {
  const Machine m(8 * kMiB);
  void* const block = m.allocator->allocate(6 * kMiB, m.a.handle());
  for (int i = 0; i < 40; ++i) m.a.fill(number(block), 1, 6 * kMiB);
  CHECK(m.allocator->free(block, m.a.handle()));
  m.pool->trim(0);
  CHECK(!m.a.done() && m.allocator->waiting() == 6 * kMiB);
  m.a.synchronize();
  CHECK(m.pool->trim(0) == 6 * kMiB && gpu().used == 0);
}

TEST(a_block_that_was_recorded_waits_for_the_other_stream) {
  for (unsigned seed = 0; seed < 20; ++seed) {
    gpu().random.seed(seed);
    const Machine m(8 * kMiB);
    void* const block = m.allocator->allocate(5 * kMiB, m.a.handle());
    m.a.fill(number(block), 1, 5 * kMiB);
    CHECK(m.allocator->record(block, m.b.handle()));
    CHECK(m.allocator->record(block, m.b.handle()));
    CHECK(m.allocator->record(block, m.a.handle()));
    for (int i = 0; i < 40; ++i) m.b.fill(number(block), 2, 5 * kMiB);
    CHECK(m.allocator->free(block, m.a.handle()));
    m.a.synchronize();
    CHECK(!m.b.done());
    // On its own stream, too, it is in use still.
    void* const small = m.allocator->allocate(3 * kMiB, m.a.handle());
    CHECK(m.allocator->waiting() == 5 * kMiB && m.pool->stats().current == 8 * kMiB);
    CHECK(m.allocator->free(small, m.a.handle()));
    void* const next = m.allocator->allocate(5 * kMiB, m.a.handle());
    CHECK(m.b.done());
    CHECK(m.allocator->free(next, m.a.handle()));
    CHECK(m.allocator->allocate(5 * kMiB, m.a.handle()) == next);  // recorded no more
  }
}

TEST(a_block_that_was_recorded_is_used_again_on_its_stream_when_the_others_are_done) {
  const Machine m(8 * kMiB);
  void* const block = m.allocator->allocate(kMiB, m.a.handle());
  CHECK(m.allocator->record(block, m.b.handle()));
  m.b.fill(number(block), 2, kMiB);
  for (int i = 0; i < 20; ++i) m.a.fill(number(block), 1, kMiB);
  CHECK(m.allocator->free(block, m.a.handle()));
  m.b.synchronize();
  CHECK(!m.a.done());
  CHECK(m.allocator->allocate(kMiB, m.a.handle()) == block);
}

TEST(a_block_of_a_threads_default_stream_waits_for_that_thread) {
  enum class Use { freed_elsewhere, recorded_elsewhere, freed_here };
  for (const Use use :
       {Use::freed_elsewhere, Use::recorded_elsewhere, Use::freed_here}) {
    for (unsigned seed = 0; seed < 10; ++seed) {
      gpu().random.seed(seed);
      const Machine m(8 * kMiB);
      auto* const own = cuda_stand_in::kPerThread;
      const auto write = [&](void* block) {
        const CudaContext::Current current(*m.context);
        for (int i = 0; i < 40; ++i) {
          CHECK(cuda_stand_in::cuMemsetD8Async(number(block), 1, 5 * kMiB, own) == 0);
        }
      };
      void* const block = m.allocator->allocate(5 * kMiB, own);
      const auto there = [&] {
        if (use == Use::freed_elsewhere) {
          CHECK(m.allocator->free(block, own));
        } else if (use == Use::recorded_elsewhere) {
          CHECK(m.allocator->record(block, own));
          write(block);
        }
      };
      if (use != Use::recorded_elsewhere) write(block);
      std::thread(there).join();
      if (use != Use::freed_elsewhere) CHECK(m.allocator->free(block, own));
      void* const small = m.allocator->allocate(3 * kMiB, m.a.handle());  // all of it
      CHECK(gpu().pending(number(block), 5 * kMiB));
      CHECK(m.allocator->waiting() == 5 * kMiB);
      void* const next = m.pool->allocate({5 * kMiB});
      CHECK(!gpu().pending(number(next), 5 * kMiB));  // the work was waited for
      m.pool->deallocate(next, 5 * kMiB);
      CHECK(m.allocator->free(small, m.a.handle()));
    }
    CHECK(gpu().all_back());
  }
}

TEST(what_is_no_block_is_not_recorded) {
  const Machine m(8 * kMiB);
  char* const block = static_cast<char*>(m.allocator->allocate(kMiB, nullptr));
  CHECK(!m.allocator->record(block + 64, m.a.handle()));
  CHECK(!m.allocator->record(nullptr, m.a.handle()));
  for (int i = 0; i < 20; ++i) m.a.fill(number(block), 1, kMiB);
  CHECK(m.allocator->free(block, m.a.handle()));
  CHECK(!m.allocator->record(block, m.b.handle()));
}

TEST(a_block_that_a_capture_uses_on_another_stream_is_kept) {
  const Machine m(8 * kMiB);
  void* const block = m.allocator->allocate(kMiB, m.a.handle());
  auto& stream = const_cast<CudaStream&>(m.b);
  stream.begin_capture();
  stream.fill(number(block), 1, kMiB);
  CHECK(m.allocator->record(block, m.b.handle()));
  CHECK(m.allocator->free(block, m.a.handle()));
  const auto graph = stream.end_capture();
  m.allocator->settle();
  CHECK(m.allocator->waiting() == kMiB);
}

TEST(what_is_no_block_is_refused) {
  const Machine m(8 * kMiB);
  CHECK(m.allocator->allocate(0, nullptr) == nullptr);
  CHECK(m.allocator->free(nullptr, nullptr));
  char* const block = static_cast<char*>(m.allocator->allocate(kMiB, nullptr));
  CHECK(!m.allocator->free(block + 64, nullptr));
  for (int i = 0; i < 20; ++i) m.a.fill(number(block), 1, kMiB);
  CHECK(m.allocator->free(block, m.a.handle()));
  CHECK(!m.allocator->free(block, m.a.handle()));
  CHECK(!m.allocator->free(block, m.b.handle()));
}

TEST(blocks_are_aligned_as_pytorchs) {
  const Machine m(8 * kMiB);
  for (const Bytes size : {Bytes{4}, kMiB, Bytes{100}}) {
    CHECK(number(m.allocator->allocate(size, nullptr)) % 512 == 0);
  }
}

TEST(work_of_other_streams_is_waited_for_amid_a_capture) {
  const Machine m(8 * kMiB);
  const CudaStream other(m.context, 0);
  void* const block = m.allocator->allocate(6 * kMiB, m.a.handle());
  for (int i = 0; i < 20; ++i) m.a.fill(number(block), 1, 6 * kMiB);
  CHECK(m.allocator->free(block, m.a.handle()));
  const_cast<CudaStream&>(m.b).begin_capture();
  m.allocator->settle();
  CHECK(m.allocator->waiting() == 0 && m.a.done());
  const_cast<CudaStream&>(m.b).end_capture();
}

TEST(a_graph_keeps_what_was_freed_in_its_capture) {
  const Machine m(8 * kMiB);
  void* const block = m.allocator->allocate(kMiB, m.a.handle());
  auto& stream = const_cast<CudaStream&>(m.a);
  stream.begin_capture();
  stream.fill(number(block), 1, kMiB);
  CHECK_THROWS(memcfg::kernel_failure, m.allocator->allocate(64, m.a.handle()));
  CHECK(m.allocator->free(block, m.a.handle()));
  CHECK(!m.allocator->free(block, m.a.handle()));
  const auto graph = stream.end_capture();
  m.allocator->settle();
  CHECK(m.allocator->waiting() == kMiB && m.pool->stats().requested == kMiB);
  void* const next = m.allocator->allocate(kMiB, m.a.handle());
  CHECK(next != block && m.allocator->free(next, m.a.handle()));
}

TEST(no_two_that_may_be_in_use_share_a_byte) {
  for (unsigned seed = 0; seed < 20; ++seed) {
    const Machine m(24 * kMiB);
    std::mt19937 random(seed);
    std::map<char*, std::pair<Bytes, const CudaStream*>> live;
    for (int i = 0; i < 200; ++i) {
      const CudaStream& stream = random() % 2 == 0 ? m.a : m.b;
      if (live.size() < 6 && random() % 3 != 0) {
        const Bytes size = (1 + random() % 4) * kMiB - random() % 3;
        char* block = nullptr;
        try {
          block = static_cast<char*>(m.allocator->allocate(size, stream.handle()));
        } catch (const memcfg::out_of_memory&) {
          continue;
        }
        const auto next = live.lower_bound(block);
        CHECK(next == live.end() || block + size <= next->first);
        CHECK(next == live.begin() ||
              std::prev(next)->first + std::prev(next)->second.first <= block);
        stream.fill(number(block), static_cast<unsigned char>(i), size);
        live[block] = {size, &stream};
      } else if (!live.empty()) {
        const auto [block, held] = *live.begin();
        CHECK(m.allocator->free(block, held.second->handle()));
        live.erase(live.begin());
      }
      CHECK(gpu().used <= 24 * kMiB);
    }
    for (const auto& [block, held] : live) {
      CHECK(m.allocator->free(block, held.second->handle()));
    }
    m.allocator->settle();
    CHECK(m.pool->stats().current == 0);
    m.pool->check();
  }
  CHECK(gpu().all_back());
}

TEST(a_failure_at_any_call_loses_no_block) {
  for (int calls = 0; calls < 40; ++calls) {
    {
      const Machine m(24 * kMiB);
      gpu().calls_left = calls;
      gpu().once = true;
      std::vector<void*> blocks;
      for (int i = 0; i < 8; ++i) {
        try {
          blocks.push_back(m.allocator->allocate(kMiB, m.a.handle()));
          CHECK(m.allocator->record(blocks.back(), m.b.handle()));
          m.a.fill(number(blocks.back()), 1, kMiB);
          m.b.fill(number(blocks.back()), 1, kMiB);
        } catch (const memcfg::out_of_memory&) {
        } catch (const memcfg::kernel_failure&) {
        }
        if (blocks.size() > 2) {
          CHECK(m.allocator->free(blocks.front(), m.a.handle()));
          blocks.erase(blocks.begin());
        }
      }
      gpu().calls_left = 1L << 60;
      for (void* const block : blocks) CHECK(m.allocator->free(block, m.a.handle()));
      m.allocator->settle();
      CHECK(m.pool->stats().current == 0);
    }
    CHECK(gpu().all_back());
  }
}

TEST(threads_that_fill_the_pool_wait_for_each_others_frees) {
  const Machine m(8 * kMiB);
  std::vector<std::thread> threads;
  for (const CudaStream* stream : {&m.a, &m.b}) {
    threads.emplace_back([&m, stream] {
      CudaAllocator own(m.pool, m.context, "a library");
      for (int i = 0; i < 100; ++i) {
        try {
          void* const block = own.allocate(Bytes(3 + i % 2) * kMiB, stream->handle());
          stream->fill(number(block), 1, kMiB);
          CHECK(own.free(block, stream->handle()));
        } catch (const memcfg::out_of_memory&) {  // the other one has too much
        }
      }
    });
  }
  for (std::thread& each : threads) each.join();
  CHECK(m.pool->stats().current == 0);
}

TEST(threads_with_streams_of_their_own) {
  const Machine m(64 * kMiB);
  std::vector<std::thread> threads;
  for (const CudaStream* stream : {&m.a, &m.b}) {
    threads.emplace_back([&m, stream] {
      for (int i = 0; i < 200; ++i) {
        void* const block = m.allocator->allocate(kMiB, stream->handle());
        stream->fill(number(block), 1, kMiB);
        CHECK(m.allocator->free(block, stream->handle()));
      }
    });
  }
  for (std::thread& each : threads) each.join();
  m.allocator->settle();
  CHECK(m.pool->stats().current == 0);
}

TEST(a_child_of_a_fork_never_calls_the_driver) {
  const Machine m(64 * kMiB);
  void* const block = m.allocator->allocate(kMiB, m.a.handle());
  const pid_t child = fork();
  if (child == 0) {
    bool refused = false;
    try {
      m.allocator->allocate(kMiB, m.a.handle());
    } catch (const std::runtime_error&) {
      refused = true;
    }
    m.allocator->free(block, m.a.handle());
    m.allocator->settle();
    m.pool->trim(0);
    bool full = false;
    try {
      m.pool->allocate({65 * kMiB});
    } catch (const memcfg::out_of_memory&) {
      full = true;
    }
    _exit(refused && full ? 0 : 1);
  }
  int status = 0;
  waitpid(child, &status, 0);
  CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
  CHECK(m.allocator->free(block, m.a.handle()));
}

TEST(the_c_functions_serve_the_gpu_that_has_an_allocator) {
  CHECK_THROWS(std::runtime_error, memcfg_cuda_allocate(64, 3, nullptr));
  memcfg_cuda_free(nullptr, 64, 3, nullptr);
  const Machine m(8 * kMiB);
  std::string text;
  memcfg::install_cuda_allocator(3, m.allocator);
  memcfg::install_cuda_allocator(3, m.allocator);
  void* const block = memcfg_cuda_allocate(kMiB, 3, m.a.handle());
  CHECK(m.pool->stats().requested == kMiB);
  memcfg_cuda_record_stream(block, m.b.handle());
  memcfg_cuda_record_stream(&text, m.b.handle());  // another library's
  m.b.fill(number(block), 1, kMiB);
  try {
    memcfg_cuda_allocate(8 * kMiB, 3, m.a.handle());
  } catch (const std::runtime_error& error) {
    text = error.what();
  }
  CHECK(text.find("Requested 8388608 bytes, in use 1048576 of 8388608") !=
        std::string::npos);
  memcfg_cuda_free(block, kMiB, 3, m.a.handle());
  m.allocator->settle();
  CHECK(m.pool->stats().requested == 0);
  const Machine other(8 * kMiB);
  CHECK_THROWS(std::invalid_argument,
               memcfg::install_cuda_allocator(3, other.allocator));
}
