// What of a pool's limit is used, and the peak.
#pragma once

#include <algorithm>
#include <atomic>

#include "memcfg/heap.hpp"
#include "memcfg/host_limits.hpp"
#include "memcfg/types.hpp"

namespace memcfg {

// A request reserves its bytes, takes memory, and commits them, or rolls them back. The
// quotas of thread caches are reserved for blocks to come.
//
//     charged() == in use + uncommitted + quotas <= limit(),  in use <= peak.
//
// Sizes are bytes, multiples of kAlignment. Used under the pool's lock, but for
// limit().
class LimitAccounting {
 public:
  // `host`: the limit of all pools is on these bytes too; null: it is not.
  LimitAccounting(Bytes limit, HostMeter* host) noexcept : limit_(limit), host_(host) {}
  ~LimitAccounting() { release(charged_); }

  Bytes limit() const noexcept { return limit_.load(std::memory_order_relaxed); }
  void set_limit(Bytes limit) noexcept { limit_.store(limit); }  // pre: >= charged()

  Bytes charged() const noexcept { return charged_; }
  Bytes max_used() const noexcept { return max_used_; }  // the peak of all time
  Bytes in_use(Bytes quotas) const noexcept { return charged_ - uncommitted_ - quotas; }
  // `min_quotas`: the sum of the lowest quota that each cache had since note_peak.
  Bytes peak(Bytes min_quotas) const noexcept {
    return std::max(peak_, in_use(min_quotas));
  }

  bool fits(Bytes size) const noexcept { return size <= limit() - charged_; }
  void reserve(Bytes size) {  // throws AllocationFailed, nothing changed
    if (!fits(size)) throw AllocationFailed{OutOfMemoryInfo::limit_reached};
    if (host_ != nullptr && !host_->reserve_tracked(size)) {
      throw AllocationFailed{OutOfMemoryInfo::tracked_limit};
    }
    charged_ += size;
    uncommitted_ += size;
  }
  void commit(Bytes size) noexcept { uncommitted_ -= size; }
  void roll_back(Bytes size) noexcept {
    commit(size);
    release(size);
  }
  void release(Bytes size) noexcept {
    charged_ -= size;
    if (host_ != nullptr) host_->release_tracked(size);
  }

  // Between two notes no quota falls below the lowest that its cache saw, so no more
  // was in use than in_use(min_quotas).
  void note_peak(Bytes min_quotas) noexcept {
    peak_ = peak(min_quotas);
    max_used_ = std::max(max_used_, peak_);
  }
  void reset_peak(Bytes quotas) noexcept { peak_ = in_use(quotas); }

 private:
  std::atomic<Bytes> limit_;
  HostMeter* const host_;
  Bytes charged_ = 0;
  Bytes uncommitted_ = 0;
  Bytes peak_ = 0;
  Bytes max_used_ = 0;
};

}  // namespace memcfg
