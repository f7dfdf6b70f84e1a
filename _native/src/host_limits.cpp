#include "memcfg/host_limits.hpp"

#include <algorithm>
#include <mutex>
#include <stdexcept>

#include "memcfg/error.hpp"
#include "memcfg/file_resource.hpp"
#include "memcfg/pool.hpp"
#include "memcfg/system.hpp"

namespace memcfg {
namespace {

out_of_memory lowered(Bytes asked, Bytes in_use, Bytes limit) {
  OutOfMemoryInfo report;
  report.cause = OutOfMemoryInfo::limit_lowered;
  report.device = "host";
  report.requested = report.rounded = asked;
  report.in_use = in_use;
  report.limit = limit;
  report.largest_free = limit == kNoLimit ? kNoLimit : limit - std::min(limit, in_use);
  return out_of_memory(std::move(report));
}

}  // namespace

HostMeter& host_meter() noexcept {
  static HostMeter* const meter = new HostMeter;  // pools may outlive static objects
  return *meter;
}

// The pages of mapped files are given up before anything is refused: they cost a look
// into the file, no data.
bool HostMeter::reserve(Bytes more) noexcept {
  if (try_reserve(more)) return true;
  FileResource::drop_all();
  return try_reserve(more);
}

bool HostMeter::try_reserve(Bytes more) noexcept {
  Bytes pages = pages_.load();
  while (fits(pages, more)) {
    if (pages_.compare_exchange_weak(pages, pages + more)) return true;
  }
  return false;
}

// Whether `more` bytes may be reserved on top of `pages`.
bool HostMeter::fits(Bytes pages, Bytes more) const noexcept {
  const Bytes limit = rss_.load();
  if (limit == kNoLimit) return true;
  const Bytes worst = std::max(resident_size(), others_.load() + pages);
  return worst <= limit && more <= limit - worst;
}

HostLimits host_limits() noexcept {
  const HostMeter& meter = host_meter();
  return {meter.tracked_.limit(), meter.rss_.load()};
}

HostLimits set_host_limits(HostLimits limits) {
  if (limits.tracked == 0 || limits.rss == 0) {
    throw std::invalid_argument("a limit must be positive");
  }
  HostMeter& meter = host_meter();
  const std::lock_guard<std::mutex> lock(meter.mutex());
  const HostLimits old = host_limits();
  if (limits.rss != kNoLimit) FileResource::drop_all();
  const Bytes resident = resident_size();
  if (limits.rss < old.rss && resident > limits.rss) {
    throw lowered(limits.rss, resident, old.rss);
  }
  if (!meter.tracked_.set(limits.tracked)) {
    PoolRegistry::instance().reclaim_quotas();
    if (!meter.tracked_.set(limits.tracked)) {
      throw lowered(limits.tracked, tracked_bytes(), old.tracked);
    }
  }
  meter.others_.store(resident - std::min(resident, meter.pages_.load()));
  meter.rss_.store(limits.rss);
  return old;
}

Bytes tracked_bytes() {
  PoolRegistry::instance().reclaim_quotas();
  return host_meter().tracked_.used();
}

}  // namespace memcfg
