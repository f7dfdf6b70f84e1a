#include "memcfg/system_resource.hpp"

#include <algorithm>
#include <cstring>
#include <iterator>
#include <new>
#include <stdexcept>
#include <utility>

#include "memcfg/error.hpp"
#include "memcfg/forks.hpp"
#include "memcfg/host_limits.hpp"

namespace memcfg {
namespace {

// Bytes reserved on the host's limits; released unless they are committed.
class HostReservation : private NoCopy {
 public:
  HostReservation(const System& system, Bytes size)
      : size_(system.on_host() ? size : 0),
        tracked_(size_ == 0 || host_meter().reserve_tracked(size_)),
        resident_(tracked_ && (size_ == 0 || host_meter().reserve(size_))) {}
  ~HostReservation() {
    if (size_ == 0) return;
    if (resident_) host_meter().release(size_);
    if (tracked_) host_meter().release_tracked(size_);
  }

  void commit() noexcept { size_ = 0; }
  bool tracked() const noexcept { return tracked_; }    // the limit on tracked bytes
  bool resident() const noexcept { return resident_; }  // and that on resident ones

 private:
  Bytes size_;
  bool tracked_;
  bool resident_;
};

}  // namespace

SystemResource::SystemResource(std::string name)
    : SystemResource(
          std::move(name),
          std::shared_ptr<const System>(std::shared_ptr<void>(), &host_system())) {}

SystemResource::SystemResource(std::string name, std::shared_ptr<const System> system)
    : name_(std::move(name)), system_(std::move(system)) {}

SystemResource::~SystemResource() {
  ledger_.each([this](void* address, Bytes size, Bytes reserved) {
    release_block(address, size, reserved);
  });
}

void SystemResource::release_block(void* address, Bytes size, Bytes reserved) noexcept {
  system_->deallocate(address, reserved);
  if (!system_->on_host()) return;
  host_meter().release(align_up(size));
  host_meter().release_tracked(align_up(size));
}

void* SystemResource::allocate(const Request& request) {
  require_valid(request);
  const Bytes alignment = std::max(request.alignment, kAlignment);
  if (request.size > kNoLimit - alignment) {  // rounding up would overflow
    throw out_of_memory_error(*this, OutOfMemoryInfo::no_memory, request.size);
  }
  const Bytes size = align_up(request.size, alignment);
  HostReservation reservation(*system_, align_up(request.size));
  if (!reservation.tracked())
    throw out_of_memory_error(*this, OutOfMemoryInfo::tracked_limit, request.size);
  if (!reservation.resident())
    throw out_of_memory_error(*this, OutOfMemoryInfo::rss_limit, request.size);
  void* const address = system_->allocate(size, alignment);
  if (address == nullptr)
    throw out_of_memory_error(*this, OutOfMemoryInfo::no_memory, request.size);
  try {
    if (request.zeroed) system_->zero(address, request.size);
    ledger_.add(address, request, size);
  } catch (...) {
    system_->deallocate(address, size);
    throw;
  }
  reservation.commit();
  return address;
}

void SystemResource::deallocate(void* address, Bytes size) {
  release_block(address, size, ledger_.remove(address, size));
}

namespace {

// Addresses that no machine maps: x86-64 has 57 bits of them at most, AArch64 52. Half
// of the numbers up to 2^63, so that differences and sums of two stay positive.
constexpr std::uintptr_t kFirst = std::uintptr_t{1} << 62;
constexpr std::uintptr_t kLast = std::uintptr_t{1} << 63;

// Which of these addresses are out. One for the process, as its page tables are: two
// devices must not hand out the same address. Used under a ForkLock, by any thread.
class Addresses {
 public:
  // 0: there are no addresses, or no memory for the metadata.
  std::uintptr_t allocate(Bytes size, Bytes alignment) noexcept try {
    const std::lock_guard<std::mutex> lock(mutex_);
    std::uintptr_t start = allocated_.empty() ? kFirst : allocated_.rbegin()->second;
    start = align_up(start, alignment);
    if (!fits(start, kLast, size)) start = search(size, alignment);
    if (start != 0) allocated_.emplace(start, start + size);
    return start;
  } catch (const std::bad_alloc&) {
    return 0;
  }

  void release(std::uintptr_t start) noexcept {
    const std::lock_guard<std::mutex> lock(mutex_);
    allocated_.erase(start);
  }

 private:
  static bool fits(std::uintptr_t start, std::uintptr_t end, Bytes size) noexcept {
    return start <= end && size <= end - start;
  }

  // Only once the top is reached: the lowest gap.
  std::uintptr_t search(Bytes size, Bytes alignment) const noexcept {
    std::uintptr_t start = align_up(kFirst, alignment);
    for (const auto& [first, last] : allocated_) {
      if (fits(start, first, size)) return start;
      start = align_up(last, alignment);
    }
    return fits(start, kLast, size) ? start : 0;
  }

  std::mutex mutex_;
  std::map<std::uintptr_t, std::uintptr_t> allocated_;  // [first, last)
};

// Never destroyed: blocks may be given back while the process ends.
Addresses& addresses() noexcept {
  alignas(Addresses) static unsigned char storage[sizeof(Addresses)];
  static Addresses* const all = new (storage) Addresses;
  return *all;
}

constexpr Bytes kMinPage = 4096;                         // bytes
constexpr std::size_t kMaxPages = std::size_t{1} << 24;  // 2 MiB of bits

Bytes page_for(Bytes nbytes) noexcept {
  Bytes page = kMinPage;
  while (nbytes / page > kMaxPages) page *= 2;
  return page;
}

void* pointer(std::uintptr_t address) noexcept {
  return reinterpret_cast<void*>(address);
}

std::uintptr_t number(const void* address) noexcept {
  return reinterpret_cast<std::uintptr_t>(address);
}

}  // namespace

DeviceSystem::Usage DeviceSystem::usage() const {
  const ForkLock lock(mutex_);
  return usage_;
}

void DeviceSystem::reset_peak() const {
  const ForkLock lock(mutex_);
  usage_.peak_committed = usage_.committed;
}

SimulatedSystem::SimulatedSystem(Bytes nbytes)
    : nbytes_(nbytes),
      page_(page_for(nbytes)),
      capacity_((nbytes / page_ + (nbytes % page_ != 0)) * page_) {
  if (nbytes == 0) throw std::invalid_argument("a device has at least one byte");
  if (nbytes > kLast - kFirst) {
    throw std::invalid_argument("a simulated device has at most 2^62 bytes");
  }
}

SimulatedSystem::~SimulatedSystem() {
  const ForkLock lock(mutex_);
  for (const auto& row : extents_) addresses().release(row.first);
}

std::uintptr_t SimulatedSystem::allocate_extent(Bytes size,
                                                Bytes alignment,
                                                Bytes committed) const noexcept try {
  const ForkLock lock(mutex_);
  if (!try_commit(committed, nbytes_)) return 0;
  const std::uintptr_t start = addresses().allocate(size, alignment);
  if (start == 0) {
    usage_.committed -= committed;
    return 0;
  }
  try {
    extents_.emplace(start, Extent{size, committed});
  } catch (const std::bad_alloc&) {
    addresses().release(start);
    usage_.committed -= committed;
    return 0;
  }
  usage_.addresses += size;
  usage_.peak_committed = std::max(usage_.peak_committed, usage_.committed);
  return start;
} catch (...) {  // a lock that the system refuses
  return 0;
}

bool SimulatedSystem::try_commit(Bytes size, Bytes maximum) const noexcept {
  if (usage_.committed > maximum || size > maximum - usage_.committed) return false;
  usage_.committed += size;
  return true;
}

SimulatedSystem::Extent& SimulatedSystem::extent_at(void* address) const noexcept {
  return std::prev(extents_.upper_bound(number(address)))->second;
}

void* SimulatedSystem::reserve(Bytes size, Access) const noexcept {
  return pointer(allocate_extent(size, page_, 0));
}

bool SimulatedSystem::commit(void* address, Bytes size, Access) const noexcept {
  const ForkLock lock(mutex_);
  if (!try_commit(size, capacity_)) return false;
  usage_.peak_committed = std::max(usage_.peak_committed, usage_.committed);
  extent_at(address).committed += size;
  return true;
}

void SimulatedSystem::decommit(void* address, Bytes size, Access) const noexcept {
  const ForkLock lock(mutex_);
  extent_at(address).committed -= size;
  usage_.committed -= size;
}

void SimulatedSystem::release(void* address, Bytes size) const noexcept {
  const ForkLock lock(mutex_);
  const auto found = extents_.find(number(address));
  usage_.committed -= found->second.committed;
  usage_.addresses -= size;
  extents_.erase(found);
  addresses().release(number(address));
}

void* SimulatedSystem::allocate(Bytes size, Bytes alignment) const noexcept {
  return pointer(allocate_extent(size, alignment, size));
}

void SimulatedSystem::check() const {
  const ForkLock lock(mutex_);
  Usage sum;
  std::uintptr_t end = kFirst;
  for (const auto& [start, extent] : extents_) {
    require(end <= start && extent.size <= kLast - start, "two extents overlap");
    require(extent.committed <= extent.size, "more committed than reserved");
    sum.committed += extent.committed;
    sum.addresses += extent.size;
    end = start + extent.size;
  }
  require(sum.committed == usage_.committed, "the committed bytes do not add up");
  require(sum.addresses == usage_.addresses, "the addresses do not add up");
  require(usage_.committed <= capacity_, "more committed than the device has");
  require(usage_.committed <= usage_.peak_committed, "the peak is too low");
}

DeviceResource::DeviceResource(std::string name,
                               std::shared_ptr<const DeviceSystem> system)
    : SystemResource(std::move(name), system), system_(std::move(system)) {}

ResourceStats DeviceResource::stats() const {
  ResourceStats stats = SystemResource::stats();
  const DeviceSystem::Usage usage = system_->usage();
  stats.reserved = usage.committed;
  stats.peak_reserved = usage.peak_committed;
  stats.addresses = usage.addresses;
  stats.limit = system_->memory_size();
  stats.largest_free = (stats.limit - usage.committed) / kAlignment * kAlignment;
  return stats;
}

void DeviceResource::reset_peak() {
  SystemResource::reset_peak();
  system_->reset_peak();
}

void DeviceResource::check() const {
  SystemResource::check();
  system_->check();
}

SimulatedResource::SimulatedResource(std::string name, Bytes nbytes)
    : DeviceResource(std::move(name), std::make_shared<const SimulatedSystem>(nbytes)) {
}

}  // namespace memcfg
