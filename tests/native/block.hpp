// A block: memory of a resource, given back when it goes.
#pragma once

#include <memory>

#include "memcfg/resource.hpp"

namespace memcfg {

// Keeps its resource alive. Used by one thread at a time.
class Block {
 public:
  // Throws what Resource::allocate throws.
  Block(std::shared_ptr<Resource> resource, const Request& request)
      : resource_(std::move(resource)),
        requested_(request.size),
        address_(resource_->allocate(request)) {}
  ~Block() {
    if (address_ != nullptr) resource_->deallocate(address_, requested_);
  }
  Block(const Block&) = delete;
  Block& operator=(const Block&) = delete;

  Resource& resource() const noexcept { return *resource_; }
  void* address() const noexcept { return address_; }  // null: detached
  Bytes requested() const noexcept { return requested_; }
  Bytes size() const noexcept { return align_up(requested_); }

  // The memory is the caller's now, to be given back with `deallocate`.
  void* detach() noexcept {
    void* const address = address_;
    address_ = nullptr;
    return address;
  }

 private:
  std::shared_ptr<Resource> resource_;
  Bytes requested_;
  void* address_;
};

}  // namespace memcfg
