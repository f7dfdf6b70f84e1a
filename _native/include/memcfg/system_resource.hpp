// Blocks straight from a system, with metadata.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "memcfg/ledger.hpp"
#include "memcfg/resource.hpp"
#include "memcfg/system.hpp"
#include "memcfg/types.hpp"

namespace memcfg {

// Each block is one call of System::allocate. On the host its bytes count against the
// host limits, as those of a pool do.
//
// Invariant: the ledger has exactly the blocks that the system gave; reserved is their
// sum, each rounded up to its alignment.
class SystemResource : public Resource {
 public:
  // The host's memory, or that of a system which the resource keeps alive.
  explicit SystemResource(std::string name);
  SystemResource(std::string name, std::shared_ptr<const System> system);
  ~SystemResource() override;  // post: every block has gone back

  const std::string& name() const noexcept override { return name_; }
  bool touchable() const noexcept override { return system_->touchable(); }
  void* allocate(const Request& request) override;
  void deallocate(void* address, Bytes size) override;
  Bytes size_of(const void* address) const override { return ledger_.size_of(address); }
  std::vector<LiveBlock> blocks() const override { return ledger_.blocks(); }
  ResourceStats stats() const override { return ledger_.stats(); }
  void reset_peak() override { ledger_.reset_peak(); }
  Owners owners() const override { return ledger_.owners(); }
  Bytes trim(Bytes) override { return 0; }  // nothing is kept that no block holds
  void check() const override { ledger_.check(); }

 private:
  void release_block(void* address, Bytes size, Bytes reserved) noexcept;

  const std::string name_;
  const std::shared_ptr<const System> system_;
  Ledger ledger_;
};

}  // namespace memcfg
