#include "memcfg/host_allocator.hpp"

#include <new>
#include <stdexcept>
#include <string_view>

#include "memcfg/forks.hpp"

namespace memcfg {
namespace {

// Initial-exec: one load instead of a call.
#if defined(__ELF__) && defined(__GNUC__)
__attribute__((tls_model("initial-exec")))
#endif
thread_local const std::string* thread_tag = nullptr;

void* allocate_for(void* context,
                   std::size_t size,
                   const char* tag,
                   memcfg_refusal* refusal) {
  return static_cast<HostAllocator*>(context)->allocate(size, tag, *refusal);
}

int free_for(void* context, void* address) {
  return static_cast<HostAllocator*>(context)->free(address) ? 1 : 0;
}

}  // namespace

HostAllocator::HostAllocator(std::shared_ptr<Pool> pool)
    : pool_(std::move(pool)), functions_{1, this, allocate_for, free_for} {
  if (!pool_->touchable()) {
    throw std::invalid_argument("the host cannot touch the pool's memory");
  }
}

void* HostAllocator::allocate(Bytes size,
                              const char* tag,
                              memcfg_refusal& refusal) noexcept {
  try {
    return try_allocate(size,
                        thread_tag != nullptr ? std::string_view(*thread_tag) : tag);
  } catch (const out_of_memory& error) {
    keep(error.info(), error.what(), refusal);
  } catch (const std::exception&) {  // there is no memory for metadata
    OutOfMemoryInfo info;
    info.cause = OutOfMemoryInfo::no_memory;
    info.requested = info.rounded = size;
    keep(info, "The system refuses the memory.", refusal);
  }
  return nullptr;
}

void* HostAllocator::try_allocate(Bytes size, std::string_view tag) {
  Request request;
  request.size = size;
  request.tag = tag;
  try {
    return pool_->allocate(request);
  } catch (const std::invalid_argument&) {  // more tags than a pool has numbers
    request.tag = {};
    return pool_->allocate(request);
  }
}

void HostAllocator::keep(const OutOfMemoryInfo& info,
                         const char* sentence,
                         memcfg_refusal& refusal) noexcept {
  refusal = {0, info.requested, info.in_use, info.limit, sentence};
  try {
    const ForkLock lock(mutex_);
    refusals_.emplace_back(last_ + 1, info);
    refusal.number = ++last_;
    if (refusals_.size() > kKept) refusals_.pop_front();
  } catch (const std::bad_alloc&) {  // then it has no number
  }
}

std::optional<OutOfMemoryInfo> HostAllocator::refusal(std::uint64_t number) const {
  const ForkLock lock(mutex_);
  for (const auto& [each, info] : refusals_) {
    if (each == number) return info;
  }
  return std::nullopt;
}

const std::string* swap_thread_tag(const std::string* tag) noexcept {
  return std::exchange(thread_tag, tag);
}

const std::string* intern_tag(const std::string& text) {
  static auto* const texts = new std::set<std::string>;
  return &*texts->insert(text).first;
}

}  // namespace memcfg
