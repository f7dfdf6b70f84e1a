// A resource that hands out whole blocks, as a system for a pool on top of it.
#pragma once

#include <memory>
#include <utility>

#include "memcfg/error.hpp"
#include "memcfg/resource.hpp"
#include "memcfg/system.hpp"

namespace memcfg {

// While one lives, this thread works for a pool above, whose lock it holds.
class BelowPool : private NoCopy {
 public:
  BelowPool() noexcept { ++depth_; }
  ~BelowPool() { --depth_; }
  static bool here() noexcept { return depth_ > 0; }

 private:
  static inline thread_local int depth_ = 0;
};

// A reservation is a block of the resource: addresses and memory at once. The metadata
// are the host's. The memory is counted by whoever is below, not as this process' own.
class BlockSystem final : public BorrowedMetadata {
 public:
  explicit BlockSystem(std::shared_ptr<Resource> upstream)
      : BorrowedMetadata(host_system()), upstream_(std::move(upstream)) {}

  Bytes page_size() const noexcept override { return host_system().page_size(); }
  bool touchable() const noexcept override { return upstream_->touchable(); }
  bool whole_blocks() const noexcept override { return true; }

  void* reserve(Bytes size, Access access) const noexcept override {
    if (access == Access::guarded) return nullptr;
    const BelowPool below;
    try {
      return upstream_->allocate({size, page_size(), Lifetime::long_lived, "pool"});
    } catch (...) {  // whatever the reason: the pool above says what it could not get
      return nullptr;
    }
  }
  void release(void* address, Bytes size) const noexcept override {
    const BelowPool below;
    try {
      upstream_->deallocate(address, size);
    } catch (const bad_free&) {  // somebody gave the pool's memory back behind it
    }
  }

 private:
  std::shared_ptr<Resource> upstream_;
};

}  // namespace memcfg
