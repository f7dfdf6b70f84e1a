// Work of an NVIDIA GPU: streams, events, modules with kernels, graphs of work.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>

#include "memcfg/cuda.hpp"
#include "memcfg/cuda_abi.h"
#include "memcfg/types.hpp"

namespace memcfg {

// All of these keep their context. Every method makes it current, and throws
// kernel_failure when the driver fails, or has failed in work that was queued before;
// in a forked child std::runtime_error. Any thread may call them; the order of what two
// threads put into one stream is undefined.

// A point in the work of a stream; as new, it has been reached.
class CudaEvent : private NoCopy {
 public:
  CudaEvent(std::shared_ptr<const CudaContext> context, bool timing);
  ~CudaEvent();

  void synchronize() const;
  bool done() const;
  // Pre: both were made for timing, and have been reached.
  double seconds_since(const CudaEvent& earlier) const;

  cuda::Event* handle() const noexcept { return handle_; }

 private:
  const std::shared_ptr<const CudaContext> context_;
  cuda::Event* handle_ = nullptr;
};

// Machine code of kernels, loaded.
class CudaModule : private NoCopy {
 public:
  // A cubin, a fat binary or PTX.
  CudaModule(std::shared_ptr<const CudaContext> context, const std::string& image);
  ~CudaModule();  // waits for all work

  cuda::Function* find(const std::string& name) const;
  const CudaContext& context() const noexcept { return *context_; }

 private:
  const std::shared_ptr<const CudaContext> context_;
  cuda::Module* handle_ = nullptr;
};

// A kernel, which keeps its module.
class CudaFunction : private NoCopy {
 public:
  CudaFunction(std::shared_ptr<const CudaModule> module, const std::string& name);

  // Lets launches have so many bytes of dynamic shared memory, or more. Pre: it is
  // current.
  void allow_shared(unsigned nbytes) const;

  cuda::Function* handle() const noexcept { return handle_; }

 private:
  const std::shared_ptr<const CudaModule> module_;
  cuda::Function* const handle_;
  mutable std::mutex mutex_;  // never taken in a forked child
  mutable std::atomic<unsigned> shared_{cuda::kSharedByDefault};  // bytes
};

// Work that was captured, ready to be launched any number of times. What the work needs
// must live as long.
class CudaGraph : private NoCopy {
 public:
  // Takes the recording, also when it throws.
  CudaGraph(std::shared_ptr<const CudaContext> context, cuda::Graph* recording);
  ~CudaGraph();

  Bytes nodes() const noexcept { return nodes_; }
  cuda::Executable* handle() const noexcept { return handle_; }

 private:
  const std::shared_ptr<const CudaContext> context_;
  std::size_t nodes_ = 0;
  cuda::Executable* handle_ = nullptr;
};

// A queue of work, apart from the default stream. What is queued must live until it has
// been done.
class CudaStream : private NoCopy {
 public:
  // A smaller number is a higher priority; the driver clamps it.
  CudaStream(std::shared_ptr<const CudaContext> context, int priority);
  ~CudaStream();  // what is queued is done

  void synchronize() const;
  bool done() const;
  void record(const CudaEvent& event) const;
  void wait(const CudaEvent& event) const;  // what is queued later waits for it
  // Addresses of the device, or of pinned memory.
  void copy(cuda::Address target, cuda::Address source, Bytes size) const;
  void fill(cuda::Address target, unsigned char byte, Bytes size) const;

  using Shape = std::array<unsigned, 3>;  // x, y, z
  void launch(const CudaFunction& function,
              const Shape& grid,
              const Shape& block,
              unsigned shared_bytes,
              void** arguments) const;  // copied
  void launch(const CudaGraph& graph) const;

  // Between the two, work is recorded instead of done, that of streams included which
  // wait for events of this one; those it must wait for again before the end.
  void begin_capture();
  std::unique_ptr<CudaGraph> end_capture();  // it has ended also when it throws

  cuda::Stream* handle() const noexcept { return handle_; }

 private:
  const std::shared_ptr<const CudaContext> context_;
  cuda::Stream* handle_ = nullptr;
  std::atomic<bool> capturing_{false};  // from begin to end
};

}  // namespace memcfg
