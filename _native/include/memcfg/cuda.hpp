// Memory of an NVIDIA GPU: the driver, loaded at run time, and a system above it.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "memcfg/cuda_abi.h"
#include "memcfg/system_resource.hpp"
#include "memcfg/types.hpp"

namespace memcfg {

// What the driver says about a GPU.
struct CudaDeviceInfo {
  std::string name;
  Bytes memory = 0;             // all that it has
  int capability = 0;           // 90 is compute capability 9.0
  bool virtual_memory = false;  // whether addresses and memory can be had apart
};

// The driver. Its code stays mapped until the process ends.
class CudaDriver : private NoCopy {
 public:
  // Loads the file at `path` with its symbols kept local, and initializes it. Throws
  // std::runtime_error when it cannot be loaded, lacks a function, or finds no GPU.
  explicit CudaDriver(const std::string& path);
  // The same with functions that are there; for stand-ins.
  explicit CudaDriver(const cuda::Api& api);

  int version() const;  // 13000 is CUDA 13.0
  int device_count() const;
  cuda::Device device(int ordinal) const;
  CudaDeviceInfo info(int ordinal) const;

  const cuda::Api& api() const noexcept { return api_; }

  // A process that was forked since cannot use CUDA: the driver's threads stayed
  // behind.
  bool usable() const noexcept;

  // Throws std::runtime_error naming `what` unless status is success.
  void check(cuda::Status status, const char* what) const;

 private:
  int attribute(int attribute, cuda::Device device) const;

  const cuda::Api api_;
  const std::uint64_t forks_;  // before it was loaded
};

// The primary context of a GPU, which the process' libraries share. While a `Current`
// lives it is the calling thread's.
class CudaContext : private NoCopy {
 public:
  // Throws std::runtime_error.
  CudaContext(std::shared_ptr<const CudaDriver> driver, int ordinal);
  ~CudaContext();

  class Current : private NoCopy {
   public:
    explicit Current(const CudaContext& context) noexcept;
    ~Current();
    explicit operator bool() const noexcept { return pushed_; }  // false: unusable

   private:
    const CudaContext& context_;
    const bool pushed_;
  };

  const CudaDriver& driver() const noexcept { return *driver_; }
  const cuda::Api& api() const noexcept { return driver_->api(); }
  cuda::Device device() const noexcept { return device_; }
  const CudaDeviceInfo& info() const noexcept { return info_; }

 private:
  const std::shared_ptr<const CudaDriver> driver_;
  const CudaDeviceInfo info_;
  const cuda::Device device_;
  cuda::Context* handle_ = nullptr;
};

// The memory of a GPU. Where the driver has virtual memory management, addresses are
// reserved and pages of the driver's granularity mapped one by one; a page's memory has
// gone as soon as it is unmapped, since its handle is released when it is mapped. Else
// only whole blocks are to be had. Before memory goes, all work of the context is
// waited for. Contents of new memory are undefined.
//
// Invariant: committed == the mapped pages of the reservations + the blocks.
class CudaSystem final : public DeviceSystem {
 public:
  // Throws std::runtime_error.
  explicit CudaSystem(std::shared_ptr<const CudaContext> context);
  ~CudaSystem() override;  // pre: everything was released

  Bytes page_size() const noexcept override { return page_; }
  Bytes memory_size() const noexcept override { return memory_; }
  SpaceKind kind() const noexcept override { return SpaceKind::device; }
  bool has_pages() const noexcept override { return virtual_memory_; }

  void* reserve(Bytes size, Access) const noexcept override;
  bool commit(void* address, Bytes size, Access) const noexcept override;
  void decommit(void* address, Bytes size, Access) const noexcept override;
  void release(void* address, Bytes size) const noexcept override;
  void* allocate(Bytes size, Bytes alignment) const noexcept override;
  void deallocate(void* address, Bytes size) const noexcept override;
  void zero(void* address, Bytes size) const override;  // throws std::runtime_error

  void check() const override;

 private:
  using Pages = std::vector<bool>;  // of a reservation: which are mapped
  struct Block {
    cuda::Address address;  // what the driver gave; the block begins at its alignment
    Bytes size;             // bytes, with what alignment took
  };

  bool map_page(cuda::Address address) const noexcept;
  void unmap_pages(cuda::Address address, Bytes size) const noexcept;
  void note(cuda::Address address, Bytes size, bool mapped) const noexcept;
  void count(Bytes size) const noexcept;

  const std::shared_ptr<const CudaContext> context_;
  const cuda::AllocationProperties properties_;
  Bytes memory_ = 0;  // bytes
  Bytes page_ = 0;
  bool virtual_memory_ = false;
  mutable std::map<cuda::Address, Pages> reservations_;
  mutable std::map<cuda::Address, Block> blocks_;
};

}  // namespace memcfg
