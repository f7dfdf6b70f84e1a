// Memory of an NVIDIA GPU: the driver, loaded at run time, and a system above it.
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "memcfg/cuda_abi.h"
#include "memcfg/forks.hpp"
#include "memcfg/system_resource.hpp"
#include "memcfg/types.hpp"

namespace memcfg {

class CudaStream;

// What the driver says about a GPU.
struct CudaDeviceInfo {
  std::string name;
  Bytes memory = 0;             // in total
  int capability = 0;           // 90 is compute capability 9.0
  bool virtual_memory = false;  // whether it announces virtual memory management
};

// The driver. Its code stays mapped until the process ends.
class CudaDriver : private NoCopy {
 public:
  // Loads the file at `path` with its symbols kept local, and initializes it. Throws
  // missing_dependency when it cannot be loaded, lacks a function, or finds no GPU, and
  // std::runtime_error in a child of a process that has initialized a driver.
  explicit CudaDriver(const std::string& path);
  // The same with functions that are already loaded; for stand-ins.
  explicit CudaDriver(const cuda::Api& api);

  int version() const;  // 13000 is CUDA 13.0
  int device_count() const;
  cuda::Device device(int ordinal) const;
  CudaDeviceInfo info(int ordinal) const;

  const cuda::Api& api() const noexcept { return api_; }

  // False in a process that was forked after the driver was loaded: it has none of the
  // driver's threads and cannot use CUDA.
  bool usable() const noexcept;

  // Throws kernel_failure naming `what` unless status is success.
  void check(cuda::Status status, const char* what) const;
  std::string words(cuda::Status status) const;  // its name and number
  // Throws std::runtime_error in a forked process.
  void require_usable() const;

 private:
  int attribute(int attribute, cuda::Device device) const;

  const cuda::Api api_;
  const std::uint64_t forks_;  // the fork count when it was loaded
};

// The primary context of a GPU, which all libraries of the process share. While a
// `Current` lives, the context is current in the calling thread, and captures of other
// libraries do not forbid any calls of this thread. There is one object per GPU, since
// it knows the streams made here.
class CudaContext : private NoCopy {
 public:
  // Throws kernel_failure.
  CudaContext(std::shared_ptr<const CudaDriver> driver, int ordinal);
  ~CudaContext();

  class Current : private NoCopy {
   public:
    explicit Current(const CudaContext& context) noexcept;
    ~Current();
    explicit operator bool() const noexcept { return status_ == 0; }
    // Throws kernel_failure, or std::runtime_error in a forked child, unless the
    // context is current.
    const Current& require() const;

   private:
    const CudaContext& context_;
    const cuda::Status status_;
    int mode_ = cuda::kRelaxedCapture;  // then the thread's own, to be restored
  };

  const CudaDriver& driver() const noexcept { return *driver_; }
  const cuda::Api& api() const noexcept { return driver_->api(); }
  cuda::Device device() const noexcept { return device_; }
  const CudaDeviceInfo& info() const noexcept { return info_; }
  void check(cuda::Status status, const char* what) const {
    driver_->check(status, what);
  }

  struct Priorities {
    int least = 0;
    int greatest = 0;  // smaller than `least`
  };
  Priorities priorities() const;  // throws as Current::require does
  struct Memory {
    Bytes free = 0;
    Bytes total = 0;
  };
  Memory memory() const;  // of all processes; throws likewise
  // Waits for all work. While streams made here are being captured, waits for all other
  // streams made here and the default one. Throws likewise, also if earlier work
  // failed.
  void synchronize() const;

  // Waits for the work of the streams made here and of the default stream, except for
  // streams that are being captured. Before memory is freed, work that uses it on a
  // stream of another library must be done, or be recorded with its allocator. A wait
  // for the whole context would break captures of other libraries, which cannot be
  // detected. Pre: the context is current.
  void wait() const noexcept;
  // The same for one stream.
  void wait(cuda::Stream* stream) const noexcept;

  // Captures of streams made here begin, are joined and end through these functions,
  // which exclude a concurrent wait for the streams. What is queued on a stream is done
  // before its capture begins. Pre: the context is current.
  void add(cuda::Stream* stream) const;
  void remove(cuda::Stream* stream) const noexcept;
  cuda::Status begin_capture(cuda::Stream* stream) const noexcept;
  cuda::Status wait_event(cuda::Stream* stream, cuda::Event* event) const noexcept;
  cuda::Status end_capture(cuda::Stream* stream, cuda::Graph** graph) const noexcept;

 private:
  const std::shared_ptr<const CudaDriver> driver_;
  const CudaDeviceInfo info_;
  const cuda::Device device_;
  cuda::Context* handle_ = nullptr;

  cuda::Status wait_for(cuda::Stream* stream) const noexcept;
  cuda::Status wait_for_streams() const noexcept;

  mutable std::mutex mutex_;  // never taken in a forked child
  mutable std::set<cuda::Stream*> streams_;
  mutable std::atomic<int> captures_{0};  // in progress; changed under the lock
};

// Memory that a CUDA driver allocates in blocks. Before a block is freed, all work is
// waited for.
class CudaBlocks : public DeviceSystem {
 public:
  explicit CudaBlocks(std::shared_ptr<const CudaContext> context) noexcept
      : context_(std::move(context)) {}

  bool stayed_in_parent() const noexcept override {
    return !context_->driver().usable();
  }
  void* allocate(Bytes size, Bytes alignment) const noexcept override;
  void deallocate(void* address, Bytes size) const noexcept override;
  void check() const override {
    const ForkLock lock(mutex_);
    require_sums(Usage());
  }

 protected:
  // Returns 0 if the driver refuses. Pre of both: the context is current.
  virtual cuda::Address take(Bytes size) const noexcept = 0;
  virtual void give_back(cuda::Address address) const noexcept = 0;

  void count(Bytes size) const noexcept;
  void require_sums(Usage others) const;  // pre: the lock is held

  const std::shared_ptr<const CudaContext> context_;

 private:
  struct Block {
    cuda::Address address;  // as the driver returned it; the block may begin later
    Bytes size;             // with the bytes that alignment added
  };
  mutable std::map<cuda::Address, Block> blocks_;
};

// Page-locked memory of the host, which any GPU copies to and from asynchronously. It
// counts against the host's limits.
class CudaHostSystem final : public CudaBlocks {
 public:
  using CudaBlocks::CudaBlocks;

  Bytes page_size() const noexcept override { return host_system().page_size(); }
  bool on_host() const noexcept override { return true; }
  bool has_pages() const noexcept override { return false; }
  void* reserve(Bytes, Access) const noexcept override { return nullptr; }
  void release(void*, Bytes) const noexcept override {}

 private:
  cuda::Address take(Bytes size) const noexcept override;
  void give_back(cuda::Address address) const noexcept override;
};

// The memory of a GPU. If the driver has virtual memory management, and maps a first
// page when this object is made, addresses are reserved, and pages of the driver's
// granularity are mapped one by one. A page's handle is released once it is mapped, so
// unmapping frees its memory at once. Otherwise memory comes in whole blocks. Before
// memory is freed, all work of the context is waited for. New memory has undefined
// contents.
//
// Invariant: committed == the mapped pages of the reservations + the blocks.
class CudaSystem final : public CudaBlocks {
 public:
  // Without `pages`, memory comes in blocks as if the GPU had no virtual memory
  // management. Throws kernel_failure.
  explicit CudaSystem(std::shared_ptr<const CudaContext> context, bool pages = true);
  ~CudaSystem() override;  // pre: all memory was released

  Bytes page_size() const noexcept override { return page_; }
  Bytes memory_size() const noexcept override { return memory_; }
  SpaceKind kind() const noexcept override { return SpaceKind::device; }
  bool has_pages() const noexcept override { return virtual_memory_; }
  // Why the driver, which announces virtual memory, refused it; empty if it did not.
  const std::string& refusal() const noexcept { return refusal_; }

  void* reserve(Bytes size, Access) const noexcept override;
  bool commit(void* address, Bytes size, Access) const noexcept override;
  void decommit(void* address, Bytes size, Access) const noexcept override;
  void release(void* address, Bytes size) const noexcept override;
  // Throws as Current::require does.
  void zero(void* address, Bytes size) const override;

  void check() const override;

 private:
  using Pages = std::vector<bool>;  // which pages of a reservation are mapped

  cuda::Address take(Bytes size) const noexcept override;
  void give_back(cuda::Address address) const noexcept override;
  void try_pages();
  cuda::Status try_page(cuda::Address address, const char*& call) const;
  bool map_page(cuda::Address address) const noexcept;
  void unmap_pages(cuda::Address address, Bytes size) const noexcept;
  void note(cuda::Address address, Bytes size, bool mapped) const noexcept;

  const cuda::AllocationProperties properties_;
  // For `zero`: the default stream would wait for others.
  const std::unique_ptr<const CudaStream> zeros_;
  Bytes memory_ = 0;
  Bytes page_ = 0;
  bool virtual_memory_ = false;
  std::string refusal_;
  mutable std::map<cuda::Address, Pages> reservations_;
};

// Makes the memory of a GPU, as a resource for a pool; without `pages`, in blocks.
// `refusal` receives CudaSystem::refusal. Throws kernel_failure.
std::shared_ptr<Resource> make_cuda_resource(std::string name,
                                             std::shared_ptr<const CudaContext> context,
                                             bool pages = true,
                                             std::string* refusal = nullptr);

// Makes page-locked memory of the host, as a resource for a pool, of unknown size.
std::shared_ptr<Resource> make_pinned_resource(
    std::string name, std::shared_ptr<const CudaContext> context);

}  // namespace memcfg
