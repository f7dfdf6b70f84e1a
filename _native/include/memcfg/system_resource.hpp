// Blocks straight from a system, with metadata; a device that is addresses only.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
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
class SystemResource : public LedgerResource {
 public:
  // The host's memory, or that of a system which the resource keeps alive.
  explicit SystemResource(std::string name);
  SystemResource(std::string name, std::shared_ptr<const System> system);
  ~SystemResource() override;  // post: every block has gone back

  const std::string& name() const noexcept override { return name_; }
  SpaceKind kind() const noexcept override { return system_->kind(); }
  void* allocate(const Request& request) override;
  void deallocate(void* address, Bytes size) override;

 private:
  void release_block(void* address, Bytes size, Bytes reserved) noexcept;

  const std::string name_;
  const std::shared_ptr<const System> system_;
};

// The arithmetic of a system with `nbytes` of memory. Addresses lie where no machine
// has memory, so a touch ends the process; no two extents that are out at a time
// overlap, those of other simulated systems included. Memory for metadata is the
// host's.
//
// Invariant: committed == sum of the extents' committed bytes <= memory_size.
class SimulatedSystem final : public BorrowedMetadata {
 public:
  // Throws std::invalid_argument for a device of no bytes, or more than addresses.
  explicit SimulatedSystem(Bytes nbytes);
  ~SimulatedSystem() override;  // pre: everything was released

  // 4 KiB, or more where the metadata of so many pages would be large.
  Bytes page_size() const noexcept override { return page_; }
  Bytes memory_size() const noexcept override { return nbytes_; }
  SpaceKind kind() const noexcept override { return SpaceKind::addresses; }

  void* reserve(Bytes size, Access) const noexcept override;
  bool commit(void* address, Bytes size, Access) const noexcept override;
  void decommit(void* address, Bytes size, Access) const noexcept override;
  void release(void* address, Bytes size) const noexcept override;
  void* allocate(Bytes size, Bytes alignment) const noexcept override;
  void deallocate(void* address, Bytes size) const noexcept override {
    release(address, size);
  }

  // What is in use now, and its maximum since the last reset_peak.
  struct Usage {
    Bytes committed = 0;
    Bytes peak_committed = 0;
    Bytes addresses = 0;
  };
  Usage usage() const;
  void reset_peak() const;
  void check() const;  // throws invariant_broken

 private:
  struct Extent {
    Bytes size;
    Bytes committed;
  };

  std::uintptr_t allocate_extent(Bytes size,
                                 Bytes alignment,
                                 Bytes committed) const noexcept;
  bool try_commit(Bytes size, Bytes maximum) const noexcept;  // pre: the lock is held
  Extent& extent_at(void* address) const noexcept;

  const Bytes nbytes_;
  const Bytes page_;          // bytes
  const Bytes capacity_;      // nbytes_ in whole pages: what may be committed
  mutable std::mutex mutex_;  // guards all below
  mutable std::map<std::uintptr_t, Extent> extents_;
  mutable Usage usage_;
};

// Blocks of a simulated device; a pool on top takes pages of it.
//
// Invariant: reserved == what the device has committed, for blocks and for pools on
// top; current <= reserved <= limit == nbytes.
class SimulatedResource final : public SystemResource {
 public:
  SimulatedResource(std::string name, Bytes nbytes);

  ResourceStats stats() const override;
  void reset_peak() override;
  void check() const override;
  const System* pages() const noexcept override { return system_.get(); }

 private:
  SimulatedResource(std::string name, std::shared_ptr<const SimulatedSystem> system);

  const std::shared_ptr<const SimulatedSystem> system_;
};

}  // namespace memcfg
