#include "memcfg/owner_lock.hpp"

#include <chrono>
#include <thread>

#if defined(__linux__) && !defined(__SANITIZE_THREAD__)
#include <linux/membarrier.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace memcfg {
namespace {

#if defined(__linux__) && !defined(__SANITIZE_THREAD__) && defined(SYS_membarrier)
bool membarrier(int command) noexcept {
  return syscall(SYS_membarrier, command, 0, 0) == 0;
}
bool barrier_everywhere() noexcept {
  return membarrier(MEMBARRIER_CMD_PRIVATE_EXPEDITED);
}
bool prepare() noexcept {
  return membarrier(MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED) && barrier_everywhere();
}
#else  // ThreadSanitizer does not know what membarrier does
bool barrier_everywhere() noexcept {
  return false;
}
bool prepare() noexcept {
  return false;
}
#endif

// Far more than any processor keeps a store to itself: that is microseconds.
constexpr std::chrono::milliseconds kStoresAreSeen{20};

// Found out on first use, by whoever comes: a static that one thread initializes would
// be waited for for ever in the child of a fork amid that.
enum class OnDemand { unknown, works, fails };
std::atomic<OnDemand> on_demand{OnDemand::unknown};

}  // namespace

bool OwnerLock::barriers_on_demand() noexcept {
  OnDemand known = on_demand.load(std::memory_order_relaxed);
  if (known == OnDemand::unknown) {
    const OnDemand found = prepare() ? OnDemand::works : OnDemand::fails;
    if (on_demand.compare_exchange_strong(known, found)) known = found;
  }
  return known == OnDemand::works;
}

// A fork may lose the registration; a sandbox may have taken the call away since.
bool OwnerLock::pass_barrier() noexcept {
  if (barriers_on_demand() && (barrier_everywhere() || prepare())) return true;
  on_demand.store(OnDemand::fails, std::memory_order_relaxed);
  return false;
}

// Once in the life of a lock that was cheap. An owner that still took it for cheap
// looked at it before it changed: its store is in the buffer of a processor, at most,
// and leaves that whether or not somebody interrupts the processor.
void OwnerLock::outlast_store_buffers() noexcept {
  std::this_thread::sleep_for(kStoresAreSeen);
}

bool OwnerLock::enter_fenced() noexcept {
  inside_.store(true, std::memory_order_seq_cst);
  if ((state_.load(std::memory_order_seq_cst) & kRevoked) == 0) return true;
  leave();
  return false;
}

void OwnerLock::wait() const noexcept {
  while (inside_.load(std::memory_order_seq_cst)) std::this_thread::yield();
}

}  // namespace memcfg
