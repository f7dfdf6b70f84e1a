// Blocks of a pool for a library that has nothing but the functions.
#include <sys/wait.h>
#include <unistd.h>

#include <cstdint>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "check.hpp"
#include "failing_new.hpp"
#include "memcfg/host_allocator.hpp"
#include "memcfg/pool.hpp"
#include "memcfg/system_resource.hpp"

using memcfg::Bytes;
using memcfg::HostAllocator;
using memcfg::Pool;

namespace {

struct Library {
  explicit Library(Bytes limit)
      : pool(std::make_shared<Pool>("host", limit)), allocator(pool) {}

  void* take(Bytes size, const char* tag = "") {
    return functions.allocate(functions.context, size, tag, &refusal);
  }
  bool free(void* address) { return functions.free(functions.context, address) == 1; }

  std::shared_ptr<Pool> pool;
  HostAllocator allocator;
  const memcfg_host_functions& functions = allocator.functions();
  memcfg_refusal refusal{};
};

}  // namespace

TEST(a_block_is_aligned_counted_and_goes_back_by_its_address) {
  Library library(1 << 20);
  CHECK(library.functions.version == 1);
  void* const block = library.take(100, "library");
  CHECK(reinterpret_cast<std::uintptr_t>(block) % 64 == 0);
  CHECK(library.pool->stats().current == 128);
  CHECK(library.pool->owners() == memcfg::Owners({{"library", 128}}));
  CHECK(library.free(block));
  CHECK(library.pool->stats().current == 0);
  CHECK(!library.free(block));
  int foreign = 0;
  CHECK(!library.free(&foreign));
  library.pool->check();
}

TEST(what_is_refused_can_be_asked_for_by_its_number) {
  Library library(4096);
  void* const block = library.take(1000, "holder");
  CHECK(library.take(4000) == nullptr);
  CHECK(library.refusal.number == 1 && library.refusal.requested == 4000);
  CHECK(library.refusal.in_use == 1024 && library.refusal.limit == 4096);
  CHECK(std::string(library.refusal.sentence) ==
        "A request does not fit the memory limit.");
  const auto info = library.allocator.refusal(1);
  CHECK(info && info->requested == 4000 && info->device == "host");
  CHECK(info->owners == memcfg::Owners({{"holder", 1024}}));
  CHECK(!library.allocator.refusal(0) && !library.allocator.refusal(2));
  for (int i = 0; i < 64; ++i) CHECK(library.take(5000) == nullptr);
  CHECK(library.refusal.number == 65);
  CHECK(!library.allocator.refusal(1) && library.allocator.refusal(2));
  CHECK(library.free(block));
}

TEST(no_failure_of_the_heap_of_metadata_is_thrown) {
  for (int grants = 0, left = 0; left <= 0; ++grants) {
    Library library(4096);
    void* block = nullptr;
    void* refused = &library;
    {
      const failing_new::After after(grants);
      block = library.take(1000, "a holder with a name that is not short");
      refused = library.take(5000);
      left = failing_new::calls_left;
    }
    CHECK(refused == nullptr && library.refusal.requested == 5000);
    CHECK(block == nullptr || library.free(block));
    CHECK(library.pool->stats().current == 0);
    library.pool->check();
  }
}

TEST(a_threads_tag_goes_before_that_of_a_call) {
  Library library(1 << 20);
  const std::string* const tag = memcfg::intern_tag("layer");
  CHECK(memcfg::intern_tag("layer") == tag && *tag == "layer");
  CHECK(memcfg::swap_thread_tag(tag) == nullptr);
  void* const ours = library.take(64, "call");
  void* theirs = nullptr;
  std::thread([&] { theirs = library.take(64, "call"); }).join();
  CHECK(memcfg::swap_thread_tag(nullptr) == tag);
  CHECK(library.pool->owners() == memcfg::Owners({{"call", 64}, {"layer", 64}}));
  CHECK(library.free(ours) && library.free(theirs));
}

TEST(a_tag_too_many_is_left_out) {
  Library library(64 << 20);
  std::vector<void*> blocks;
  for (int i = 0; i < 65536; ++i) {
    blocks.push_back(library.take(1, std::to_string(i).c_str()));
    CHECK(blocks.back() != nullptr);
  }
  CHECK(library.pool->owners().front().first.empty());
  CHECK(library.pool->owners().front().second == 64);  // one tag too many
  for (void* block : blocks) CHECK(library.free(block));
  library.pool->check();
}

TEST(threads_take_and_free_what_others_took) {
  Library library(8 << 20);
  std::vector<std::vector<void*>> taken(4);
  const auto run = [&](std::size_t number) {
    std::mt19937 random(static_cast<unsigned>(number));
    memcfg_refusal refusal{};
    for (int i = 0; i < 2000; ++i) {
      const Bytes size = Bytes{1} << random() % 18;
      void* const block =
          library.functions.allocate(library.functions.context, size, "", &refusal);
      if (block == nullptr) {
        CHECK(refusal.limit == 8 << 20);
      } else if (random() % 2 == 0) {
        CHECK(library.free(block));
      } else {
        taken[number].push_back(block);
      }
    }
  };
  std::vector<std::thread> threads;
  for (std::size_t i = 0; i < taken.size(); ++i) threads.emplace_back(run, i);
  for (std::thread& each : threads) each.join();
  for (const auto& blocks : taken) {
    for (void* block : blocks) CHECK(library.free(block));
  }
  CHECK(library.pool->stats().current == 0);
  library.pool->check();
}

TEST(a_child_of_a_fork_has_its_own_copy) {
  Library library(1 << 20);
  void* const block = library.take(1000);
  CHECK(library.take(2 << 20) == nullptr);
  const pid_t child = fork();
  if (child == 0) {
    const bool well = library.free(block) && library.take(1 << 20) != nullptr &&
                      library.take(64) == nullptr && library.refusal.number == 2;
    _exit(well ? 0 : 1);
  }
  int status = 1;
  CHECK(waitpid(child, &status, 0) == child && status == 0);
  CHECK(library.pool->stats().current == 1024);
  CHECK(library.free(block));
}

TEST(memory_that_the_host_cannot_touch_is_refused) {
  const auto device = std::make_shared<memcfg::SimulatedResource>("far", 1 << 20);
  const auto pool = std::make_shared<Pool>("far", memcfg::kNoLimit, true, device);
  CHECK_THROWS(std::invalid_argument, HostAllocator{pool});
}
