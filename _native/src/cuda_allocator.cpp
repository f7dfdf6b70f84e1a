#include "memcfg/cuda_allocator.hpp"

#include <algorithm>
#include <array>
#include <cstddef>
#include <map>
#include <stdexcept>
#include <string>
#include <utility>

#include "memcfg/error.hpp"
#include "memcfg/forks.hpp"

namespace memcfg {
namespace {

// Of all libraries of the process that know allocators as C functions. Never destroyed:
// such a library frees blocks until the very end.
struct Installed {
  std::mutex mutex;
  std::map<int, std::shared_ptr<CudaAllocator>> by_gpu;
};

Installed& installed() {
  static Installed* const only = new Installed;
  return *only;
}

// What cuMemAlloc gives at least is 256; PyTorch's own allocator gives this.
constexpr Bytes kBlockAlignment = 512;

// CU_STREAM_PER_THREAD: one handle for the default streams of all threads.
cuda::Stream* const kPerThread = reinterpret_cast<cuda::Stream*>(2);

std::shared_ptr<CudaAllocator> find(int ordinal) {
  const std::lock_guard<std::mutex> lock(installed().mutex);
  const auto found = installed().by_gpu.find(ordinal);
  return found == installed().by_gpu.end() ? nullptr : found->second;
}

std::string explain(const OutOfMemoryInfo& info, const char* what) {
  std::string text = info.device + ": " + what + " Requested " +
                     std::to_string(info.requested) + " bytes, in use " +
                     std::to_string(info.in_use);
  if (info.limit != kNoLimit) text += " of " + std::to_string(info.limit);
  return text + ".";
}

}  // namespace

CudaAllocator::~CudaAllocator() {
  settle();
}

std::unique_ptr<CudaEvent> CudaAllocator::event() {
  if (spare_.empty()) return std::make_unique<CudaEvent>(context_, false);
  std::unique_ptr<CudaEvent> found = std::move(spare_.back());
  spare_.pop_back();
  return found;
}

// Pre: the lock is held, and the block's work is done.
void CudaAllocator::give_back(std::list<Freed>::iterator freed) noexcept {
  pool_->release(freed->address);
  try {
    spare_.push_back(std::move(freed->event));
  } catch (...) {  // no memory for it: the event goes
  }
  freed_.erase(freed);
}

// Pre: the lock is held. Work of a stream ends in its order, so its first block that
// must wait stands for the others; streams are few. A block whose event cannot be asked
// waits, too: `settle` looks again.
void CudaAllocator::give_back_done() noexcept {
  std::array<cuda::Stream*, 8> busy{};
  std::size_t count = 0;
  for (auto each = freed_.begin(); each != freed_.end();) {
    const auto here = each++;
    const auto end = busy.begin() + static_cast<std::ptrdiff_t>(count);
    if (here->event == nullptr) continue;
    if (std::find(busy.begin(), end, here->stream) != end) continue;
    bool done = false;
    try {
      done = here->event->done();
    } catch (...) {
    }
    if (done) {
      give_back(here);
    } else if (count < busy.size()) {
      busy[count++] = here->stream;
    }
  }
}

bool CudaAllocator::capturing(cuda::Stream* stream) const noexcept {
  int status = 0;
  return stream != nullptr &&
         context_->api().cuStreamIsCapturing(stream, &status) == 0 && status != 0;
}

void* CudaAllocator::allocate(Bytes size, cuda::Stream* stream) {
  if (size == 0) return nullptr;
  const CudaContext::Current current(*context_);
  current.require();
  if (capturing(stream)) {
    throw kernel_failure(
        "memory of a pool cannot be taken in a capture, whose graph would use it after "
        "it was freed: graphs need the library's own allocator");
  }
  Request request{size, kBlockAlignment};
  request.tag = tag_;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    for (auto each = freed_.begin(); each != freed_.end(); ++each) {
      if (each->stream != stream || each->size != size) continue;
      if (each->event == nullptr || stream == kPerThread) continue;
      void* const address = each->address;
      spare_.push_back(std::move(each->event));
      freed_.erase(each);
      return address;
    }
    give_back_done();
  }
  try {
    return pool_->allocate(request);
  } catch (const out_of_memory&) {
    if (waiting() == 0) throw;
  }
  settle();
  return pool_->allocate(request);
}

bool CudaAllocator::free(void* address, cuda::Stream* stream) noexcept {
  if (address == nullptr) return true;
  const CudaContext::Current current(*context_);
  if (!current) return true;  // a forked child has no such memory
  try {
    const std::lock_guard<std::mutex> lock(mutex_);
    for (const Freed& each : freed_) {
      if (each.address == address) return false;
    }
    Freed freed{address, pool_->size_of(address), stream, nullptr};
    if (!capturing(stream)) {
      freed.event = event();
      context_->check(context_->api().cuEventRecord(freed.event->handle(), stream),
                      "cuEventRecord");
    }
    freed_.push_back(std::move(freed));
    give_back_done();
    return true;
  } catch (const bad_free&) {
    return false;
  } catch (...) {  // no event is to be had, so the work is waited for here
    if (context_->api().cuStreamSynchronize(stream) != 0) return true;  // it is lost
    return pool_->release(address);
  }
}

void CudaAllocator::settle() noexcept {
  const CudaContext::Current current(*context_);
  if (!current) return;
  const std::lock_guard<std::mutex> lock(mutex_);
  for (auto each = freed_.begin(); each != freed_.end();) {
    const auto here = each++;
    if (here->event == nullptr) continue;
    try {
      here->event->synchronize();
    } catch (...) {  // the work, or the driver, has failed: nobody knows what it does
      continue;
    }
    give_back(here);
  }
}

Bytes CudaAllocator::waiting() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  Bytes sum = 0;
  for (const Freed& each : freed_) sum += each.size;
  return sum;
}

void install_cuda_allocator(int ordinal, std::shared_ptr<CudaAllocator> allocator) {
  const std::lock_guard<std::mutex> lock(installed().mutex);
  auto& place = installed().by_gpu[ordinal];
  if (place != nullptr && &place->pool() != &allocator->pool()) {
    throw std::invalid_argument("another pool serves GPU " + std::to_string(ordinal) +
                                " already, and its blocks come back to it");
  }
  if (place == nullptr) place = std::move(allocator);
}

}  // namespace memcfg

void* memcfg_cuda_allocate(std::ptrdiff_t size, int device, void* stream) {
  const auto allocator = memcfg::find(device);
  if (allocator == nullptr) {
    throw std::runtime_error("memcfg has no allocator for GPU " +
                             std::to_string(device));
  }
  try {
    return allocator->allocate(static_cast<memcfg::Bytes>(size),
                               static_cast<memcfg::cuda::Stream*>(stream));
  } catch (const memcfg::out_of_memory& error) {
    throw std::runtime_error(memcfg::explain(error.info(), error.what()));
  }
}

void memcfg_cuda_free(void* address, std::ptrdiff_t, int device, void* stream) {
  const auto allocator = memcfg::find(device);
  if (allocator != nullptr) {
    allocator->free(address, static_cast<memcfg::cuda::Stream*>(stream));
  }
}
