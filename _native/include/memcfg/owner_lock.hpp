// A lock that its owner takes without an atomic read-modify-write.
#pragma once

#include <atomic>

namespace memcfg {

// One thread, the owner, enters often; others revoke the lock seldom. The owner says
// that it is inside, then looks whether it was revoked; a revoker says so, then looks
// whether the owner is inside. One of the two sees the other if a full barrier stands
// between the two steps of each (Dekker's algorithm).
//
// A lock that is cheap leaves the owner's barrier to the revoker, who makes every
// thread of the process pass one: membarrier(2), Linux 4.14. Where the system lacks
// that, or takes it away later, a lock is not cheap (any more), and its owner pays for
// its own barrier each time.
class OwnerLock {
 public:
  OwnerLock() noexcept : state_(barriers_on_demand() ? 0 : kFenced) {}

  // By the owner. False: revoked, and the owner is not inside.
  bool enter() noexcept {
    inside_.store(true, std::memory_order_relaxed);
    std::atomic_signal_fence(std::memory_order_seq_cst);
    return state_.load(std::memory_order_acquire) == 0 || enter_fenced();
  }
  void leave() noexcept { inside_.store(false, std::memory_order_release); }

  // By others, who exclude one another. `each(act)` calls act(lock) for all locks they
  // need; their owners are outside until `restore`.
  template <typename Each>
  static void revoke(const Each& each) noexcept {
    bool cheap = false;
    each([&](OwnerLock& lock) {
      if (lock.state_.fetch_or(kRevoked) == 0) cheap = true;
    });
    if (cheap && !pass_barrier()) {
      each([](OwnerLock& lock) { lock.state_.fetch_or(kFenced); });
      outlast_store_buffers();
    }
    each([](OwnerLock& lock) { lock.wait(); });
  }
  void restore() noexcept { state_.fetch_and(~kRevoked, std::memory_order_release); }

  // In the child of a fork, which has no owner inside: before the fork the lock was
  // revoked and waited for, so an owner there was only about to find that out.
  void reset_owner() noexcept { inside_.store(false, std::memory_order_relaxed); }

 private:
  static constexpr unsigned kRevoked = 1;
  static constexpr unsigned kFenced = 2;  // the owner pays for its own barrier

  static bool barriers_on_demand() noexcept;
  static bool pass_barrier() noexcept;  // false: the system has taken it away
  static void outlast_store_buffers() noexcept;
  bool enter_fenced() noexcept;
  void wait() const noexcept;

  std::atomic<bool> inside_{false};
  std::atomic<unsigned> state_;
};

}  // namespace memcfg
