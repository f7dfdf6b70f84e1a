#include "memcfg/owner_lock.hpp"

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
bool prepare() noexcept {
  return membarrier(MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED) &&
         membarrier(MEMBARRIER_CMD_PRIVATE_EXPEDITED);
}
void barrier_everywhere() noexcept {
  while (!membarrier(MEMBARRIER_CMD_PRIVATE_EXPEDITED)) {
    membarrier(MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED);  // a fork may forget it
  }
}
#else  // ThreadSanitizer does not know what membarrier does
bool prepare() noexcept {
  return false;
}
void barrier_everywhere() noexcept {}
#endif

}  // namespace

const bool OwnerLock::kCheap = prepare();

void OwnerLock::pass_barrier() noexcept {
  if (kCheap) barrier_everywhere();
}

void OwnerLock::wait() const noexcept {
  while (inside_.load(std::memory_order_seq_cst)) std::this_thread::yield();
}

}  // namespace memcfg
