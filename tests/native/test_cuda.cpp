// Memory of a GPU, on a driver that is none.
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <random>
#include <string>
#include <vector>

#include "check.hpp"
#include "memcfg/arena.hpp"
#include "stacks.hpp"

using cuda_stand_in::gpu;
using memcfg::Access;
using memcfg::Bytes;
using memcfg::CudaContext;
using memcfg::CudaDriver;
using memcfg::kNoLimit;
using memcfg::Pool;
using stacks::Shared;

namespace {

constexpr Bytes kMiB = Bytes{1} << 20;
constexpr Bytes kPage = cuda_stand_in::kPage;

std::shared_ptr<Pool> pool_on_cuda(Bytes limit, bool growth = true, bool pages = true) {
  return std::make_shared<Pool>("GPU:0", limit, growth, stacks::cuda(pages));
}

unsigned char byte_at(const void* address) {
  return *cuda_stand_in::bytes_at(reinterpret_cast<std::uintptr_t>(address), 1);
}

}  // namespace

TEST(a_driver_tells_what_there_is) {
  const CudaDriver driver(cuda_stand_in::api());
  CHECK(driver.version() == 13000 && driver.device_count() == 1);
  const memcfg::CudaDeviceInfo info = driver.info(0);
  CHECK(info.name == "GPU of a test" && info.memory == gpu().memory);
  CHECK(info.capability == 90 && info.virtual_memory);
  CHECK_THROWS(std::runtime_error, driver.info(1));
}

TEST(no_driver_and_no_gpu_are_errors) {
  CHECK_THROWS(std::runtime_error, CudaDriver("/none/libcuda.so.1"));
  CHECK_THROWS(std::runtime_error, CudaDriver("libm.so.6"));  // without the functions
  gpu().count = 0;
  CHECK_THROWS(std::runtime_error, CudaDriver(cuda_stand_in::api()));
  gpu().count = 1;
}

TEST(a_pool_maps_what_it_needs_and_trim_gives_it_back) {
  {
    const auto pool = pool_on_cuda(64 * kMiB);
    CHECK(gpu().used == 0 && !pool->touchable());
    void* const block = pool->allocate({3 * kMiB});
    CHECK(gpu().used == 2 * kPage && pool->reserved() == 2 * kPage);
    CHECK_THROWS(memcfg::out_of_memory, pool->allocate({62 * kMiB}));
    CHECK(gpu().most <= 64 * kMiB);
    pool->deallocate(block, 3 * kMiB);
    pool->trim(0);
    CHECK(gpu().used == 0 && pool->stats().reserved == 0);
  }
  CHECK(gpu().all_back());
}

TEST(without_growth_the_limit_is_taken_at_once) {
  {
    const auto pool = pool_on_cuda(32 * kMiB, false);
    CHECK(gpu().used == 32 * kMiB);
    void* const block = pool->allocate({20 * kMiB});
    pool->deallocate(block, 20 * kMiB);
    CHECK(gpu().used == 32 * kMiB);
  }
  CHECK(gpu().all_back());
  CHECK_THROWS(memcfg::out_of_memory, pool_on_cuda(2 * gpu().memory, false));
  CHECK(gpu().all_back());
}

TEST(an_arena_grows_where_it_lies) {
  {
    const auto pool = pool_on_cuda(64 * kMiB);
    memcfg::Arena arena(pool, 0, "model");
    arena.grow(3 * kMiB);
    const auto* const base = static_cast<const std::byte*>(arena.base());
    CHECK(byte_at(base) == 0 && byte_at(base + 3 * kMiB - 1) == 0);
    arena.grow(40 * kMiB);
    CHECK(arena.base() == base && gpu().used == 40 * kMiB);
    CHECK(byte_at(base + 5 * kMiB) == 0 && byte_at(base + 40 * kMiB - 1) == 0);
    arena.shrink(kMiB);
    CHECK(gpu().used == kPage && pool->stats().current == kMiB);
    CHECK_THROWS(memcfg::out_of_memory, arena.grow(65 * kMiB));
    CHECK(gpu().used == kPage);
  }
  CHECK(gpu().all_back());
}

TEST(new_memory_is_garbage_but_for_who_wants_zeros) {
  for (const bool pages : {true, false}) {
    const auto pool = pool_on_cuda(64 * kMiB, true, pages);
    for (const Bytes size : {Bytes{1}, Bytes{1000}, 3 * kMiB, 20 * kMiB}) {
      void* const any = pool->allocate({size});
      CHECK(byte_at(any) == cuda_stand_in::kGarbage);
      pool->deallocate(any, size);
      memcfg::Request request{size};
      request.zeroed = true;
      auto* const zeros = static_cast<char*>(pool->allocate(request));
      for (Bytes at = 0; at < size; at += 4099) CHECK(byte_at(zeros + at) == 0);
      CHECK(byte_at(zeros + size - 1) == 0);
      pool->deallocate(zeros, size);
      pool->trim(0);
    }
  }
}

// The stand-in ends the program if memory goes while work that uses it is queued.
TEST(memory_goes_when_work_is_done) {
  for (const bool pages : {true, false}) {
    const auto pool = pool_on_cuda(64 * kMiB, true, pages);
    void* const block = pool->allocate({5 * kMiB});
    gpu().busy = true;
    pool->deallocate(block, 5 * kMiB);
    CHECK(gpu().busy);  // nothing waits as long as the pool keeps it
    pool->trim(0);
    CHECK(!gpu().busy);
  }
  const auto pool = pool_on_cuda(64 * kMiB);
  auto arena = std::make_unique<memcfg::Arena>(pool, 0, "model");
  arena->grow(5 * kMiB);
  gpu().busy = true;
  arena.reset();
  CHECK(!gpu().busy);
}

TEST(a_failure_at_any_call_loses_nothing) {
  for (const bool pages : {true, false}) {
    for (int calls = 0; calls < 60; calls += calls < 20 ? 1 : 3) {
      for (const bool once : {true, false}) {
        {
          std::shared_ptr<Pool> pool;
          std::vector<std::pair<void*, Bytes>> blocks;
          std::mt19937 random(static_cast<unsigned>(calls));
          gpu().calls_left = calls;
          gpu().once = once;
          for (int i = 0; i < 12; ++i) {
            try {
              if (pool == nullptr) pool = pool_on_cuda(64 * kMiB, true, pages);
              memcfg::Request request{1 + random() % (6 * kMiB)};
              request.zeroed = i % 2 == 0;
              blocks.emplace_back(pool->allocate(request), request.size);
            } catch (const memcfg::out_of_memory&) {
            } catch (const std::runtime_error&) {  // no context, or no zeros
            }
            if (pool == nullptr) continue;
            if (blocks.size() > 4) {
              pool->deallocate(blocks.front().first, blocks.front().second);
              blocks.erase(blocks.begin());
              pool->trim(4 * kMiB);
            }
            pool->check();
            CHECK(gpu().used <= 64 * kMiB);
            CHECK(pool->stats().reserved == gpu().used);
          }
          gpu().calls_left = 1L << 60;
          Bytes sum = 0;
          for (const auto& [address, size] : blocks) sum += size;
          CHECK(pool == nullptr || pool->stats().requested == sum);
        }
        CHECK(gpu().all_back());
      }
    }
  }
}

constexpr const char* kPageCalls[] = {"cuMemGetAllocationGranularity",
                                      "cuMemAddressReserve",
                                      "cuMemCreate",
                                      "cuMemMap",
                                      "cuMemSetAccess"};

TEST(pages_that_are_announced_and_refused_are_blocks) {
  gpu().virtual_memory = 1;
  const auto driver = std::make_shared<CudaDriver>(cuda_stand_in::api());
  const auto context = std::make_shared<CudaContext>(driver, 0);
  for (const char* const call : kPageCalls) {
    gpu().refused = call;
    const auto system = std::make_shared<memcfg::CudaSystem>(context);
    CHECK(!system->has_pages() && system->refusal().rfind(call, 0) == 0);
    CHECK(gpu().used == 0 && gpu().reserved.empty() && gpu().physical.empty());
    CHECK(system->reserve(kPage, Access::guarded) == nullptr);
    gpu().refused.clear();
  }
  const memcfg::CudaSystem pages(context);
  CHECK(pages.has_pages() && pages.refusal().empty());
  CHECK(memcfg::CudaSystem(context, false).refusal().empty());  // nobody asked
}

TEST(blocks_of_a_driver_that_refuses_pages_hold_the_limit) {
  for (const char* const call : kPageCalls) {
    {
      Pool pool("GPU:0", 64 * kMiB, true, stacks::cuda(true, call));
      void* const block = pool.allocate({20 * kMiB});
      CHECK(byte_at(block) == cuda_stand_in::kGarbage);
      CHECK(gpu().used == pool.stats().reserved && gpu().used >= 20 * kMiB);
      CHECK_THROWS(memcfg::out_of_memory, pool.allocate({62 * kMiB}));
      pool.deallocate(block, 20 * kMiB);
      pool.trim(0);
      CHECK(gpu().used == 0);
    }
    CHECK(gpu().all_back());
  }
  gpu().refused.clear();
}

TEST(a_gpu_that_is_full_refuses_no_pages) {
  gpu().virtual_memory = 1;
  const auto all = gpu().memory;
  gpu().memory = kPage - 1;
  const auto driver = std::make_shared<CudaDriver>(cuda_stand_in::api());
  {
    const memcfg::CudaSystem system(std::make_shared<CudaContext>(driver, 0));
    CHECK(system.has_pages() && system.refusal().empty());
  }
  gpu().memory = all;
  CHECK(gpu().all_back());
}

TEST(a_child_of_a_fork_never_calls_the_driver) {
  const auto pool = pool_on_cuda(64 * kMiB);
  void* const block = pool->allocate({kMiB});
  const pid_t child = fork();
  if (child == 0) {
    bool refused = false;
    try {
      pool->allocate({30 * kMiB});
    } catch (const memcfg::out_of_memory&) {
      refused = true;
    }
    pool->deallocate(block, kMiB);
    pool->trim(0);
    _exit(refused ? 0 : 1);
  }
  int status = 0;
  waitpid(child, &status, 0);
  CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
  pool->deallocate(block, kMiB);
}
