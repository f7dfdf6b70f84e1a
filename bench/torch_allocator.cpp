// Loops of PyTorch's allocators, for `bench_torch_allocator.py`.
#include <c10/core/CPUAllocator.h>

#include <chrono>
#include <cstdint>
#include <cstring>
#include <thread>
#include <vector>

namespace {

c10::Allocator& allocator(int registered) {
  return registered != 0 ? *c10::GetCPUAllocator() : *c10::GetDefaultCPUAllocator();
}

// Sizes of a live set: `live` blocks, each replaced in its turn; touched: written to.
void replace(c10::Allocator& from,
             const std::vector<std::size_t>& sizes,
             std::size_t live,
             std::size_t count,
             bool touched) {
  std::vector<c10::DataPtr> blocks(live);
  for (std::size_t i = 0; i < count; ++i) {
    c10::DataPtr& place = blocks[i % live];
    place.clear();
    const std::size_t size = sizes[i % sizes.size()];
    place = from.allocate(size);
    if (touched) std::memset(place.get(), 1, size);
  }
}

}  // namespace

// Seconds for each block that is allocated and freed.
extern "C" double time_blocks(int registered,
                              const std::uint64_t* sizes,
                              std::uint64_t size_count,
                              std::uint64_t live,
                              std::uint64_t count,
                              int touched,
                              int threads) {
  c10::Allocator& from = allocator(registered);
  const std::vector<std::size_t> list(sizes, sizes + size_count);
  const auto began = std::chrono::steady_clock::now();
  std::vector<std::thread> others;
  for (int i = 1; i < threads; ++i) {
    others.emplace_back([&] { replace(from, list, live, count, touched != 0); });
  }
  replace(from, list, live, count, touched != 0);
  for (std::thread& each : others) each.join();
  const std::chrono::duration<double> spent = std::chrono::steady_clock::now() - began;
  return spent.count() / static_cast<double>(count);
}
