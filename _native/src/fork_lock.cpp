#include "memcfg/fork_lock.hpp"

#include <pthread.h>

#include <new>

namespace memcfg {

// Never destroyed: blocks may be given back while the process ends.
std::shared_mutex& ForkLock::gate() noexcept {
  alignas(std::shared_mutex) static unsigned char room[sizeof(std::shared_mutex)];
  static std::shared_mutex* const gate = new (room) std::shared_mutex;
  return *gate;
}

// In the child it is made anew, since its holder is a thread of the parent.
bool ForkLock::watch_forks() noexcept {
  return pthread_atfork([] { gate().lock(); },
                        [] { gate().unlock(); },
                        [] { new (&gate()) std::shared_mutex; }) == 0;
}

// When the library is loaded, before any pool is made: what is registered first is
// called last before a fork, and a pool at work in another thread may need the gate to
// come to its end.
const bool ForkLock::kWatched = watch_forks();

}  // namespace memcfg
