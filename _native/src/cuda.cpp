#include "memcfg/cuda.hpp"

#include <dlfcn.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdint>
#include <new>
#include <stdexcept>
#include <utility>

#include "memcfg/cuda_stream.hpp"
#include "memcfg/error.hpp"
#include "memcfg/forks.hpp"

namespace memcfg {
namespace {

void* find(void* handle, const char* name, const std::string& path) {
  void* const address = dlsym(handle, name);
  if (address == nullptr) {
    throw missing_dependency("'" + path + "' has no function '" + name +
                             "': a driver of CUDA 11.4 or newer is needed");
  }
  return address;
}

cuda::Api load(const std::string& path) {
  void* const handle = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
  if (handle == nullptr) {
    const char* const reason = dlerror();
    throw missing_dependency("a GPU needs NVIDIA's driver, which cannot be loaded: " +
                             std::string(reason != nullptr ? reason : path));
  }
  cuda::Api api;
  using namespace cuda;
#define MEMCFG_CUDA_LOAD(name, parameters) \
  api.name = reinterpret_cast<Status(*) parameters>(find(handle, #name, path));
  MEMCFG_CUDA_FUNCTIONS(MEMCFG_CUDA_LOAD)
#undef MEMCFG_CUDA_LOAD
  return api;
}

cuda::Address number(const void* address) noexcept {
  return reinterpret_cast<std::uintptr_t>(address);
}

void* pointer(cuda::Address address) noexcept {
  return reinterpret_cast<void*>(static_cast<std::uintptr_t>(address));
}

// The fork count of the process when it first initialized a driver. A child of that
// process inherits the driver's memory, but the driver does not work there.
constexpr std::uint64_t kNever = ~std::uint64_t{0};
std::atomic<std::uint64_t> initialized{kNever};

[[noreturn]] void refuse_child() {
  throw std::runtime_error(
      "this process was forked from one that uses CUDA, and so cannot use the GPU: "
      "start it with the 'spawn' or 'forkserver' method of multiprocessing");
}

}  // namespace

CudaDriver::CudaDriver(const std::string& path) : CudaDriver(load(path)) {}

CudaDriver::CudaDriver(const cuda::Api& api) : api_(api), forks_(fork_count()) {
  std::uint64_t first = initialized;
  if (first != kNever && first != forks_) refuse_child();
  const cuda::Status status = api_.cuInit(0);
  if (status == 0) {
    initialized.compare_exchange_strong(first = kNever, forks_);
    return;
  }
  throw missing_dependency(
      "NVIDIA's driver is there, but there is no GPU that it can use: cuInit failed "
      "with " +
      words(status));
}

std::string CudaDriver::words(cuda::Status status) const {
  const char* name = nullptr;
  if (api_.cuGetErrorName(status, &name) != 0 || name == nullptr) name = "an error";
  return std::string(name) + " (" + std::to_string(status) + ")";
}

void CudaDriver::check(cuda::Status status, const char* what) const {
  if (status == 0) return;
  throw kernel_failure(std::string("the CUDA driver failed in ") + what + ": " +
                       words(status));
}

void CudaDriver::require_usable() const {
  if (!usable()) refuse_child();
}

bool CudaDriver::usable() const noexcept {
  return fork_count() == forks_;
}

int CudaDriver::version() const {
  require_usable();
  int version = 0;
  check(api_.cuDriverGetVersion(&version), "cuDriverGetVersion");
  return version;
}

int CudaDriver::device_count() const {
  require_usable();
  int count = 0;
  check(api_.cuDeviceGetCount(&count), "cuDeviceGetCount");
  return count;
}

cuda::Device CudaDriver::device(int ordinal) const {
  require_usable();
  cuda::Device device = 0;
  check(api_.cuDeviceGet(&device, ordinal), "cuDeviceGet");
  return device;
}

int CudaDriver::attribute(int attribute, cuda::Device device) const {
  int value = 0;
  check(api_.cuDeviceGetAttribute(&value, attribute, device), "cuDeviceGetAttribute");
  return value;
}

CudaDeviceInfo CudaDriver::info(int ordinal) const {
  const cuda::Device found = device(ordinal);
  CudaDeviceInfo info;
  std::array<char, 256> name{};
  check(api_.cuDeviceGetName(name.data(), static_cast<int>(name.size()), found),
        "cuDeviceGetName");
  info.name = name.data();
  check(api_.cuDeviceTotalMem_v2(&info.memory, found), "cuDeviceTotalMem");
  info.capability = 10 * attribute(cuda::attribute::compute_capability_major, found) +
                    attribute(cuda::attribute::compute_capability_minor, found);
  info.virtual_memory =
      attribute(cuda::attribute::virtual_memory_management, found) != 0;
  return info;
}

CudaContext::CudaContext(std::shared_ptr<const CudaDriver> driver, int ordinal)
    : driver_(std::move(driver)),
      info_(driver_->info(ordinal)),
      device_(driver_->device(ordinal)) {
  driver_->check(api().cuDevicePrimaryCtxRetain(&handle_, device_),
                 "cuDevicePrimaryCtxRetain");
}

CudaContext::~CudaContext() {
  if (driver_->usable()) api().cuDevicePrimaryCtxRelease_v2(device_);
}

CudaContext::Current::Current(const CudaContext& context) noexcept
    : context_(context),
      status_(context.driver_->usable()
                  ? context.api().cuCtxPushCurrent_v2(context.handle_)
                  : cuda::status::deinitialized) {
  if (status_ == 0) context_.api().cuThreadExchangeStreamCaptureMode(&mode_);
}

CudaContext::Current::~Current() {
  cuda::Context* popped = nullptr;
  if (status_ != 0) return;
  context_.api().cuThreadExchangeStreamCaptureMode(&mode_);
  context_.api().cuCtxPopCurrent_v2(&popped);
}

const CudaContext::Current& CudaContext::Current::require() const {
  context_.driver().require_usable();
  context_.check(status_, "cuCtxPushCurrent");
  return *this;
}

CudaContext::Priorities CudaContext::priorities() const {
  const Current current(*this);
  current.require();
  Priorities found;
  check(api().cuCtxGetStreamPriorityRange(&found.least, &found.greatest),
        "cuCtxGetStreamPriorityRange");
  return found;
}

CudaContext::Memory CudaContext::memory() const {
  const Current current(*this);
  current.require();
  Memory found;
  check(api().cuMemGetInfo_v2(&found.free, &found.total), "cuMemGetInfo");
  return found;
}

void CudaContext::synchronize() const {
  const Current current(*this);
  current.require();
  const std::lock_guard<std::mutex> lock(mutex_);
  if (captures_ == 0) return check(api().cuCtxSynchronize(), "cuCtxSynchronize");
  check(wait_for_streams(), "cuStreamSynchronize");
}

void CudaContext::wait() const noexcept {
  const std::lock_guard<std::mutex> lock(mutex_);
  wait_for_streams();
}

void CudaContext::wait(cuda::Stream* stream) const noexcept {
  const std::lock_guard<std::mutex> lock(mutex_);
  wait_for(stream);
}

// Pre of this function and the next: the lock is held. Does not wait for a stream that
// is being captured. For the default stream the driver reports `capture_implicit` while
// a stream that it would wait for is being captured.
cuda::Status CudaContext::wait_for(cuda::Stream* stream) const noexcept {
  int capturing = 0;
  const cuda::Status status = api().cuStreamIsCapturing(stream, &capturing);
  if (status == cuda::status::capture_implicit) return 0;
  if (status != 0 || capturing != 0) return status;
  return api().cuStreamSynchronize(stream);
}

// Waits for all streams, and returns the status of the first one that fails.
cuda::Status CudaContext::wait_for_streams() const noexcept {
  cuda::Status failure = wait_for(nullptr);
  for (cuda::Stream* stream : streams_) {
    const cuda::Status status = wait_for(stream);
    if (failure == 0) failure = status;
  }
  return failure;
}

void CudaContext::add(cuda::Stream* stream) const {
  const std::lock_guard<std::mutex> lock(mutex_);
  streams_.insert(stream);
}

void CudaContext::remove(cuda::Stream* stream) const noexcept {
  const std::lock_guard<std::mutex> lock(mutex_);
  streams_.erase(stream);
}

cuda::Status CudaContext::begin_capture(cuda::Stream* stream) const noexcept {
  const std::lock_guard<std::mutex> lock(mutex_);
  int capturing = 0;
  cuda::Status status = api().cuStreamIsCapturing(stream, &capturing);
  if (status == 0 && capturing == 0) status = api().cuStreamSynchronize(stream);
  if (status == 0)
    status = api().cuStreamBeginCapture_v2(stream, cuda::kRelaxedCapture);
  if (status == 0) ++captures_;
  return status;
}

// If the event was recorded in a capture, the stream joins that capture. Without any
// capture there is none to invalidate, so the lock is not needed.
cuda::Status CudaContext::wait_event(cuda::Stream* stream,
                                     cuda::Event* event) const noexcept {
  std::unique_lock<std::mutex> lock(mutex_, std::defer_lock);
  if (captures_ > 0) lock.lock();
  return api().cuStreamWaitEvent(stream, event, 0);
}

cuda::Status CudaContext::end_capture(cuda::Stream* stream,
                                      cuda::Graph** graph) const noexcept {
  const std::lock_guard<std::mutex> lock(mutex_);
  --captures_;
  return api().cuStreamEndCapture(stream, graph);
}

// The driver aligns blocks to at least 256 bytes, and large ones to much more. If a
// block is not aligned as requested, a larger one that has an aligned start is taken.
void* CudaBlocks::allocate(Bytes size, Bytes alignment) const noexcept {
  const CudaContext::Current current(*context_);
  if (!current) return nullptr;
  Bytes taken = size;
  cuda::Address address = take(taken);
  if (address == 0) return nullptr;
  if (address % alignment != 0) {
    give_back(address);
    if (size > kNoLimit - alignment) return nullptr;
    taken += alignment;
    address = take(taken);
    if (address == 0) return nullptr;
  }
  const cuda::Address start = round_up(address, alignment);
  try {
    const ForkLock lock(mutex_);
    blocks_.emplace(start, Block{address, taken});
    usage_.addresses += taken;
    count(taken);
  } catch (...) {
    give_back(address);
    return nullptr;
  }
  return pointer(start);
}

void CudaBlocks::deallocate(void* address, Bytes) const noexcept {
  Block block{};
  {
    const ForkLock lock(mutex_);
    const auto found = blocks_.find(number(address));
    block = found->second;
    blocks_.erase(found);
    usage_.addresses -= block.size;
    count(Bytes{0} - block.size);
  }
  const CudaContext::Current current(*context_);
  if (!current) return;
  context_->wait();
  give_back(block.address);
}

// Pre: the lock is held. Adds `size` to the committed bytes; a size that is negated
// modulo 2^64 subtracts.
void CudaBlocks::count(Bytes size) const noexcept {
  usage_.committed += size;
  usage_.peak_committed = std::max(usage_.peak_committed, usage_.committed);
}

void CudaBlocks::require_sums(Usage others) const {
  for (const auto& [start, block] : blocks_) {
    require(start >= block.address, "a block begins before its memory");
    others.addresses += block.size;
    others.committed += block.size;
  }
  require(others.committed == usage_.committed, "the committed bytes do not add up");
  require(others.addresses == usage_.addresses, "the addresses do not add up");
  require(usage_.committed <= usage_.peak_committed, "the peak is too low");
}

cuda::Address CudaHostSystem::take(Bytes size) const noexcept {
  void* address = nullptr;
  const cuda::Status status =
      context_->api().cuMemHostAlloc(&address, size, cuda::kPortable);
  return status == 0 ? number(address) : 0;
}

void CudaHostSystem::give_back(cuda::Address address) const noexcept {
  context_->api().cuMemFreeHost(pointer(address));
}

CudaSystem::CudaSystem(std::shared_ptr<const CudaContext> context, bool pages)
    : CudaBlocks(std::move(context)),
      properties_{cuda::kPinnedAllocation,
                  0,
                  {cuda::kOnDevice, context_->device()},
                  nullptr,
                  {}},
      zeros_(std::make_unique<CudaStream>(context_, 0)),
      memory_(context_->info().memory),
      virtual_memory_(pages && context_->info().virtual_memory) {
  if (virtual_memory_) try_pages();
  if (!virtual_memory_) page_ = host_system().page_size();
}

CudaSystem::~CudaSystem() = default;

// A driver may announce virtual memory and then refuse it (in containers, on virtual
// GPUs). To find out, one page is created, mapped and released. If the driver is out of
// memory and `cuMemAlloc` fails, too, the GPU is full, which says nothing about pages.
void CudaSystem::try_pages() {
  const CudaContext::Current current(*context_);
  current.require();
  const cuda::Api& api = context_->api();
  std::size_t granularity = 0;
  const char* call = "cuMemGetAllocationGranularity";
  cuda::Status status = api.cuMemGetAllocationGranularity(
      &granularity, &properties_, cuda::kMinimumGranularity);
  page_ = host_system().page_size();
  while (page_ < granularity) page_ *= 2;
  cuda::Address address = 0;
  if (status == 0) {
    call = "cuMemAddressReserve";
    status = api.cuMemAddressReserve(&address, page_, page_, 0, 0);
  }
  if (status == 0) {
    status = try_page(address, call);
    api.cuMemAddressFree(address, page_);
  }
  if (status == 0) return;
  if (status == cuda::status::out_of_memory) {
    const cuda::Address block = take(page_);
    if (block == 0) return;
    give_back(block);
  }
  virtual_memory_ = false;
  refusal_ = std::string(call) + ": " + context_->driver().words(status);
}

// Maps a page and unmaps it. Returns the first status other than success, and sets
// `call` to the name of the function that returned it.
cuda::Status CudaSystem::try_page(cuda::Address address, const char*& call) const {
  const cuda::Api& api = context_->api();
  cuda::Handle handle = 0;
  call = "cuMemCreate";
  cuda::Status status = api.cuMemCreate(&handle, page_, &properties_, 0);
  if (status != 0) return status;
  call = "cuMemMap";
  status = api.cuMemMap(address, page_, 0, handle, 0);
  api.cuMemRelease(handle);
  if (status != 0) return status;
  call = "cuMemSetAccess";
  const cuda::AccessDescription access{properties_.location, cuda::kReadAndWrite};
  status = api.cuMemSetAccess(address, page_, &access, 1);
  context_->wait();
  api.cuMemUnmap(address, page_);
  return status;
}

void* CudaSystem::reserve(Bytes size, Access) const noexcept try {
  if (!virtual_memory_) return nullptr;
  Pages none(size / page_, false);
  const CudaContext::Current current(*context_);
  if (!current) return nullptr;
  cuda::Address address = 0;
  if (context_->api().cuMemAddressReserve(&address, size, page_, 0, 0) != 0)
    return nullptr;
  try {
    const ForkLock lock(mutex_);
    reservations_.emplace(address, std::move(none));
    usage_.addresses += size;
  } catch (...) {
    context_->api().cuMemAddressFree(address, size);
    return nullptr;
  }
  return pointer(address);
} catch (...) {  // no memory for the metadata
  return nullptr;
}

bool CudaSystem::map_page(cuda::Address address) const noexcept {
  const cuda::Api& api = context_->api();
  cuda::Handle handle = 0;
  if (api.cuMemCreate(&handle, page_, &properties_, 0) != 0) return false;
  const bool mapped = api.cuMemMap(address, page_, 0, handle, 0) == 0;
  api.cuMemRelease(handle);  // the mapping keeps the memory
  return mapped;
}

void CudaSystem::unmap_pages(cuda::Address address, Bytes size) const noexcept {
  for (Bytes at = 0; at < size; at += page_) {
    context_->api().cuMemUnmap(address + at, page_);  // one by one, as mapped
  }
}

void CudaSystem::note(cuda::Address address, Bytes size, bool mapped) const noexcept {
  const ForkLock lock(mutex_);
  auto& [start, pages] = *std::prev(reservations_.upper_bound(address));
  const auto first =
      pages.begin() + static_cast<Pages::difference_type>((address - start) / page_);
  std::fill(first, first + static_cast<Pages::difference_type>(size / page_), mapped);
  count(mapped ? size : Bytes{0} - size);
}

bool CudaSystem::commit(void* address, Bytes size, Access) const noexcept {
  const CudaContext::Current current(*context_);
  if (!current) return false;
  const cuda::Address first = number(address);
  Bytes mapped = 0;
  while (mapped < size && map_page(first + mapped)) mapped += page_;
  const cuda::AccessDescription access{properties_.location, cuda::kReadAndWrite};
  if (mapped < size || context_->api().cuMemSetAccess(first, size, &access, 1) != 0) {
    unmap_pages(first, mapped);
    return false;
  }
  note(first, size, true);
  return true;
}

void CudaSystem::decommit(void* address, Bytes size, Access) const noexcept {
  const CudaContext::Current current(*context_);
  if (current) {
    context_->wait();
    unmap_pages(number(address), size);
  }
  note(number(address), size, false);
}

void CudaSystem::release(void* address, Bytes size) const noexcept {
  const cuda::Address first = number(address);
  Pages pages;
  {
    const ForkLock lock(mutex_);
    const auto found = reservations_.find(first);
    pages.swap(found->second);
    reservations_.erase(found);
    usage_.addresses -= size;
    const auto mapped = std::count(pages.begin(), pages.end(), true);
    count(Bytes{0} - static_cast<Bytes>(mapped) * page_);
  }
  const CudaContext::Current current(*context_);
  if (!current) return;
  context_->wait();
  for (Bytes page = 0; page < pages.size(); ++page) {
    if (pages[page]) unmap_pages(first + page * page_, page_);
  }
  context_->api().cuMemAddressFree(first, size);
}

cuda::Address CudaSystem::take(Bytes size) const noexcept {
  cuda::Address address = 0;
  return context_->api().cuMemAlloc_v2(&address, size) == 0 ? address : 0;
}

void CudaSystem::give_back(cuda::Address address) const noexcept {
  context_->api().cuMemFree_v2(address);
}

void CudaSystem::zero(void* address, Bytes size) const {
  zeros_->fill(number(address), 0, size);
  zeros_->synchronize();
}

void CudaSystem::check() const {
  const ForkLock lock(mutex_);
  Usage sum;
  for (const auto& [start, pages] : reservations_) {
    sum.addresses += pages.size() * page_;
    sum.committed +=
        static_cast<Bytes>(std::count(pages.begin(), pages.end(), true)) * page_;
  }
  require_sums(sum);
}

std::shared_ptr<Resource> make_cuda_resource(std::string name,
                                             std::shared_ptr<const CudaContext> context,
                                             bool pages,
                                             std::string* refusal) {
  auto system = std::make_shared<CudaSystem>(std::move(context), pages);
  if (refusal != nullptr) *refusal = system->refusal();
  return std::make_shared<DeviceResource>(std::move(name), std::move(system));
}

std::shared_ptr<Resource> make_pinned_resource(
    std::string name, std::shared_ptr<const CudaContext> context) {
  return std::make_shared<SystemResource>(
      std::move(name), std::make_shared<CudaHostSystem>(std::move(context)));
}

}  // namespace memcfg
