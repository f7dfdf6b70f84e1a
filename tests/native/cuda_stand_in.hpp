// A CUDA driver without a GPU: the entry points of `cuda_abi.h` over memory of the
// host.
//
// What a device address points to lies elsewhere, so that a touch by the host ends the
// program; new memory holds garbage; every call may be made to fail; and whoever breaks
// a rule of the driver's (a free of memory that is in use, a context that is not
// current, a call after a fork) ends the program with a line that says which.
#pragma once

#include <sys/mman.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "memcfg/cuda_abi.h"
#include "systems.hpp"

namespace cuda_stand_in {

namespace abi = memcfg::cuda;
using abi::Address;
using abi::Handle;
using abi::Status;

inline constexpr std::size_t kPage = std::size_t{1} << 21;  // bytes; its granularity
inline constexpr unsigned char kGarbage = 0xA5;

// All past `operator new`, which a test may have made fail.
template <typename T>
using Rows =
    std::map<Address, T, std::less<>, PlainAllocator<std::pair<const Address, T>>>;

// Memory of the device, as long as a handle, a mapping or a block refers to it.
struct Physical {
  explicit Physical(std::size_t nbytes)
      : bytes(static_cast<unsigned char*>(mmap(nullptr,
                                               nbytes,
                                               PROT_READ | PROT_WRITE,
                                               MAP_PRIVATE | MAP_ANONYMOUS,
                                               -1,
                                               0))),
        size(nbytes) {
    if (bytes == MAP_FAILED) std::abort();
  }
  Physical(const Physical&) = delete;
  Physical& operator=(const Physical&) = delete;
  ~Physical();
  unsigned char* const bytes;  // each is the device's ^ kGarbage
  const std::size_t size;
};

// One GPU. Tests change what is public.
struct Gpu {
  std::size_t memory = std::size_t{1} << 30;  // bytes
  int virtual_memory = 1;
  int count = 1;               // of GPUs; 0: cuInit finds none
  long calls_left = 1L << 60;  // then calls fail that may fail,
  bool once = false;           // or just one does
  bool busy = false;           // work is queued that uses memory; a wait ends it

  std::recursive_mutex mutex;  // guards all below, and the calls of all threads
  pid_t process = getpid();
  std::size_t used = 0;
  std::size_t most = 0;                      // highest `used`
  int retained = 0;                          // of the primary context
  Handle handles = 0;                        // so far
  Rows<std::shared_ptr<Physical>> physical;  // by handle
  struct Mapping {
    std::shared_ptr<Physical> bytes;
    bool access;
  };
  Rows<Mapping> mapped;  // by page
  Rows<std::size_t> reserved;
  Rows<std::shared_ptr<Physical>> blocks;  // of cuMemAlloc

  bool all_back() const {
    return used == 0 && retained == 0 && physical.empty() && mapped.empty() &&
           reserved.empty() && blocks.empty();
  }
};

inline Gpu& gpu() {
  static Gpu* const only = new Gpu;
  return *only;
}

inline Physical::~Physical() {
  gpu().used -= size;
  munmap(bytes, size);
}

inline thread_local int context_depth = 0;  // how often it was pushed

inline void demand(bool holds, const char* what) {
  if (holds) return;
  std::printf("CUDA stand-in: %s\n", what);
  std::fflush(stdout);
  std::abort();
}

// The lock of a call, which is refused if it is that call's turn.
class Call {
 public:
  Call() : lock_(gpu().mutex) {
    demand(gpu().process == getpid(), "a call in the child of a fork");
    const long left = gpu().calls_left--;
    refused_ = left == 0 || (left < 0 && !gpu().once);
  }
  bool refused() const { return refused_; }

 private:
  const std::lock_guard<std::recursive_mutex> lock_;
  bool refused_;
};

inline Address addresses(std::size_t size, std::size_t alignment) {
  void* const found = mmap(nullptr,
                           size + alignment,
                           PROT_NONE,
                           MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE,
                           -1,
                           0);
  demand(found != MAP_FAILED, "no addresses");
  const auto start = reinterpret_cast<Address>(found);
  const Address first = (start + alignment - 1) / alignment * alignment;
  if (first > start) munmap(found, first - start);
  if (start + alignment > first) {
    munmap(reinterpret_cast<void*>(first + size), start + alignment - first);
  }
  return first;
}

inline std::shared_ptr<Physical> take(std::size_t size) {
  Gpu& here = gpu();
  if (size > here.memory - here.used) return nullptr;
  here.used += size;
  here.most = std::max(here.most, here.used);
  return std::allocate_shared<Physical>(PlainAllocator<Physical>(), size);
}

// Where `count` bytes at an address lie; null: not in one block or accessible page.
inline unsigned char* bytes_at(Address address, std::size_t count) {
  Gpu& here = gpu();
  const auto block = here.blocks.upper_bound(address);
  if (block != here.blocks.begin()) {
    const auto& [start, bytes] = *std::prev(block);
    if (address - start + count <= bytes->size) return bytes->bytes + (address - start);
  }
  const auto page = here.mapped.find(address / kPage * kPage);
  if (page == here.mapped.end() || !page->second.access) return nullptr;
  if (address % kPage + count > kPage) return nullptr;
  return page->second.bytes->bytes + address % kPage;
}

inline Status init(unsigned) {
  return gpu().count == 0 ? abi::status::no_device : 0;
}
inline Status driver_version(int* version) {
  *version = 13000;
  return 0;
}
inline Status error_name(Status status, const char** name) {
  *name = status == abi::status::out_of_memory ? "CUDA_ERROR_OUT_OF_MEMORY"
                                               : "CUDA_ERROR_OF_A_TEST";
  return 0;
}
inline Status device_count(int* count) {
  *count = gpu().count;
  return 0;
}
inline Status device_get(abi::Device* device, int ordinal) {
  if (ordinal < 0 || ordinal >= gpu().count) return abi::status::invalid_value;
  *device = ordinal;
  return 0;
}
inline Status device_name(char* name, int length, abi::Device) {
  std::snprintf(name, static_cast<std::size_t>(length), "GPU of a test");
  return 0;
}
inline Status total_memory(std::size_t* nbytes, abi::Device) {
  *nbytes = gpu().memory;
  return 0;
}
inline Status attribute(int* value, int which, abi::Device) {
  *value = which == abi::attribute::virtual_memory_management  ? gpu().virtual_memory
           : which == abi::attribute::compute_capability_major ? 9
                                                               : 0;
  return 0;
}
inline Status retain(abi::Context** context, abi::Device) {
  const Call call;
  if (call.refused()) return abi::status::out_of_memory;
  ++gpu().retained;
  *context = reinterpret_cast<abi::Context*>(&gpu());
  return 0;
}
inline Status release_context(abi::Device) {
  const Call call;
  demand(gpu().retained-- > 0, "a context is released too often");
  return 0;
}
inline Status push(abi::Context* context) {
  demand(gpu().process == getpid(), "a call in the child of a fork");
  demand(context == reinterpret_cast<abi::Context*>(&gpu()), "not the context");
  ++context_depth;
  return 0;
}
inline Status pop(abi::Context** context) {
  demand(context_depth-- > 0, "a context is popped too often");
  *context = nullptr;
  return 0;
}
inline Status synchronize() {
  const Call call;
  demand(context_depth > 0, "no context is current");
  gpu().busy = false;
  return 0;
}
inline Status granularity(std::size_t* nbytes,
                          const abi::AllocationProperties* what,
                          int) {
  const Call call;
  if (call.refused()) return abi::status::invalid_value;
  demand(what->type == abi::kPinnedAllocation && what->location.type == abi::kOnDevice,
         "properties of no allocation");
  *nbytes = kPage;
  return 0;
}
inline Status address_reserve(Address* address,
                              std::size_t size,
                              std::size_t alignment,
                              Address,
                              unsigned long long) {
  const Call call;
  demand(size > 0 && size % kPage == 0, "reserve: not whole pages");
  if (call.refused()) return abi::status::out_of_memory;
  *address = addresses(size, std::max(alignment, kPage));
  gpu().reserved.emplace(*address, size);
  return 0;
}
inline Status address_free(Address address, std::size_t size) {
  const Call call;
  const auto found = gpu().reserved.find(address);
  demand(found != gpu().reserved.end() && found->second == size, "not a reservation");
  const auto page = gpu().mapped.lower_bound(address);
  demand(page == gpu().mapped.end() || page->first >= address + size,
         "a page of the reservation is mapped");
  gpu().reserved.erase(found);
  munmap(reinterpret_cast<void*>(address), size);
  return 0;
}
inline Status create(Handle* handle,
                     std::size_t size,
                     const abi::AllocationProperties*,
                     unsigned long long) {
  const Call call;
  demand(size > 0 && size % kPage == 0, "create: not whole pages");
  std::shared_ptr<Physical> bytes = call.refused() ? nullptr : take(size);
  if (bytes == nullptr) return abi::status::out_of_memory;
  *handle = ++gpu().handles;
  gpu().physical.emplace(*handle, std::move(bytes));
  return 0;
}
inline Status release_handle(Handle handle) {
  const Call call;
  demand(gpu().physical.erase(handle) == 1, "a handle is released too often");
  return 0;
}
inline Status map(Address address,
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
  if (call.refused()) return abi::status::out_of_memory;
  demand(gpu().mapped.emplace(address, Gpu::Mapping{found->second, false}).second,
         "map: mapped already");
  return 0;
}
inline Status unmap(Address address, std::size_t size) {
  const Call call;
  demand(size == kPage && gpu().mapped.erase(address) == 1, "unmap: not as mapped");
  demand(!gpu().busy, "unmap: work is queued that may use it");
  return 0;
}
inline Status set_access(Address address,
                         std::size_t size,
                         const abi::AccessDescription* access,
                         std::size_t count) {
  const Call call;
  demand(count == 1 && access->flags == abi::kReadAndWrite,
         "an access of another kind");
  if (call.refused()) return abi::status::invalid_value;
  for (Address page = address; page < address + size; page += kPage) {
    const auto found = gpu().mapped.find(page);
    demand(found != gpu().mapped.end(), "set_access: not mapped");
    found->second.access = true;
  }
  return 0;
}
inline Status allocate(Address* address, std::size_t size) {
  const Call call;
  demand(context_depth > 0, "no context is current");
  std::shared_ptr<Physical> bytes = call.refused() ? nullptr : take(size);
  if (bytes == nullptr) return abi::status::out_of_memory;
  *address = addresses((size + 4095) / 4096 * 4096, 4096);
  gpu().blocks.emplace(*address, std::move(bytes));
  return 0;
}
inline Status free(Address address) {
  const Call call;
  demand(context_depth > 0, "no context is current");
  const auto found = gpu().blocks.find(address);
  demand(found != gpu().blocks.end(), "free: no block");
  munmap(reinterpret_cast<void*>(address), (found->second->size + 4095) / 4096 * 4096);
  gpu().blocks.erase(found);
  gpu().busy = false;  // cuMemFree waits
  return 0;
}
inline Status fill(Address address, unsigned char value, std::size_t count) {
  const Call call;
  demand(context_depth > 0, "no context is current");
  if (call.refused()) return abi::status::invalid_value;
  for (std::size_t at = 0; at < count;) {
    const std::size_t piece = std::min(count - at, kPage - (address + at) % kPage);
    unsigned char* const bytes = bytes_at(address + at, piece);
    demand(bytes != nullptr, "memset: no memory");
    std::memset(bytes, value ^ kGarbage, piece);
    at += piece;
  }
  return 0;
}

inline abi::Api api() {
  abi::Api found;
  found.cuInit = init;
  found.cuDriverGetVersion = driver_version;
  found.cuGetErrorName = error_name;
  found.cuDeviceGetCount = device_count;
  found.cuDeviceGet = device_get;
  found.cuDeviceGetName = device_name;
  found.cuDeviceTotalMem_v2 = total_memory;
  found.cuDeviceGetAttribute = attribute;
  found.cuDevicePrimaryCtxRetain = retain;
  found.cuDevicePrimaryCtxRelease_v2 = release_context;
  found.cuCtxPushCurrent_v2 = push;
  found.cuCtxPopCurrent_v2 = pop;
  found.cuCtxSynchronize = synchronize;
  found.cuMemGetAllocationGranularity = granularity;
  found.cuMemAddressReserve = address_reserve;
  found.cuMemAddressFree = address_free;
  found.cuMemCreate = create;
  found.cuMemRelease = release_handle;
  found.cuMemMap = map;
  found.cuMemUnmap = unmap;
  found.cuMemSetAccess = set_access;
  found.cuMemAlloc_v2 = allocate;
  found.cuMemFree_v2 = free;
  found.cuMemsetD8_v2 = fill;
  return found;
}

}  // namespace cuda_stand_in
