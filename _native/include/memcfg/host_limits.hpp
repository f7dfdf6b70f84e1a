// What this process may take of its host's memory, over all pools.
#pragma once

#include <atomic>
#include <mutex>

#include "memcfg/heap.hpp"
#include "memcfg/limit.hpp"
#include "memcfg/types.hpp"

namespace memcfg {

// Two knobs, as ND4J has two: the bytes that pools count, and the memory that the
// system counts, whoever took it. kNoLimit is none.
struct HostLimits {
  Bytes tracked = kNoLimit;  // bytes in use in all pools on the host
  Bytes rss = kNoLimit;      // bytes resident in the process, when memory is taken;
                             // those of mapped files count until they are dropped
};

HostLimits host_limits() noexcept;

// The limits before. Throws out_of_memory when more is in use, nothing changed, and
// std::invalid_argument for a limit of 0.
HostLimits set_host_limits(HostLimits limits);

// Bytes in use in all pools on the host.
Bytes tracked_bytes();

// The counter behind it. Any thread.
//
// Memory is reserved before it is taken, in one step with the look at the limit. So
// with a limit, whoever reserved what and when,
//
//     resident without it when the limit was set + pages reserved <= limit.
class HostMeter final : public PageBudget {
 public:
  bool reserve_tracked(Bytes size) noexcept { return tracked_.reserve(size); }
  void release_tracked(Bytes size) noexcept { tracked_.release(size); }
  Bytes free() const noexcept { return tracked_.free(); }
  // False: `more` bytes of memory would pass the limit on resident bytes, once all that
  // is reserved has been touched. Drops the pages of mapped files before it refuses.
  bool reserve(Bytes more) noexcept override;
  void release(Bytes size) noexcept override { pages_ -= size; }

  // Held by whoever changes the limits, and over a fork; before any pool's lock.
  std::mutex& mutex() noexcept { return mutex_; }

 private:
  friend HostLimits host_limits() noexcept;
  friend HostLimits set_host_limits(HostLimits limits);
  friend Bytes tracked_bytes();
  bool try_reserve(Bytes more) noexcept;
  bool fits(Bytes pages, Bytes more) const noexcept;

  std::mutex mutex_;
  Limit tracked_{kNoLimit};
  std::atomic<Bytes> rss_{kNoLimit};
  std::atomic<Bytes> pages_{0};   // reserved, touched or not
  std::atomic<Bytes> others_{0};  // resident without them when the limit was set
};

HostMeter& host_meter() noexcept;

}  // namespace memcfg
