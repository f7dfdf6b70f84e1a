// A ceiling on bytes that many threads reservation from.
#pragma once

#include <algorithm>
#include <atomic>

#include "memcfg/types.hpp"

namespace memcfg {

// Counts what is left rather than what is used: then a reservation and a change of the
// limit are each one compare-exchange on one number, and no interleaving of the two
// can pass the limit. No sum is formed, so nothing overflows.
//
// Invariant: used + free() == limit(), hence used <= limit() at every moment.
class Limit {
 public:
  explicit Limit(Bytes limit) noexcept : free_(limit), limit_(limit) {}

  Bytes limit() const noexcept { return limit_.load(); }  // bytes
  Bytes free() const noexcept { return free_.load(); }    // bytes
  // Bytes; while another thread changes the limit, not less than are used or none.
  Bytes used() const noexcept {
    const Bytes limit = limit_.load();
    return limit - std::min(limit, free_.load());
  }

  // False: more than is free, and nothing has changed.
  bool reserve(Bytes size) noexcept {
    Bytes free = free_.load();
    while (size <= free) {
      if (free_.compare_exchange_weak(free, free - size)) return true;
    }
    return false;
  }

  // Pre: `size` bytes were used and not released.
  void release(Bytes size) noexcept { free_.fetch_add(size); }

  // False: more than `limit` is used, and nothing has changed. Safe against
  // reservation and release; callers serialise it against itself.
  bool set(Bytes limit) noexcept {
    const Bytes old = limit_.load();
    if (limit >= old) {
      limit_.store(limit);
      free_.fetch_add(limit - old);
      return true;
    }
    if (!reserve(old - limit)) return false;
    limit_.store(limit);
    return true;
  }

 private:
  std::atomic<Bytes> free_;   // bytes that a reservation may still take
  std::atomic<Bytes> limit_;  // bytes
};

}  // namespace memcfg
