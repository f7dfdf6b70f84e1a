// What the resources on top of another one share.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "memcfg/ledger.hpp"
#include "memcfg/resource.hpp"
#include "memcfg/types.hpp"

namespace memcfg {

// Blocks of upstream, with metadata of their own: upstream may have other users, and
// what they took cannot be given back here. Upstream lives as long as the adaptor. A
// block that is out when the adaptor goes is one of upstream's.
//
// The numbers of blocks are the adaptor's, those of memory (reserved, addresses, free
// ranges) upstream's; the two are read one after the other.
class Adaptor : public Resource {
 public:
  const std::string& name() const noexcept final { return upstream_->name(); }
  bool touchable() const noexcept final { return upstream_->touchable(); }
  ResourceStats stats() const override;
  Bytes reserved() const final { return upstream_->reserved(); }
  void reset_peak() final { ledger_.reset_peak(); }  // of blocks, not of memory
  Owners owners() const final { return ledger_.owners(); }
  Bytes size_of(const void* address) const final { return ledger_.size_of(address); }
  bool resize(void* address, Bytes size, Bytes new_size) override;
  std::vector<LiveBlock> blocks() const override { return ledger_.blocks(); }
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
  Ledger ledger_;
};

}  // namespace memcfg
