// A fair lock that knows its owner, and a semaphore in the order of arrival.
//
// Both are taken and left without a wait; who has to wait gets a waiter, waits a while
// with it, looks whether it was interrupted, and waits on or cancels.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <utility>

namespace memcfg {

// A thread in a queue.
class Waiter {
 public:
  explicit Waiter(std::uint64_t thread) : thread_(thread) {}

 private:
  friend class FairLock;
  friend class Semaphore;
  void notify() noexcept;
  void wait(std::chrono::milliseconds time);

  const std::uint64_t thread_;
  bool granted_ = false;  // guarded by the lock whose queue it is in
  bool notified_ = false;
  std::mutex mutex_;
  std::condition_variable changed_;
};

using WaiterPointer = std::shared_ptr<Waiter>;

// A re-entrant lock that is handed over in the order of arrival: a loop that leaves it
// and takes it again lets those in between that have waited.
//
// In the child of a fork only the thread that forked goes on. A lock that another one
// held there is lost: over what it guards somebody was at work.
//
// Invariant: owner_ is the thread that has it depth_ times, or 0; nobody waits for a
// lock that nobody has.
class FairLock {
 public:
  explicit FairLock(std::string name) : name_(std::move(name)) {}
  // Returns null once it is taken, or a waiter. Throws std::runtime_error if it is
  // lost.
  WaiterPointer enter();
  // Takes it unless another thread has it. Throws as `enter`.
  bool try_enter();
  // Returns true once it is taken.
  bool wait(const WaiterPointer& waiter, std::chrono::milliseconds time);
  // Leaves the queue, and the lock, had it been handed over meanwhile.
  void cancel(const WaiterPointer& waiter);
  // Nothing, unless the calling thread has it. Returns whether it had it.
  bool leave();
  // Whether another thread has it. Throws as `enter`.
  bool elsewhere();
  std::size_t waiting();

 private:
  bool take(std::uint64_t thread);  // pre: mutex_ is held
  WaiterPointer hand_over();        // pre: mutex_ is held
  void look_for_fork();             // pre: mutex_ is held

  const std::string name_;
  std::uint64_t owner_ = 0;
  std::size_t depth_ = 0;
  std::deque<WaiterPointer> queue_;
  std::uint64_t forks_ = 0;  // when it was last touched
  bool lost_ = false;
  std::mutex mutex_;
};

// At most so many are inside at once; the others wait in the order of arrival.
//
// Invariant: nobody waits while one is free.
class Semaphore {
 public:
  WaiterPointer enter();  // null once inside
  bool wait(const WaiterPointer& waiter, std::chrono::milliseconds time);
  void cancel(const WaiterPointer& waiter);
  void leave();
  void set_bound(std::size_t bound);  // 0: none

 private:
  bool available() const noexcept { return bound_ == 0 || inside_ < bound_; }
  void look_for_fork();  // pre: mutex_ is held

  std::size_t bound_ = 0;
  std::size_t inside_ = 0;
  std::deque<WaiterPointer> queue_;
  std::uint64_t forks_ = 0;
  std::mutex mutex_;
};

}  // namespace memcfg
