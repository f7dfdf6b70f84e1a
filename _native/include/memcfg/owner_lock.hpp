// A lock that its owner takes without an atomic read-modify-write.
#pragma once

#include <atomic>

namespace memcfg {

// One thread, the owner, enters often; others revoke the lock seldom. The owner says
// that it is inside, then looks whether it was revoked; a revoker says so, makes every
// thread of the process pass a memory barrier, then looks whether the owner is inside.
// One of the two sees the other (Dekker's algorithm; the barrier for two is paid by
// the revoker alone: membarrier(2), Linux 4.14). Where the system lacks that, the owner
// pays with a full barrier each time.
class OwnerLock {
 public:
  // By the owner. False: revoked, and the owner is not inside.
  bool enter() noexcept {
    if (kCheap) {
      inside_.store(true, std::memory_order_relaxed);
      std::atomic_signal_fence(std::memory_order_seq_cst);
    } else {
      inside_.store(true, std::memory_order_seq_cst);
    }
    if (!revoked_.load(std::memory_order_seq_cst)) return true;
    leave();
    return false;
  }
  void leave() noexcept { inside_.store(false, std::memory_order_release); }

  // By others, who exclude one another: `revoke` all they need, `pass_barrier` once,
  // then `wait` for each. The owner is outside until `restore`.
  void revoke() noexcept { revoked_.store(true, std::memory_order_seq_cst); }
  static void pass_barrier() noexcept;
  void wait() const noexcept;
  void restore() noexcept { revoked_.store(false, std::memory_order_release); }

  // In the child of a fork, which has no owner inside: before the fork the lock was
  // revoked and waited for, so an owner there was only about to find that out.
  void forget_owner() noexcept { inside_.store(false, std::memory_order_relaxed); }

 private:
  static const bool kCheap;  // the system makes all threads pass a barrier on demand

  std::atomic<bool> inside_{false};
  std::atomic<bool> revoked_{false};
};

}  // namespace memcfg
