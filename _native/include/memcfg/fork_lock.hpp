// Sections and locks that no fork finds anybody in.
#pragma once

#include <atomic>
#include <mutex>

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
class NoFork {
 public:
  NoFork() noexcept { barrier().enter(); }
  ~NoFork() { barrier().leave(); }
  NoFork(const NoFork&) = delete;
  NoFork& operator=(const NoFork&) = delete;

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
  ForkLock(const ForkLock&) = delete;
  ForkLock& operator=(const ForkLock&) = delete;

 private:
  const NoFork inside_;
  const std::lock_guard<std::mutex> lock_;
};

}  // namespace memcfg
