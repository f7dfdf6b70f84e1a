// A CUDA driver without a GPU: the entry points of `cuda_abi.h` over
// `cuda_machine.hpp`.
//
// Every call that may fail can be made to; and whoever breaks a rule of the driver's (a
// free of memory that is in use, a context that is not current, a call after a fork)
// ends the program with a line that says which.
#pragma once

#include <dlfcn.h>

#include "cuda_machine.hpp"

namespace cuda_stand_in {

using abi::AccessDescription;
using abi::AllocationProperties;
using abi::Device;

inline char contexts[kMaxGpus];  // their addresses are the handles
inline thread_local std::vector<int, PlainAllocator<int>> current;  // contexts, pushed
inline thread_local int capture_mode = 0;                           // global

// The lock of a call, which is refused if it is that call's turn.
class Call {
 public:
  explicit Call(bool needs_context = true) : lock_(gpu().mutex) {
    demand(gpu().process == getpid(), "a call in the child of a fork");
    demand(!needs_context || !current.empty(), "no context is current");
    demand(capture_mode == abi::kRelaxedCapture || !needs_context || gpu().foreign ||
               !gpu().captures_globally(),
           "a call that a capture of another library forbids");
    ++gpu().calls;
    const long left = gpu().calls_left--;
    refused_ = left == 0 || (left < 0 && !gpu().once);
  }
  bool refused() const { return refused_; }
  // Whether a driver that announces virtual memory does not have this call.
  bool lacks(const char* call) const { return gpu().refused == call; }

 private:
  const std::lock_guard<std::recursive_mutex> lock_;
  bool refused_;
};

// CU_STREAM_PER_THREAD: the caller's default stream.
inline abi::Stream* const kPerThread = reinterpret_cast<abi::Stream*>(2);

inline Stream& stream_of(abi::Stream* handle) {
  if (handle == kPerThread) {
    Stream*& place = gpu().per_thread[std::this_thread::get_id()];
    Stream& stream = gpu().default_stream(place, current.back());
    stream.blocking = true;
    return stream;
  }
  const auto found = gpu().streams.find(reinterpret_cast<Stream*>(handle));
  demand(found != gpu().streams.end(), "no such stream");
  demand(found->second->context == current.back(), "a stream of another context");
  return *found->second;
}
inline Event& event_of(abi::Event* handle) {
  auto* const event = reinterpret_cast<Event*>(handle);
  demand(gpu().events.count(event) == 1, "no such event");
  return *event;
}

// Something that no capture allows was done to it.
inline Status spoil(const std::shared_ptr<Capture>& capture, Status status) {
  capture->valid = false;
  return status;
}

inline Status submit(Stream& stream, std::shared_ptr<Work> work) {
  if (stream.capture != nullptr) {
    if (!stream.capture->valid) return abi::status::capture_invalidated;
    stream.capture->nodes.push_back({std::move(work), stream.after});
    stream.after = {stream.capture->nodes.size() - 1};
    return 0;
  }
  Gpu& here = gpu();
  if (here.failure != 0) return here.failure;
  stream.queue.push_back(std::move(work));
  if (!here.late) {
    while (here.step()) {
    }
  } else if (here.random() % 4 == 0) {
    here.step();
  }
  return 0;
}

extern "C" {

inline Status cuInit(unsigned) {
  const Call call(false);
  return gpu().count == 0 || call.refused() ? abi::status::no_device : 0;
}
inline Status cuDriverGetVersion(int* version) {
  const Call call(false);
  *version = 13000;
  return call.refused() ? abi::status::invalid_value : 0;
}
inline Status cuGetErrorName(Status status, const char** name) {
  switch (status) {
    case abi::status::invalid_value:
      *name = "CUDA_ERROR_INVALID_VALUE";
      return 0;
    case abi::status::out_of_memory:
      *name = "CUDA_ERROR_OUT_OF_MEMORY";
      return 0;
    case abi::status::no_device:
      *name = "CUDA_ERROR_NO_DEVICE";
      return 0;
    case abi::status::invalid_image:
      *name = "CUDA_ERROR_INVALID_IMAGE";
      return 0;
    case abi::status::launch_failed:
      *name = "CUDA_ERROR_LAUNCH_FAILED";
      return 0;
    case abi::status::not_supported:
      *name = "CUDA_ERROR_NOT_SUPPORTED";
      return 0;
    case abi::status::capture_unsupported:
      *name = "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED";
      return 0;
    default:
      *name = "CUDA_ERROR_OF_A_TEST";
      return 0;
  }
}
inline Status cuDeviceGetCount(int* count) {
  const Call call(false);
  *count = gpu().count;
  return call.refused() ? abi::status::invalid_value : 0;
}
inline Status cuDeviceGet(Device* device, int ordinal) {
  const Call call(false);
  if (call.refused() || ordinal < 0 || ordinal >= gpu().count) {
    return abi::status::invalid_value;
  }
  *device = ordinal;
  return 0;
}
inline Status cuDeviceGetName(char* name, int length, Device) {
  const Call call(false);
  std::snprintf(name, static_cast<std::size_t>(length), "GPU of a test");
  return call.refused() ? abi::status::invalid_value : 0;
}
inline Status cuDeviceTotalMem_v2(std::size_t* nbytes, Device) {
  const Call call(false);
  *nbytes = gpu().memory;
  return call.refused() ? abi::status::invalid_value : 0;
}
inline Status cuDeviceGetAttribute(int* value, int which, Device) {
  const Call call(false);
  *value = which == abi::attribute::virtual_memory_management  ? gpu().virtual_memory
           : which == abi::attribute::compute_capability_major ? 9
                                                               : 0;
  return call.refused() ? abi::status::invalid_value : 0;
}
inline Status cuDevicePrimaryCtxRetain(abi::Context** context, Device device) {
  const Call call(false);
  if (call.refused()) return abi::status::out_of_memory;
  demand(device >= 0 && device < gpu().count, "no such device");
  ++gpu().retained;
  *context = reinterpret_cast<abi::Context*>(&contexts[device]);
  return 0;
}
inline Status cuDevicePrimaryCtxRelease_v2(Device) {
  const Call call(false);
  demand(gpu().retained-- > 0, "a context is released too often");
  return 0;
}
inline Status cuCtxPushCurrent_v2(abi::Context* context) {
  demand(gpu().process == getpid(), "a call in the child of a fork");
  const auto index = reinterpret_cast<char*>(context) - contexts;
  demand(index >= 0 && index < kMaxGpus, "not a context");
  current.push_back(static_cast<int>(index));
  return 0;
}
inline Status cuCtxPopCurrent_v2(abi::Context** context) {
  demand(!current.empty(), "a context is popped too often");
  *context = reinterpret_cast<abi::Context*>(&contexts[current.back()]);
  current.pop_back();
  return 0;
}
inline Status cuThreadExchangeStreamCaptureMode(int* mode) {
  demand(*mode >= 0 && *mode <= abi::kRelaxedCapture, "no mode of captures");
  std::swap(*mode, capture_mode);
  return 0;
}
inline Status cuCtxGetStreamPriorityRange(int* least, int* greatest) {
  const Call call;
  *least = 0;
  *greatest = -5;
  return call.refused() ? abi::status::invalid_value : 0;
}
inline Status cuCtxSynchronize() {
  const Call call;
  for (const auto& [handle, stream] : gpu().streams) {
    if (stream->capture == nullptr) continue;
    return spoil(stream->capture, abi::status::capture_unsupported);
  }
  gpu().finish();
  return call.refused() ? abi::status::launch_failed : gpu().failure;
}

// -- memory --------------------------------------------------------------------------

inline Status cuMemGetInfo_v2(std::size_t* free, std::size_t* total) {
  const Call call;
  *total = gpu().memory;
  *free = gpu().memory - gpu().used_by[current.back()];
  return call.refused() ? abi::status::invalid_value : 0;
}
inline Status cuMemGetAllocationGranularity(std::size_t* nbytes,
                                            const AllocationProperties* what,
                                            int) {
  const Call call(false);
  if (call.lacks("cuMemGetAllocationGranularity")) return abi::status::not_supported;
  if (call.refused()) return abi::status::invalid_value;
  demand(what->type == abi::kPinnedAllocation && what->location.type == abi::kOnDevice,
         "properties of no allocation");
  *nbytes = kPage;
  return 0;
}
inline Status cuMemAddressReserve(Address* address,
                                  std::size_t size,
                                  std::size_t alignment,
                                  Address,
                                  unsigned long long) {
  const Call call;
  demand(size > 0 && size % kPage == 0, "reserve: not whole pages");
  if (call.lacks("cuMemAddressReserve")) return abi::status::not_supported;
  if (call.refused()) return abi::status::out_of_memory;
  *address = addresses(size, std::max(alignment, kPage));
  gpu().reserved.emplace(*address, size);
  return 0;
}
inline Status cuMemAddressFree(Address address, std::size_t size) {
  const Call call;
  const auto found = gpu().reserved.find(address);
  demand(found != gpu().reserved.end() && found->second == size, "not a reservation");
  const auto page = gpu().mapped.lower_bound(address);
  demand(page == gpu().mapped.end() || page->first >= address + size,
         "a page of the reservation is mapped");
  gpu().reserved.erase(found);
  unmap_memory(pointer(address), size);
  return 0;
}
inline Status cuMemCreate(Handle* handle,
                          std::size_t size,
                          const AllocationProperties* what,
                          unsigned long long) {
  const Call call;
  demand(size > 0 && size % kPage == 0, "create: not whole pages");
  if (call.lacks("cuMemCreate")) return abi::status::not_supported;
  std::shared_ptr<Physical> bytes =
      call.refused() ? nullptr : take(size, what->location.id);
  if (bytes == nullptr) return abi::status::out_of_memory;
  *handle = ++gpu().handles;
  gpu().physical.emplace(*handle, std::move(bytes));
  return 0;
}
inline Status cuMemRelease(Handle handle) {
  const Call call;
  demand(gpu().physical.erase(handle) == 1, "a handle is released too often");
  return 0;
}
inline Status cuMemMap(Address address,
                       std::size_t size,
                       std::size_t offset,
                       Handle handle,
                       unsigned long long) {
  const Call call;
  const auto found = gpu().physical.find(handle);
  demand(found != gpu().physical.end() && offset == 0 && size == kPage &&
             found->second->size == size && address % kPage == 0,
         "map: not a page");
  const auto range = gpu().reserved.upper_bound(address);
  demand(range != gpu().reserved.begin() &&
             address + size <= std::prev(range)->first + std::prev(range)->second,
         "map: not reserved");
  if (call.lacks("cuMemMap")) return abi::status::out_of_memory;
  if (call.refused()) return abi::status::out_of_memory;
  demand(gpu().mapped.emplace(address, Gpu::Mapping{found->second, false}).second,
         "map: mapped already");
  found->second->map(address);
  return 0;
}
inline Status cuMemUnmap(Address address, std::size_t size) {
  const Call call;
  demand(!gpu().busy && !gpu().pending(address, size),
         "unmap: work is queued that may use it");
  demand(size == kPage && gpu().mapped.erase(address) == 1, "unmap: not as mapped");
  unmap_addresses(address, size);
  return 0;
}
inline Status cuMemSetAccess(Address address,
                             std::size_t size,
                             const AccessDescription* access,
                             std::size_t count) {
  const Call call;
  demand(count == 1 && access->flags == abi::kReadAndWrite,
         "an access of another kind");
  if (call.lacks("cuMemSetAccess")) return abi::status::not_supported;
  if (call.refused()) return abi::status::invalid_value;
  for (Address page = address; page < address + size; page += kPage) {
    const auto found = gpu().mapped.find(page);
    demand(found != gpu().mapped.end(), "set_access: not mapped");
    found->second.access = true;
  }
  return 0;
}
inline Status cuMemAlloc_v2(Address* address, std::size_t size) {
  const Call call;
  std::shared_ptr<Physical> bytes =
      call.refused() ? nullptr : take(size, current.back());
  if (bytes == nullptr) return abi::status::out_of_memory;
  *address = addresses(whole(size), 4096);
  bytes->map(*address);
  gpu().blocks.emplace(*address, std::move(bytes));
  return 0;
}
inline Status cuMemFree_v2(Address address) {
  const Call call;
  const auto found = gpu().blocks.find(address);
  demand(found != gpu().blocks.end(), "free: no block");
  gpu().finish();  // it waits
  unmap_memory(pointer(address), whole(found->second->size));
  gpu().blocks.erase(found);
  return 0;
}
inline Status cuMemHostAlloc(void** address, std::size_t size, unsigned) {
  const Call call;
  if (call.refused() || size > kMaxPinned) return abi::status::out_of_memory;
  *address = map_memory(
      nullptr, whole(size), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (*address == MAP_FAILED) return abi::status::out_of_memory;
  std::memset(*address, kGarbage, size);
  gpu().pinned.emplace(number(*address), size);
  return 0;
}
inline Status cuMemFreeHost(void* address) {
  const Call call;
  const auto found = gpu().pinned.find(number(address));
  demand(found != gpu().pinned.end(), "free: no pinned memory");
  demand(!gpu().pending(found->first, found->second),
         "free: work is queued that may use pinned memory");
  unmap_memory(address, whole(found->second));
  gpu().pinned.erase(found);
  return 0;
}
// -- work ----------------------------------------------------------------------------

inline Status cuMemsetD8Async(Address address,
                              unsigned char value,
                              std::size_t count,
                              abi::Stream* stream) {
  const Call call;
  if (call.refused()) return abi::status::invalid_value;
  return submit(stream_of(stream), std::make_shared<Fill>(address, value, count));
}
inline Status cuMemcpyAsync(Address target,
                            Address source,
                            std::size_t count,
                            abi::Stream* handle) {
  const Call call;
  Stream& stream = stream_of(handle);
  if (call.refused()) return abi::status::invalid_value;
  const auto known = [count](Address address) {
    return is_device(address) || is_pinned(address, count);
  };
  if (known(target) && known(source)) {
    return submit(stream, std::make_shared<Copy>(target, source, count));
  }
  demand(stream.capture == nullptr, "a capture of a copy of pageable memory");
  gpu().until([&stream] { return stream.queue.empty(); });
  if (gpu().failure == 0) Copy(target, source, count).advance();
  return gpu().failure;
}
inline Status cuStreamCreateWithPriority(abi::Stream** handle,
                                         unsigned flags,
                                         int priority) {
  const Call call;
  demand(flags == abi::kNonBlocking || gpu().foreign,
         "a stream that waits for the default stream");
  if (call.refused()) return abi::status::out_of_memory;
  auto made = std::make_unique<Stream>(Stream{current.back(), priority});
  made->blocking = flags != abi::kNonBlocking;
  *handle = reinterpret_cast<abi::Stream*>(made.get());
  gpu().streams.emplace(made.get(), std::move(made));
  return 0;
}
inline Status cuStreamDestroy_v2(abi::Stream* handle) {
  const Call call;
  Stream& stream = stream_of(handle);
  if (stream.capture != nullptr) stream.capture->valid = false;
  demand(stream.queue.empty(), "a stream goes, and nobody can wait for its work");
  gpu().streams.erase(&stream);
  return 0;
}
inline Status cuStreamSynchronize(abi::Stream* handle) {
  const Call call;
  if (handle == nullptr) {  // it has no work of its own that is late
    demand(!gpu().captures_blocking(), "a wait for the default stream amid a capture");
    for (const auto& [thread, stream] : gpu().per_thread) {
      gpu().until([each = stream] { return each->queue.empty(); });
    }
    gpu().busy = false;
    return call.refused() ? abi::status::launch_failed : gpu().failure;
  }
  Stream& stream = stream_of(handle);
  if (stream.capture != nullptr) {
    return spoil(stream.capture, abi::status::capture_unsupported);
  }
  gpu().until([&stream] { return stream.queue.empty(); });
  return call.refused() ? abi::status::launch_failed : gpu().failure;
}
inline Status cuStreamQuery(abi::Stream* handle) {
  const Call call;
  Stream& stream = stream_of(handle);
  if (stream.capture != nullptr) {
    return spoil(stream.capture, abi::status::capture_unsupported);
  }
  gpu().step();
  if (call.refused()) return abi::status::launch_failed;
  if (gpu().failure != 0) return gpu().failure;
  return stream.queue.empty() ? 0 : abi::status::not_ready;
}
inline Status cuEventCreate(abi::Event** handle, unsigned flags) {
  const Call call;
  if (call.refused()) return abi::status::out_of_memory;
  auto* const made = new Event{flags};
  gpu().events.insert(made);
  *handle = reinterpret_cast<abi::Event*>(made);
  return 0;
}
inline Status cuEventDestroy_v2(abi::Event* handle) {
  const Call call;
  Event* const event = &event_of(handle);
  gpu().events.erase(event);
  delete event;
  return 0;
}
// The default stream has no work of its own that is late, and follows those of threads.
inline Status record_behind_threads(Event& event) {
  std::vector<std::shared_ptr<Mark>> marks;
  for (const auto& [thread, stream] : gpu().per_thread) {
    if (stream->queue.empty()) continue;
    marks.push_back(std::make_shared<Mark>());
    stream->queue.push_back(std::make_shared<Record>(marks.back()));
  }
  if (marks.empty()) return 0;
  event.mark = std::make_shared<Mark>();
  Stream& stream = gpu().default_stream(gpu().legacy, current.back());
  for (auto& mark : marks) stream.queue.push_back(std::make_shared<Wait>(mark));
  return submit(stream, std::make_shared<Record>(event.mark));
}
inline Status cuEventRecord(abi::Event* handle, abi::Stream* on) {
  const Call call;
  Event& event = event_of(handle);
  if (on == nullptr) {
    if (call.refused()) return abi::status::invalid_value;
    event.capture = nullptr;
    event.mark = nullptr;
    return record_behind_threads(event);
  }
  Stream& stream = stream_of(on);
  if (call.refused()) return abi::status::invalid_value;
  if (stream.capture != nullptr) {
    if (!stream.capture->valid) return abi::status::capture_invalidated;
    event.capture = stream.capture;
    event.after = stream.after;
    event.mark = nullptr;
    return 0;
  }
  event.capture = nullptr;
  event.mark = std::make_shared<Mark>();
  return submit(stream, std::make_shared<Record>(event.mark));
}
inline Status cuStreamWaitEvent(abi::Stream* handle, abi::Event* on, unsigned) {
  const Call call;
  Stream& stream = stream_of(handle);
  Event& event = event_of(on);
  if (call.refused()) return abi::status::invalid_value;
  if (event.capture != nullptr) {
    if (!event.capture->on) return abi::status::captured_event;
    if (!event.capture->valid) return abi::status::capture_invalidated;
    if (stream.capture != nullptr && stream.capture != event.capture) {
      return spoil(stream.capture, abi::status::capture_isolation);
    }
    if (stream.capture == nullptr) stream.after.clear();
    stream.capture = event.capture;
    stream.after.insert(event.after.begin(), event.after.end());
    return 0;
  }
  if (event.mark == nullptr) return 0;
  if (stream.capture != nullptr) {
    return spoil(stream.capture, abi::status::capture_isolation);
  }
  return submit(stream, std::make_shared<Wait>(event.mark));
}
inline Status cuEventSynchronize(abi::Event* handle) {
  const Call call;
  Event& event = event_of(handle);
  if (event.capture != nullptr) return abi::status::captured_event;
  if (event.mark != nullptr) {
    gpu().until([mark = event.mark] { return mark->reached; });
  }
  return call.refused() ? abi::status::launch_failed : gpu().failure;
}
inline Status cuEventQuery(abi::Event* handle) {
  const Call call;
  Event& event = event_of(handle);
  if (event.capture != nullptr) return abi::status::captured_event;
  gpu().step();
  if (call.refused()) return abi::status::launch_failed;
  if (gpu().failure != 0) return gpu().failure;
  return event.mark == nullptr || event.mark->reached ? 0 : abi::status::not_ready;
}
inline Status cuEventElapsedTime(float* milliseconds,
                                 abi::Event* start,
                                 abi::Event* end) {
  const Call call;
  Event& first = event_of(start);
  Event& last = event_of(end);
  const bool timed = first.flags == 0 && last.flags == 0;
  if (call.refused() || !timed || first.mark == nullptr || last.mark == nullptr) {
    return abi::status::invalid_handle;
  }
  if (!first.mark->reached || !last.mark->reached) return abi::status::not_ready;
  *milliseconds = static_cast<float>(1000 * (last.mark->seconds - first.mark->seconds));
  return 0;
}

// -- graphs --------------------------------------------------------------------------

inline Status cuStreamIsCapturing(abi::Stream* handle, int* status) {
  const Call call;
  *status = 0;
  if (handle == nullptr) {
    return gpu().captures_blocking() ? abi::status::capture_implicit : 0;
  }
  const Stream& stream = stream_of(handle);
  *status = stream.capture == nullptr ? 0 : stream.capture->valid ? 1 : 2;
  return 0;
}
inline Status cuStreamBeginCapture_v2(abi::Stream* handle, int mode) {
  const Call call;
  Stream& stream = stream_of(handle);
  demand(mode == abi::kRelaxedCapture || gpu().foreign,
         "a capture that forbids the host's calls");
  if (call.refused()) return abi::status::invalid_value;
  if (stream.capture != nullptr) return abi::status::capture_unmatched;
  stream.capture = std::make_shared<Capture>();
  stream.capture->mode = mode;
  stream.began = true;
  stream.after.clear();
  return 0;
}
inline Status cuStreamEndCapture(abi::Stream* handle, abi::Graph** graph) {
  const Call call;
  Stream& stream = stream_of(handle);
  *graph = nullptr;
  if (!stream.began) return abi::status::capture_unmatched;
  const std::shared_ptr<Capture> capture = stream.capture;
  std::vector<bool> joined(capture->nodes.size());
  const std::set<std::size_t> last = stream.after;
  for (const auto& [other, kept] : gpu().streams) {
    if (kept->capture == capture) kept->capture = nullptr;
  }
  stream.began = false;
  capture->on = false;
  for (std::size_t i = capture->nodes.size(); i-- > 0;) {  // edges lead to earlier ones
    if (last.count(i) == 0 && !joined[i]) return abi::status::capture_unjoined;
    for (const std::size_t before : capture->nodes[i].after) joined[before] = true;
  }
  if (!capture->valid) return abi::status::capture_invalidated;
  if (call.refused()) return abi::status::out_of_memory;
  auto* const made = new Graph{capture->nodes};
  gpu().graphs.insert(made);
  *graph = reinterpret_cast<abi::Graph*>(made);
  return 0;
}
inline Status cuGraphGetNodes(abi::Graph* handle, void** nodes, std::size_t* count) {
  const Call call(false);
  demand(nodes == nullptr, "the nodes themselves");
  *count = reinterpret_cast<Graph*>(handle)->nodes.size();
  return call.refused() ? abi::status::invalid_value : 0;
}
inline Status cuGraphInstantiateWithFlags(abi::Executable** made,
                                          abi::Graph* handle,
                                          unsigned long long) {
  const Call call(false);
  auto* const recorded = reinterpret_cast<Graph*>(handle);
  demand(gpu().graphs.count(recorded) == 1, "no such graph");
  if (call.refused()) return abi::status::out_of_memory;
  auto copy = std::make_shared<Graph>(*recorded);
  *made = reinterpret_cast<abi::Executable*>(copy.get());
  gpu().executables.emplace(copy.get(), std::move(copy));
  return 0;
}
inline Status cuGraphDestroy(abi::Graph* handle) {
  const Call call(false);
  auto* const recorded = reinterpret_cast<Graph*>(handle);
  demand(gpu().graphs.erase(recorded) == 1, "a graph goes twice");
  delete recorded;
  return 0;
}
inline Status cuGraphLaunch(abi::Executable* handle, abi::Stream* on) {
  const Call call;
  Stream& stream = stream_of(on);
  const auto found = gpu().executables.find(reinterpret_cast<Graph*>(handle));
  demand(found != gpu().executables.end(), "no such graph");
  if (call.refused()) return abi::status::invalid_value;
  if (stream.capture != nullptr) {
    return spoil(stream.capture, abi::status::capture_unsupported);
  }
  return submit(stream, std::make_shared<Replay>(found->second));
}
inline Status cuGraphExecDestroy(abi::Executable* handle) {
  const Call call(false);
  demand(gpu().executables.erase(reinterpret_cast<Graph*>(handle)) == 1,
         "a graph goes twice");
  return 0;
}

// -- kernels -------------------------------------------------------------------------

// An image is the path of a library, or "kernels": those that a test has put there.
inline Status cuModuleLoadData(abi::Module** handle, const void* image) {
  const Call call;
  if (call.refused()) return abi::status::out_of_memory;
  auto made = std::make_unique<Module>();
  const auto* const path = static_cast<const char*>(image);
  if (std::strcmp(path, "kernels") != 0) {
    made->library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (made->library == nullptr) return abi::status::invalid_image;
    made->backwards = static_cast<int*>(dlsym(made->library, "cuda_shim_backwards"));
  }
  *handle = reinterpret_cast<abi::Module*>(made.get());
  gpu().modules.emplace(made.get(), std::move(made));
  return 0;
}
inline Status cuModuleUnload(abi::Module* handle) {
  const Call call;
  const auto found = gpu().modules.find(reinterpret_cast<Module*>(handle));
  demand(found != gpu().modules.end(), "a module goes twice");
  demand(!gpu().pending(found->first), "a module goes while its work is queued");
  for (auto row = gpu().functions.begin(); row != gpu().functions.end();) {
    row = row->second->module == found->first ? gpu().functions.erase(row)
                                              : std::next(row);
  }
  if (found->second->library != nullptr) dlclose(found->second->library);
  gpu().modules.erase(found);
  return 0;
}
inline Status cuModuleGetFunction(abi::Function** handle,
                                  abi::Module* of,
                                  const char* name) {
  const Call call;
  const auto found = gpu().modules.find(reinterpret_cast<Module*>(of));
  demand(found != gpu().modules.end(), "no such module");
  if (call.refused()) return abi::status::invalid_value;
  const Module& module = *found->second;
  const Code* code = nullptr;
  if (module.library == nullptr) {
    const auto known = gpu().kernels.find(name);
    if (known != gpu().kernels.end()) code = &known->second;
  } else {
    code = static_cast<const Code*>(
        dlsym(module.library, (std::string(name) + "_kernel").c_str()));
  }
  if (code == nullptr) return abi::status::not_found;
  auto made = std::make_unique<Function>(Function{&module, *code});
  *handle = reinterpret_cast<abi::Function*>(made.get());
  gpu().functions.emplace(made.get(), std::move(made));
  return 0;
}
inline Function& function_of(abi::Function* handle) {
  const auto found = gpu().functions.find(reinterpret_cast<Function*>(handle));
  demand(found != gpu().functions.end(), "no such function");
  return *found->second;
}
inline Status cuFuncSetAttribute(abi::Function* handle, int which, int value) {
  const Call call;
  Function& function = function_of(handle);
  demand(which == abi::kMaxDynamicSharedMemory, "another attribute");
  if (call.refused() || value > 227 << 10) return abi::status::invalid_value;
  function.max_shared = value;
  return 0;
}
inline Status cuLaunchKernel(abi::Function* handle,
                             unsigned grid_x,
                             unsigned grid_y,
                             unsigned grid_z,
                             unsigned block_x,
                             unsigned block_y,
                             unsigned block_z,
                             unsigned shared_bytes,
                             abi::Stream* on,
                             void** arguments,
                             void** extra) {
  const Call call;
  Stream& stream = stream_of(on);
  Function& function = function_of(handle);
  demand(extra == nullptr, "arguments of another kind");
  const bool fits = grid_x > 0 && grid_y > 0 && grid_z > 0 && grid_x < 1U << 31 &&
                    grid_y < 1U << 16 && grid_z < 1U << 16 && block_x > 0 &&
                    block_y > 0 && block_z > 0 && block_z <= 64 && block_x <= 1024 &&
                    block_y <= 1024 && block_x * block_y * block_z <= 1024 &&
                    shared_bytes <= static_cast<unsigned>(function.max_shared);
  if (call.refused() || !fits) return abi::status::invalid_value;
  auto work = std::make_shared<Launch>();
  work->function = &function;
  const unsigned grid[] = {grid_x, grid_y, grid_z};
  const unsigned block[] = {block_x, block_y, block_z};
  std::copy_n(grid, 3, work->grid);
  std::copy_n(block, 3, work->block);
  for (std::size_t i = 0; i < function.code.count; ++i) {
    const auto* const bytes = static_cast<const unsigned char*>(arguments[i]);
    work->arguments.emplace_back(bytes, bytes + function.code.sizes[i]);
  }
  return submit(stream, std::move(work));
}

}  // extern "C"

inline abi::Api api() {
  abi::Api found;
#define CUDA_STAND_IN_SET(name, parameters) found.name = cuda_stand_in::name;
  MEMCFG_CUDA_FUNCTIONS(CUDA_STAND_IN_SET)
#undef CUDA_STAND_IN_SET
  return found;
}

}  // namespace cuda_stand_in
