#include "memcfg/fork_lock.hpp"

#include <pthread.h>

#include <new>
#include <thread>

namespace memcfg {

void ForkBarrier::close() noexcept {
  fork_.lock();
  forking_ = true;
  while (inside_ != 0) std::this_thread::yield();
}

void ForkBarrier::open() noexcept {
  forking_ = false;
  fork_.unlock();
}

void ForkBarrier::reopen() noexcept {
  inside_ = 0;  // one of the others may have been about to leave again
  open();
}

// Never destroyed: blocks may be given back while the process ends.
ForkBarrier& NoFork::barrier() noexcept {
  alignas(ForkBarrier) static unsigned char storage[sizeof(ForkBarrier)];
  static ForkBarrier* const barrier = new (storage) ForkBarrier;
  return *barrier;
}

bool NoFork::watch_forks() noexcept {
  return pthread_atfork([] { barrier().close(); },
                        [] { barrier().open(); },
                        [] { barrier().reopen(); }) == 0;
}

// When the library is loaded, before any pool is made: what is registered first is
// called last before a fork, and a pool at work in another thread may need the gate to
// come to its end.
const bool NoFork::kWatched = watch_forks();

}  // namespace memcfg
