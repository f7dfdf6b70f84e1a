#include "memcfg/owner_lock.hpp"

#include <exception>
#include <thread>

#if defined(__linux__) && !defined(__SANITIZE_THREAD__)
#include <linux/membarrier.h>
#include <sys/mman.h>
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

// Taking a right from a page that was just written makes the system interrupt every
// processor that runs this process, which passes a barrier then (x86; as in Folly's
// asymmetric fence before membarrier existed).
void interrupt_everywhere() noexcept {
  const auto size = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
  void* const page =
      mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (page == MAP_FAILED) std::terminate();  // going on could hand out memory twice
  *static_cast<volatile char*>(page) = 1;
  mprotect(page, size, PROT_READ);
  munmap(page, size);
}

// A fork may forget the registration; a sandbox may have taken the call away since.
void barrier_everywhere() noexcept {
  if (membarrier(MEMBARRIER_CMD_PRIVATE_EXPEDITED)) return;
  membarrier(MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED);
  if (!membarrier(MEMBARRIER_CMD_PRIVATE_EXPEDITED)) interrupt_everywhere();
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
