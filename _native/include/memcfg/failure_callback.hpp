// A chance to free memory before a request fails.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "memcfg/resource.hpp"
#include "memcfg/types.hpp"

namespace memcfg {

// When upstream has no memory for a request, the callback is asked: true, and upstream
// is asked again; false, and upstream's refusal stands. What the callback throws goes
// through. It is called with no lock held, by the thread that asks for memory, and may
// use this resource.
//
// Keeps no metadata: its blocks are upstream's.
class FailureCallbackResource final : public Resource {
 public:
  using Callback = std::function<bool(Bytes)>;  // the bytes asked for; true: try again

  FailureCallbackResource(std::shared_ptr<Resource> upstream, Callback callback);

  const std::string& name() const noexcept override { return upstream_->name(); }
  bool touchable() const noexcept override { return upstream_->touchable(); }
  void* allocate(const Request& request) override;
  void deallocate(void* address, Bytes size) override {
    upstream_->deallocate(address, size);
  }
  Bytes size_of(const void* address) const override {
    return upstream_->size_of(address);
  }
  bool resize(void* address, Bytes size, Bytes new_size) override {
    return upstream_->resize(address, size, new_size);
  }
  std::vector<LiveBlock> blocks() const override { return upstream_->blocks(); }
  ResourceStats stats() const override { return upstream_->stats(); }
  Bytes reserved() const override { return upstream_->reserved(); }
  void reset_peak() override { upstream_->reset_peak(); }
  Owners owners() const override { return upstream_->owners(); }
  Bytes trim(Bytes keep) override { return upstream_->trim(keep); }
  void check() const override { upstream_->check(); }

 private:
  const std::shared_ptr<Resource> upstream_;
  const Callback callback_;
};

// A callback in another language: 1 is true, 0 is false, and below 0 it failed; its
// caller keeps the reason, and callback_raised is thrown here.
FailureCallbackResource::Callback foreign_callback(int (*function)(void*, Bytes),
                                                   void* context);

}  // namespace memcfg
