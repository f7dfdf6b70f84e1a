#include "memcfg/fork_lock.hpp"

#include <pthread.h>

#include <new>
#include <thread>

namespace memcfg {

void ForkGate::close() noexcept {
  fork_.lock();
  forking_ = true;
  while (inside_ != 0) std::this_thread::yield();
}

void ForkGate::open() noexcept {
  forking_ = false;
  fork_.unlock();
}

void ForkGate::reopen() noexcept {
  inside_ = 0;  // one of the others may have been about to leave again
  open();
}

// Never destroyed: blocks may be given back while the process ends.
ForkGate& NoFork::gate() noexcept {
  alignas(ForkGate) static unsigned char room[sizeof(ForkGate)];
  static ForkGate* const gate = new (room) ForkGate;
  return *gate;
}

bool NoFork::watch_forks() noexcept {
  return pthread_atfork([] { gate().close(); },
                        [] { gate().open(); },
                        [] { gate().reopen(); }) == 0;
}

// When the library is loaded, before any pool is made: what is registered first is
// called last before a fork, and a pool at work in another thread may need the gate to
// come to its end.
const bool NoFork::kWatched = watch_forks();

}  // namespace memcfg
