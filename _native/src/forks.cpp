#include "memcfg/forks.hpp"

#include <dlfcn.h>
#include <pthread.h>

#include <atomic>
#include <new>
#include <thread>

#include "memcfg/threads.hpp"

#ifdef _OPENMP
#endif

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

namespace {

std::atomic<std::uint64_t> forks{0};
std::atomic<std::uint64_t> threads{0};
std::atomic<std::uint64_t> forker{0};
std::atomic<bool> lost{false};
thread_local std::uint64_t own_number = 0;

// GNU OpenMP's threads wait for the thread that opened a parallel loop, and belong to
// it. The one that forks ends its own, so that parent and child start others when they
// need them; those of other threads do not matter to the child. Since OpenMP 5; looked
// up, because older libraries lack it.
bool end_own_threads() noexcept {
#ifdef _OPENMP
  using Pause = int (*)(int);
  static const Pause pause =
      reinterpret_cast<Pause>(dlsym(RTLD_DEFAULT, "omp_pause_resource_all"));
  constexpr int kSoft = 1;  // settings such as the number of threads stay
  if (pause != nullptr && pause(kSoft) == 0) return true;
#endif
  return max_threads() == 1;
}

// Whether they stay behind: from before a fork to its end. A child that lacks them
// passes that on to its own children.
bool staying = false;

void in_child() noexcept {
  lost = staying;
  forker = thread_number();
  ++forks;
}

const int kWatched = pthread_atfork(end_threads_before_fork, nullptr, in_child);

}  // namespace

void end_threads_before_fork() noexcept {
  staying = lost || !end_own_threads();
}

std::uint64_t fork_count() noexcept {
  return forks;
}

std::uint64_t thread_number() noexcept {
  if (own_number == 0) own_number = ++threads;
  return own_number;
}

std::uint64_t forking_thread() noexcept {
  return forker;
}

bool threads_lost() noexcept {
  return lost;
}

}  // namespace memcfg
