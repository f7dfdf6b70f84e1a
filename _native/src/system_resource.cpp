#include "memcfg/system_resource.hpp"

#include <algorithm>
#include <cstring>
#include <utility>

#include "memcfg/error.hpp"
#include "memcfg/host_limits.hpp"

namespace memcfg {
namespace {

// Bytes reserved on the host's limits; released unless they are committed.
class HostReservation {
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
  HostReservation(const HostReservation&) = delete;
  HostReservation& operator=(const HostReservation&) = delete;

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
    ledger_.add(address, request, size);
  } catch (...) {
    system_->deallocate(address, size);
    throw;
  }
  reservation.commit();
  if (request.zeroed && touchable()) std::memset(address, 0, request.size);
  return address;
}

void SystemResource::deallocate(void* address, Bytes size) {
  release_block(address, size, ledger_.remove(address, size));
}

}  // namespace memcfg
