#include "memcfg/resource.hpp"

#include <algorithm>
#include <stdexcept>
#include <utility>

#include "memcfg/host_limits.hpp"

namespace memcfg {
namespace {

constexpr std::size_t kMaxOwners = 5;  // enough to see who holds the memory

Owners largest_of(Owners owners) {
  std::stable_sort(owners.begin(), owners.end(), [](const auto& a, const auto& b) {
    return a.second > b.second;
  });
  owners.resize(std::min(owners.size(), kMaxOwners));
  return owners;
}

// A limit of the process has refused: its numbers, not those of the resource.
void tell_of_host(OutOfMemoryInfo& report) {
  const HostLimits limits = host_limits();
  const bool tracked = report.cause == OutOfMemoryInfo::tracked_limit;
  report.limit = tracked ? limits.tracked : limits.rss;
  report.in_use = tracked ? tracked_bytes() : resident_size();
  report.reserved = report.in_use;
  report.largest_free = report.limit - std::min(report.limit, report.in_use);
}

}  // namespace

void sort_by_address(std::vector<LiveBlock>& blocks) {
  std::sort(blocks.begin(), blocks.end(), [](const LiveBlock& a, const LiveBlock& b) {
    return a.address < b.address;
  });
}

void require_valid_size(Bytes size) {
  if (size == 0) throw std::invalid_argument("a block has at least one byte");
}

void require_size(Bytes held, Bytes size) {
  if (held == size) return;
  throw bad_free("the block there has " + std::to_string(held) + " bytes, not " +
                 std::to_string(size));
}

bool Resource::release(void* address) noexcept {
  try {
    deallocate(address, size_of(address));
    return true;
  } catch (...) {
    return false;
  }
}

bool Resource::resize(void* address, Bytes size, Bytes new_size) {
  require_size(size_of(address), size);
  require_valid_size(new_size);
  return false;
}

void require_valid(const Request& request) {
  require_valid_size(request.size);
  const Bytes alignment = request.alignment;
  if (alignment == 0 || (alignment & (alignment - 1)) != 0) {
    throw std::invalid_argument("an alignment is a power of two, not " +
                                std::to_string(alignment));
  }
}

out_of_memory out_of_memory_error(const Resource& resource,
                                  OutOfMemoryInfo::Cause cause,
                                  Bytes requested) {
  const ResourceStats stats = resource.stats();
  OutOfMemoryInfo report;
  report.cause = cause;
  report.requested = requested;
  report.rounded = requested <= kNoLimit - kAlignment ? align_up(requested) : kNoLimit;
  report.in_use = stats.current;
  report.reserved = stats.reserved;
  report.free_bytes = stats.free_bytes;
  report.largest_free_chunk = stats.largest_free_chunk;
  report.limit = stats.limit;
  report.largest_free = stats.largest_free;
  report.device = resource.name();
  report.owners = largest_of(resource.owners());
  if (cause == OutOfMemoryInfo::no_memory && !resource.touchable()) {
    report.cause = resource.kind() == SpaceKind::device
                       ? OutOfMemoryInfo::device_full
                       : OutOfMemoryInfo::simulated_full;
  }
  if (resource.stayed_in_parent() && cause != OutOfMemoryInfo::limit_reached) {
    report.cause = OutOfMemoryInfo::lost_to_fork;
  }
  if (cause == OutOfMemoryInfo::tracked_limit || cause == OutOfMemoryInfo::rss_limit) {
    tell_of_host(report);
  }
  return out_of_memory(std::move(report));
}

}  // namespace memcfg
