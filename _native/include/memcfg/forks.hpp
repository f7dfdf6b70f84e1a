// What the child of a fork lacks, and sections and locks that no fork finds anybody in.
#pragma once

#include <atomic>
#include <cstdint>
#include <mutex>

#include "memcfg/types.hpp"

namespace memcfg {

// Open to any number of threads, but while the process forks. Made of what a child can
// undo: the C library's reader-writer lock knows its writer by the number of the
// parent's thread.
//
// Invariant: while a fork is on, inside_ counts nobody, but those about to leave again.
class ForkBarrier {
 public:
  void enter() noexcept {
    for (;;) {
      ++inside_;
      if (!forking_) return;
      --inside_;
      const std::lock_guard<std::mutex> until_it_is_over(fork_);
    }
  }
  void leave() noexcept { --inside_; }

  void close() noexcept;   // waits until nobody is inside
  void open() noexcept;    // in the parent
  void reopen() noexcept;  // in the child, where all others have gone

 private:
  std::atomic<int> inside_{0};
  std::atomic<bool> forking_{false};
  std::mutex fork_;  // held while one is on
};

// A section that no fork finds anybody in: forks wait until it is left.
//
// The innermost: whoever is inside enters no other, takes no lock that a thread may
// hold which forks, and calls nobody who might. What it calls may have locks of its
// own.
class NoFork : private NoCopy {
 public:
  NoFork() noexcept { barrier().enter(); }
  ~NoFork() { barrier().leave(); }

 private:
  static ForkBarrier& barrier() noexcept;
  static bool watch_forks() noexcept;
  static const bool kWatched;
};

// In the child of a fork only the forking thread goes on: a lock that another one held
// would stay held, over metadata half written. So a fork waits until nobody is inside
// any section that this class guards.
//
// The innermost lock: whoever has one takes no other, and calls nobody who might.
class ForkLock {
 public:
  explicit ForkLock(std::mutex& mutex) : lock_(mutex) {}

 private:
  const NoFork inside_;
  const std::lock_guard<std::mutex> lock_;
};

// Before a fork: ends the OpenMP threads of the calling one, and waits for their end.
// It is called anyway; who holds locks over forks that the end of a thread needs calls
// it before taking them.
void end_threads_before_fork() noexcept;

// How many forks lie between the process that loaded this library and the calling one.
std::uint64_t fork_count() noexcept;

// The calling thread's number: never that of another thread of this process or of one
// that it was forked from. The thread that forks keeps its number in the child.
std::uint64_t thread_number() noexcept;

// The number of the only thread that this process has from its parent; 0 in a process
// that was not forked.
std::uint64_t forking_thread() noexcept;

// Whether OpenMP's threads stayed behind in the parent, so that a parallel loop would
// wait for them for ever.
bool threads_lost() noexcept;

}  // namespace memcfg
