// A lock that no fork finds held.
#pragma once

#include <mutex>
#include <shared_mutex>

namespace memcfg {

// In the child of a fork only the forking thread goes on: a lock that another one held
// would stay held, over books half written. So a fork waits until nobody is inside any
// section that this class guards.
//
// The innermost lock: whoever has one takes no other, and calls nobody who might.
class ForkLock {
 public:
  explicit ForkLock(std::mutex& mutex) : gate_(gate()), lock_(mutex) {}
  ForkLock(const ForkLock&) = delete;
  ForkLock& operator=(const ForkLock&) = delete;

 private:
  static std::shared_mutex& gate() noexcept;  // a fork holds it alone
  static bool watch_forks() noexcept;
  static const bool kWatched;

  const std::shared_lock<std::shared_mutex> gate_;
  const std::lock_guard<std::mutex> lock_;
};

}  // namespace memcfg
