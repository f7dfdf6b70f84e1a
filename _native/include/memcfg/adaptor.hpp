// Resources on top of another one: what they share, limits, counts, failure callbacks.
#pragma once

#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "memcfg/ledger.hpp"
#include "memcfg/limit.hpp"
#include "memcfg/resource.hpp"
#include "memcfg/types.hpp"

namespace memcfg {

// Blocks of upstream, with metadata of their own: upstream may have other users, and
// what they took cannot be given back here. Upstream lives as long as the adaptor. A
// block that is out when the adaptor goes is one of upstream's.
//
// The numbers of blocks are the adaptor's, those of memory (reserved, addresses, free
// ranges) upstream's; the two are read one after the other.
class Adaptor : public LedgerResource {
 public:
  const std::string& name() const noexcept final { return upstream_->name(); }
  SpaceKind kind() const noexcept final { return upstream_->kind(); }
  void* allocate(const Request& request) override { return take(request); }
  void zero(void* address, Bytes size) final { upstream_->zero(address, size); }
  void deallocate(void* address, Bytes size) override;
  ResourceStats stats() const override;
  Bytes reserved() const final { return upstream_->reserved(); }
  bool resize(void* address, Bytes size, Bytes new_size) override;
  Bytes trim(Bytes keep) final { return upstream_->trim(keep); }
  bool holds(const void* address) const noexcept final { return ledger_.has(address); }
  void check() const override;

 protected:
  Adaptor(std::shared_ptr<Resource> upstream,
          Ledger::Tags tags,
          Watcher* watcher = nullptr);

  // A block of upstream, in the ledger. Throws as allocate does; nothing has changed
  // then.
  void* take(const Request& request, const Note& note = {});
  // A block of that size has gone back to upstream behind the adaptor.
  virtual void lost(Bytes size) noexcept { static_cast<void>(size); }

  const std::shared_ptr<Resource> upstream_;
};

// Reserves on its limit before it asks upstream, and releases it when upstream
// refuses, or after upstream has the block again. So at every moment
//
//     current <= used <= limit, used - current == bytes of the calls in flight.
class LimitingResource final : public Adaptor {
 public:
  // Bytes, each block rounded up to kAlignment; kNoLimit is none. Throws
  // std::invalid_argument for a limit of 0.
  LimitingResource(std::shared_ptr<Resource> upstream, Bytes limit);

  void* allocate(const Request& request) override;
  void deallocate(void* address, Bytes size) override;
  bool resize(void* address, Bytes size, Bytes new_size) override;
  ResourceStats stats() const override;
  void check() const override;

  Bytes limit() const noexcept { return limit_.limit(); }
  // The limit before. Throws out_of_memory when more is used; nothing changes then.
  Bytes set_limit(Bytes limit);

 private:
  void lost(Bytes size) noexcept override { limit_.release(align_up(size)); }

  Limit limit_;
  std::mutex setting_;  // set_limit against itself
};

// Regions nest, as those of RMM's statistics_resource_adaptor: one counts what happens
// between its push and its pop, by whatever thread; when it ends, its numbers are added
// to the region around it. A region that frees a block from before has a current below
// zero.
class StatisticsResource final : public Adaptor {
 public:
  explicit StatisticsResource(std::shared_ptr<Resource> upstream)
      : Adaptor(std::move(upstream), Ledger::Tags::ever) {}

  void push() { ledger_.push(); }
  // Throws std::invalid_argument when no region is open.
  Counters pop() { return ledger_.pop(); }

  // Every tag that was ever used, by name.
  std::vector<std::pair<std::string, Counters>> by_tag() const {
    return ledger_.by_tag();
  }
};

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
  SpaceKind kind() const noexcept override { return upstream_->kind(); }
  void* allocate(const Request& request) override;
  void zero(void* address, Bytes size) override { upstream_->zero(address, size); }
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
