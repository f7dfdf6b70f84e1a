#include "memcfg/system_resource.hpp"

#include <algorithm>
#include <cstring>
#include <utility>

#include "memcfg/error.hpp"
#include "memcfg/host_limits.hpp"

namespace memcfg {
namespace {

// Bytes drawn on the host's limits; given back unless they are kept.
class HostDraw {
 public:
  HostDraw(const System& system, Bytes size)
      : size_(system.on_host() ? size : 0),
        granted_(size_ == 0 || host_meter().draw(size_)),
        admitted_(granted_ && (size_ == 0 || host_meter().reserve(size_))) {}
  ~HostDraw() {
    if (size_ == 0) return;
    if (admitted_) host_meter().release(size_);
    if (granted_) host_meter().give_back(size_);
  }
  HostDraw(const HostDraw&) = delete;
  HostDraw& operator=(const HostDraw&) = delete;

  void keep() noexcept { size_ = 0; }
  bool granted() const noexcept { return granted_; }    // the limit on tracked bytes
  bool admitted() const noexcept { return admitted_; }  // and that on resident ones

 private:
  Bytes size_;
  bool granted_;
  bool admitted_;
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
    give_back(address, size, reserved);
  });
}

void SystemResource::give_back(void* address, Bytes size, Bytes reserved) noexcept {
  system_->deallocate(address, reserved);
  if (!system_->on_host()) return;
  host_meter().release(align_up(size));
  host_meter().give_back(align_up(size));
}

void* SystemResource::allocate(const Request& request) {
  require_valid(request);
  const Bytes alignment = std::max(request.alignment, kAlignment);
  if (request.size > kNoLimit - alignment) {  // rounding up would overflow
    throw refusal(*this, Shortage::no_memory, request.size);
  }
  const Bytes size = align_up(request.size, alignment);
  HostDraw draw(*system_, align_up(request.size));
  if (!draw.granted()) throw refusal(*this, Shortage::tracked_limit, request.size);
  if (!draw.admitted()) throw refusal(*this, Shortage::rss_limit, request.size);
  void* const address = system_->allocate(size, alignment);
  if (address == nullptr) throw refusal(*this, Shortage::no_memory, request.size);
  try {
    ledger_.add(address, request, size);
  } catch (...) {
    system_->deallocate(address, size);
    throw;
  }
  draw.keep();
  if (request.zeroed && touchable()) std::memset(address, 0, request.size);
  return address;
}

void SystemResource::deallocate(void* address, Bytes size) {
  give_back(address, size, ledger_.remove(address, size));
}

}  // namespace memcfg
