#include "memcfg/cuda_allocator.hpp"

#include <algorithm>
#include <array>
#include <cstddef>
#include <iterator>
#include <map>
#include <stdexcept>
#include <string>
#include <utility>

#include "memcfg/error.hpp"
#include "memcfg/forks.hpp"

namespace memcfg {
namespace {

// The allocators behind the C functions at the end of this file, by GPU. They are never
// destroyed, since other libraries free blocks until the process ends.
struct Installed {
  std::mutex mutex;
  std::map<int, std::shared_ptr<CudaAllocator>> by_gpu;
};

Installed& installed() {
  static Installed* const only = new Installed;
  return *only;
}

// In bytes. cuMemAlloc aligns to at least 256; PyTorch's own allocator aligns to 512.
constexpr Bytes kBlockAlignment = 512;

// CU_STREAM_PER_THREAD: one handle for the default streams of all threads.
cuda::Stream* const kPerThread = reinterpret_cast<cuda::Stream*>(2);
// CU_STREAM_LEGACY, passed as null: it waits for the default streams of all threads.
cuda::Stream* const kOfAllThreads = nullptr;

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

bool is_done(const CudaEvent& event) noexcept {
  try {
    return event.done();
  } catch (...) {
    return false;
  }
}

// Whether all events except the first are done.
bool others_done(const std::vector<std::unique_ptr<CudaEvent>>& events) noexcept {
  return std::all_of(std::next(events.begin()), events.end(), [](const auto& each) {
    return is_done(*each);
  });
}

}  // namespace

CudaAllocator::CudaAllocator(std::shared_ptr<Pool> pool,
                             std::shared_ptr<const CudaContext> context,
                             std::string tag)
    : pool_(std::move(pool)), context_(std::move(context)), tag_(std::move(tag)) {
  pool_->add(*this);
}

CudaAllocator::~CudaAllocator() {
  pool_->remove(*this);
  settle();
}

// Pre of all functions up to `allocate`: the lock is held.

// Records an event behind the work that is now queued on each stream of a block.
// Returns no events if one of the streams is being captured.
CudaAllocator::Events CudaAllocator::record_events(const Streams& streams) {
  Events events;
  for (cuda::Stream* stream : streams) {
    if (capturing(stream)) {
      keep(std::move(events));
      return {};
    }
    if (spare_.empty()) spare_.push_back(std::make_unique<CudaEvent>(context_, false));
    events.push_back(std::move(spare_.back()));
    spare_.pop_back();
    context_->check(context_->api().cuEventRecord(events.back()->handle(), stream),
                    "cuEventRecord");
  }
  return events;
}

void CudaAllocator::keep(Events events) noexcept {
  try {
    std::move(events.begin(), events.end(), std::back_inserter(spare_));
  } catch (...) {  // without memory to keep them, they are destroyed
  }
}

// Pre: all work that uses the block is done.
void CudaAllocator::give_back(std::list<Freed>::iterator freed) noexcept {
  pool_->release(freed->address);
  keep(std::move(freed->events));
  freed_.erase(freed);
}

// The work of a stream ends in the order in which it was queued, so once a block of a
// stream is not done, its later blocks are not asked. Up to eight such streams are
// remembered. A block whose event cannot be queried stays until `settle` tries again.
void CudaAllocator::give_back_done() noexcept {
  std::array<cuda::Stream*, 8> busy{};
  std::size_t count = 0;
  for (auto each = freed_.begin(); each != freed_.end();) {
    const auto here = each++;
    const auto end = busy.begin() + static_cast<std::ptrdiff_t>(count);
    if (here->events.empty()) continue;
    if (std::find(busy.begin(), end, here->stream) != end) continue;
    if (!is_done(*here->events.front())) {
      if (count < busy.size()) busy[count++] = here->stream;
    } else if (others_done(here->events)) {
      give_back(here);
    }
  }
}

bool CudaAllocator::is_freed(const void* address) const noexcept {
  return std::any_of(freed_.begin(), freed_.end(), [=](const Freed& each) {
    return each.address == address;
  });
}

// Notes which thread uses a block on its default stream, whose handle is the same in
// all threads. A block that several threads use gets an id that no thread has.
void CudaAllocator::note_thread(const void* address, cuda::Stream* stream) {
  if (stream != kPerThread) return;
  const auto self = std::this_thread::get_id();
  const auto [place, first] = threads_.emplace(address, self);
  if (!first && place->second != self) place->second = std::thread::id();
}

void CudaAllocator::forget(const void* address) noexcept {
  recorded_.erase(address);
  threads_.erase(address);
}

// Returns `first` and the streams recorded for the block. A default stream of another
// thread, which has no handle here, is replaced by the one that waits for all of them.
CudaAllocator::Streams CudaAllocator::streams_of(const void* address,
                                                 cuda::Stream* first) const {
  const auto thread = threads_.find(address);
  const bool apart =
      thread != threads_.end() && thread->second != std::this_thread::get_id();
  Streams streams;
  const auto add = [&](cuda::Stream* stream) {
    if (apart && stream == kPerThread) stream = kOfAllThreads;
    if (std::find(streams.begin(), streams.end(), stream) == streams.end()) {
      streams.push_back(stream);
    }
  };
  add(first);
  const auto found = recorded_.find(address);
  if (found == recorded_.end()) return streams;
  std::for_each(found->second.begin(), found->second.end(), add);
  return streams;
}

// The last resort, for example without host memory for events: waits for all streams of
// a block. Returns false if one of them is being captured or fails.
bool CudaAllocator::wait_for_streams(const void* address,
                                     cuda::Stream* first) const noexcept {
  const auto thread = threads_.find(address);
  const bool apart =
      thread != threads_.end() && thread->second != std::this_thread::get_id();
  const auto wait = [&](cuda::Stream* stream) {
    if (apart && stream == kPerThread) stream = kOfAllThreads;
    return !capturing(stream) && context_->api().cuStreamSynchronize(stream) == 0;
  };
  const auto found = recorded_.find(address);
  return wait(first) && (found == recorded_.end() ||
                         std::all_of(found->second.begin(), found->second.end(), wait));
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
      if (each->events.empty() || stream == kPerThread) continue;
      if (!others_done(each->events)) continue;
      void* const address = each->address;
      keep(std::move(each->events));
      freed_.erase(each);
      return address;
    }
    give_back_done();
  }
  void* const address = pool_->allocate(request);
  if (stream == kPerThread) {
    const std::lock_guard<std::mutex> lock(mutex_);
    try {
      note_thread(address, stream);
    } catch (...) {
      pool_->release(address);
      throw;
    }
  }
  return address;
}

bool CudaAllocator::record(void* address, cuda::Stream* stream) {
  const CudaContext::Current current(*context_);
  if (!current) return false;  // a forked child cannot use the parent's GPU memory
  const std::lock_guard<std::mutex> lock(mutex_);
  try {
    pool_->size_of(address);
  } catch (const bad_free&) {
    return false;
  }
  if (is_freed(address)) return false;
  note_thread(address, stream);
  Streams& streams = recorded_[address];
  if (std::find(streams.begin(), streams.end(), stream) == streams.end()) {
    streams.push_back(stream);
  }
  return true;
}

bool CudaAllocator::free(void* address, cuda::Stream* stream) noexcept {
  if (address == nullptr) return true;
  const CudaContext::Current current(*context_);
  if (!current) return true;  // a forked child cannot use the parent's GPU memory
  const std::lock_guard<std::mutex> lock(mutex_);
  if (is_freed(address)) return false;
  try {
    const Bytes size = pool_->size_of(address);
    note_thread(address, stream);
    Events events = record_events(streams_of(address, stream));
    freed_.push_back({address, size, stream, std::move(events)});
    forget(address);
    give_back_done();
    return true;
  } catch (const bad_free&) {
    return false;
  } catch (...) {
    const bool done = wait_for_streams(address, stream);
    forget(address);
    return done ? pool_->release(address) : true;  // a block still in use is leaked
  }
}

void CudaAllocator::collect() noexcept {
  const CudaContext::Current current(*context_);
  if (!current) return;
  const std::lock_guard<std::mutex> lock(mutex_);
  give_back_done();
}

void CudaAllocator::settle() noexcept {
  const CudaContext::Current current(*context_);
  if (!current) return;
  const std::lock_guard<std::mutex> lock(mutex_);
  for (auto each = freed_.begin(); each != freed_.end();) {
    const auto here = each++;
    if (here->events.empty()) continue;
    try {
      for (const auto& event : here->events) event->synchronize();
    } catch (...) {  // a failed kernel or driver may still use the block: leak it
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

void memcfg_cuda_record_stream(void* address, void* stream) {
  const std::lock_guard<std::mutex> lock(memcfg::installed().mutex);
  for (const auto& [gpu, allocator] : memcfg::installed().by_gpu) {
    if (allocator->record(address, static_cast<memcfg::cuda::Stream*>(stream))) return;
  }
}

void memcfg_cuda_free(void* address, std::ptrdiff_t, int device, void* stream) {
  const auto allocator = memcfg::find(device);
  if (allocator != nullptr) {
    allocator->free(address, static_cast<memcfg::cuda::Stream*>(stream));
  }
}
