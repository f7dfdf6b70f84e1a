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
  bool stayed_in_parent() const noexcept override {
    return system_->stayed_in_parent();
  }
  void* allocate(const Request& request) override;
  void zero(void* address, Bytes size) override { system_->zero(address, size); }
  void deallocate(void* address, Bytes size) override;

 private:
  void release_block(void* address, Bytes size, Bytes reserved) noexcept;

  const std::string name_;
  const std::shared_ptr<const System> system_;
};

// The memory of a device, or the arithmetic of it.
class DeviceSystem : public BorrowedMetadata {
 public:
  DeviceSystem() : BorrowedMetadata(host_system()) {}

  // Whether addresses and memory can be had apart, page by page.
  virtual bool has_pages() const noexcept { return true; }

  // What is in use now, and its maximum since the last reset_peak.
  struct Usage {
    Bytes committed = 0;
    Bytes peak_committed = 0;
    Bytes addresses = 0;
  };
  Usage usage() const;
  void reset_peak() const;
  virtual void check() const = 0;  // throws invariant_broken

 protected:
  mutable std::mutex mutex_;  // guards what is in use, and where
  mutable Usage usage_;
};

// The arithmetic of a system with `nbytes` of memory. Addresses lie where no machine
// has memory, so a touch ends the process; no two extents that are out at a time
// overlap, those of other simulated systems included. Memory for metadata is the
// host's.
//
// Invariant: committed == sum of the extents' committed bytes <= memory_size.
class SimulatedSystem final : public DeviceSystem {
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

  void zero(void*, Bytes) const override {}

  void check() const override;

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
  const Bytes page_;      // bytes
  const Bytes capacity_;  // nbytes_ in whole pages: what may be committed
  mutable std::map<std::uintptr_t, Extent> extents_;
};

// Blocks of a device; a pool on top takes pages of it, where it has them.
//
// Invariant: reserved == what the device has committed, for blocks and for pools on
// top; current <= reserved <= limit == the device's memory.
class DeviceResource : public SystemResource {
 public:
  DeviceResource(std::string name, std::shared_ptr<const DeviceSystem> system);

  ResourceStats stats() const override;
  void reset_peak() override;
  void check() const override;
  const System* pages() const noexcept override {
    return system_->has_pages() ? system_.get() : nullptr;
  }

 private:
  const std::shared_ptr<const DeviceSystem> system_;
};

class SimulatedResource final : public DeviceResource {
 public:
  SimulatedResource(std::string name, Bytes nbytes);
};

}  // namespace memcfg
