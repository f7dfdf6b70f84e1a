#include "memcfg/simulated.hpp"

#include <algorithm>
#include <iterator>
#include <new>
#include <stdexcept>
#include <utility>

#include "memcfg/error.hpp"
#include "memcfg/fork_lock.hpp"

namespace memcfg {
namespace {

// Addresses that no machine maps: x86-64 has 57 bits of them at most, AArch64 52. Half
// of the numbers up to 2^63, so that differences and sums of two stay positive.
constexpr std::uintptr_t kFirst = std::uintptr_t{1} << 62;
constexpr std::uintptr_t kLast = std::uintptr_t{1} << 63;

// Which of these addresses are out. One for the process, as its page tables are: two
// devices must not hand out the same address. Used under a ForkLock, by any thread.
class Addresses {
 public:
  // 0: there is no room, or none for the books.
  std::uintptr_t take(Bytes size, Bytes alignment) noexcept try {
    const std::lock_guard<std::mutex> lock(mutex_);
    std::uintptr_t start = taken_.empty() ? kFirst : taken_.rbegin()->second;
    start = align_up(start, alignment);
    if (!fits(start, kLast, size)) start = search(size, alignment);
    if (start != 0) taken_.emplace(start, start + size);
    return start;
  } catch (const std::bad_alloc&) {
    return 0;
  }

  void give(std::uintptr_t start) noexcept {
    const std::lock_guard<std::mutex> lock(mutex_);
    taken_.erase(start);
  }

 private:
  static bool fits(std::uintptr_t start, std::uintptr_t end, Bytes size) noexcept {
    return start <= end && size <= end - start;
  }

  // Only once the top is reached: the lowest gap.
  std::uintptr_t search(Bytes size, Bytes alignment) const noexcept {
    std::uintptr_t start = align_up(kFirst, alignment);
    for (const auto& [first, last] : taken_) {
      if (fits(start, first, size)) return start;
      start = align_up(last, alignment);
    }
    return fits(start, kLast, size) ? start : 0;
  }

  std::mutex mutex_;
  std::map<std::uintptr_t, std::uintptr_t> taken_;  // [first, last)
};

// Never destroyed: blocks may be given back while the process ends.
Addresses& addresses() noexcept {
  alignas(Addresses) static unsigned char room[sizeof(Addresses)];
  static Addresses* const all = new (room) Addresses;
  return *all;
}

constexpr Bytes kLeastPage = 4096;                        // bytes
constexpr std::size_t kMostPages = std::size_t{1} << 24;  // 2 MiB of bits

Bytes page_for(Bytes nbytes) noexcept {
  Bytes page = kLeastPage;
  while (nbytes / page > kMostPages) page *= 2;
  return page;
}

void* pointer(std::uintptr_t address) noexcept {
  return reinterpret_cast<void*>(address);
}

std::uintptr_t number(const void* address) noexcept {
  return reinterpret_cast<std::uintptr_t>(address);
}

}  // namespace

SimulatedSystem::SimulatedSystem(Bytes nbytes)
    : nbytes_(nbytes),
      page_(page_for(nbytes)),
      room_((nbytes / page_ + (nbytes % page_ != 0)) * page_) {
  if (nbytes == 0) throw std::invalid_argument("a device has at least one byte");
  if (nbytes > kLast - kFirst) {
    throw std::invalid_argument("a simulated device has at most 2^62 bytes");
  }
}

SimulatedSystem::~SimulatedSystem() {
  const ForkLock lock(mutex_);
  for (const auto& row : stretches_) addresses().give(row.first);
}

std::uintptr_t SimulatedSystem::take(Bytes size,
                                     Bytes alignment,
                                     Bytes committed) const noexcept try {
  const ForkLock lock(mutex_);
  if (!draw(committed, nbytes_)) return 0;
  const std::uintptr_t start = addresses().take(size, alignment);
  if (start == 0) {
    taken_.committed -= committed;
    return 0;
  }
  try {
    stretches_.emplace(start, Stretch{size, committed});
  } catch (const std::bad_alloc&) {
    addresses().give(start);
    taken_.committed -= committed;
    return 0;
  }
  taken_.addresses += size;
  taken_.peak_committed = std::max(taken_.peak_committed, taken_.committed);
  return start;
} catch (...) {  // a lock that the system refuses
  return 0;
}

bool SimulatedSystem::draw(Bytes size, Bytes most) const noexcept {
  if (taken_.committed > most || size > most - taken_.committed) return false;
  taken_.committed += size;
  return true;
}

SimulatedSystem::Stretch& SimulatedSystem::stretch_at(void* address) const noexcept {
  return std::prev(stretches_.upper_bound(number(address)))->second;
}

void* SimulatedSystem::reserve(Bytes size, Access) const noexcept {
  return pointer(take(size, page_, 0));
}

bool SimulatedSystem::commit(void* address, Bytes size, Access) const noexcept {
  const ForkLock lock(mutex_);
  if (!draw(size, room_)) return false;
  taken_.peak_committed = std::max(taken_.peak_committed, taken_.committed);
  stretch_at(address).committed += size;
  return true;
}

void SimulatedSystem::decommit(void* address, Bytes size, Access) const noexcept {
  const ForkLock lock(mutex_);
  stretch_at(address).committed -= size;
  taken_.committed -= size;
}

void SimulatedSystem::release(void* address, Bytes size) const noexcept {
  const ForkLock lock(mutex_);
  const auto found = stretches_.find(number(address));
  taken_.committed -= found->second.committed;
  taken_.addresses -= size;
  stretches_.erase(found);
  addresses().give(number(address));
}

void* SimulatedSystem::map_books(Bytes size) const noexcept {
  return host_system().map_books(size);
}

void SimulatedSystem::unmap_books(void* address, Bytes size) const noexcept {
  host_system().unmap_books(address, size);
}

void* SimulatedSystem::reserve_books(Bytes size) const noexcept {
  return host_system().reserve_books(size);
}

bool SimulatedSystem::commit_books(void* address, Bytes size) const noexcept {
  return host_system().commit_books(address, size);
}

void SimulatedSystem::forget_books(void* address, Bytes size) const noexcept {
  host_system().forget_books(address, size);
}

void* SimulatedSystem::allocate(Bytes size, Bytes alignment) const noexcept {
  return pointer(take(size, alignment, size));
}

void SimulatedSystem::deallocate(void* address, Bytes size) const noexcept {
  release(address, size);
}

SimulatedSystem::Taken SimulatedSystem::taken() const {
  const ForkLock lock(mutex_);
  return taken_;
}

void SimulatedSystem::reset_peak() const {
  const ForkLock lock(mutex_);
  taken_.peak_committed = taken_.committed;
}

void SimulatedSystem::check() const {
  const ForkLock lock(mutex_);
  Taken sum;
  std::uintptr_t end = kFirst;
  for (const auto& [start, stretch] : stretches_) {
    require(end <= start && stretch.size <= kLast - start, "two stretches overlap");
    require(stretch.committed <= stretch.size, "more committed than reserved");
    sum.committed += stretch.committed;
    sum.addresses += stretch.size;
    end = start + stretch.size;
  }
  require(sum.committed == taken_.committed, "the committed bytes do not add up");
  require(sum.addresses == taken_.addresses, "the addresses do not add up");
  require(taken_.committed <= room_, "more committed than the device has");
  require(taken_.committed <= taken_.peak_committed, "the peak is too low");
}

SimulatedResource::SimulatedResource(std::string name, Bytes nbytes)
    : SimulatedResource(std::move(name),
                        std::make_shared<const SimulatedSystem>(nbytes)) {}

SimulatedResource::SimulatedResource(std::string name,
                                     std::shared_ptr<const SimulatedSystem> system)
    : SystemResource(std::move(name), system), system_(std::move(system)) {}

ResourceStats SimulatedResource::stats() const {
  ResourceStats stats = SystemResource::stats();
  const SimulatedSystem::Taken taken = system_->taken();
  stats.reserved = taken.committed;
  stats.peak_reserved = taken.peak_committed;
  stats.addresses = taken.addresses;
  stats.limit = system_->memory_size();
  stats.largest_free = (stats.limit - taken.committed) / kAlignment * kAlignment;
  return stats;
}

void SimulatedResource::reset_peak() {
  SystemResource::reset_peak();
  system_->reset_peak();
}

void SimulatedResource::check() const {
  SystemResource::check();
  system_->check();
}

}  // namespace memcfg
