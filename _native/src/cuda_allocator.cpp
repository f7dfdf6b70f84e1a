#include "memcfg/cuda_allocator.hpp"

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
// must wait stands for the others; streams are few.
void CudaAllocator::give_back_done() {
  std::vector<cuda::Stream*> busy;
  for (auto each = freed_.begin(); each != freed_.end();) {
    const auto here = each++;
    bool waits = false;
    for (cuda::Stream* const stream : busy) waits = waits || stream == here->stream;
    if (waits) continue;
    if (here->event->done()) {
      give_back(here);
    } else {
      busy.push_back(here->stream);
    }
  }
}

void* CudaAllocator::allocate(Bytes size, cuda::Stream* stream) {
  if (size == 0) return nullptr;
  const CudaContext::Current current(*context_);
  current.require();
  Request request{size};
  request.tag = tag_;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    for (auto each = freed_.begin(); each != freed_.end(); ++each) {
      if (each->stream != stream || each->size != size) continue;
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
    Freed freed{address, pool_->size_of(address), stream, event()};
    context_->check(context_->api().cuEventRecord(freed.event->handle(), stream),
                    "cuEventRecord");
    freed_.push_back(std::move(freed));
  } catch (const bad_free&) {
    return false;
  } catch (...) {  // no event is to be had, so the work is waited for here
    context_->wait();
    return pool_->release(address);
  }
  try {
    const std::lock_guard<std::mutex> lock(mutex_);
    give_back_done();
  } catch (...) {  // work has failed, which whoever waits for it is told
  }
  return true;
}

void CudaAllocator::settle() noexcept {
  const CudaContext::Current current(*context_);
  if (!current) return;
  const std::lock_guard<std::mutex> lock(mutex_);
  if (freed_.empty()) return;
  context_->wait();
  while (!freed_.empty()) give_back(freed_.begin());
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
