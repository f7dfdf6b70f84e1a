// What this process may take of its host's memory, over all pools.
#pragma once

#include <atomic>

#include "memcfg/heap.hpp"
#include "memcfg/limit.hpp"
#include "memcfg/types.hpp"

namespace memcfg {

// Two knobs, as ND4J has two: the bytes that pools count, and the memory that the
// system counts, whoever took it. kNoLimit is none.
struct HostLimits {
  Bytes tracked = kNoLimit;  // bytes in use in all pools on the host
  Bytes rss = kNoLimit;      // bytes resident in the process when a pool takes pages
};

HostLimits host_limits() noexcept;

// The limits before. Throws out_of_memory when more is in use, nothing changed, and
// std::invalid_argument for a limit of 0.
HostLimits set_host_limits(HostLimits limits);

// Bytes in use in all pools on the host.
Bytes tracked_bytes();

// The counter behind it. Any thread.
class HostMeter final : public Gate {
 public:
  bool draw(Bytes size) noexcept { return tracked_.draw(size); }
  void give_back(Bytes size) noexcept { tracked_.give_back(size); }
  Bytes free() const noexcept { return tracked_.free(); }
  bool admits(Bytes more) const noexcept override;

 private:
  friend HostLimits host_limits() noexcept;
  friend HostLimits set_host_limits(HostLimits limits);
  friend Bytes tracked_bytes();
  Limit tracked_{kNoLimit};
  std::atomic<Bytes> rss_{kNoLimit};
};

HostMeter& host_meter() noexcept;

}  // namespace memcfg
