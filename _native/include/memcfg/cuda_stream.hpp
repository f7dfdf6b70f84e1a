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

// All of these classes own a reference to their context. Every method makes the context
// current, and throws kernel_failure if the driver fails, or if work that was queued
// before has failed, and std::runtime_error in a forked child. Methods are thread-safe;
// the order of work that two threads queue on one stream is undefined.

// A point in the work of a stream. A new event counts as reached.
class CudaEvent : private NoCopy {
 public:
  CudaEvent(std::shared_ptr<const CudaContext> context, bool timing);
  ~CudaEvent();

  void synchronize() const;
  bool done() const;
  // Pre: both were made with `timing`, and have been reached.
  double seconds_since(const CudaEvent& earlier) const;

  cuda::Event* handle() const noexcept { return handle_; }

 private:
  const std::shared_ptr<const CudaContext> context_;
  cuda::Event* handle_ = nullptr;
};

// Loaded machine code of kernels.
class CudaModule : private NoCopy {
 public:
  // `image` is a cubin, a fat binary or PTX.
  CudaModule(std::shared_ptr<const CudaContext> context, const std::string& image);
  ~CudaModule();  // waits for all work

  cuda::Function* find(const std::string& name) const;
  const CudaContext& context() const noexcept { return *context_; }

 private:
  const std::shared_ptr<const CudaContext> context_;
  cuda::Module* handle_ = nullptr;
};

// A kernel, which owns a reference to its module.
class CudaFunction : private NoCopy {
 public:
  CudaFunction(std::shared_ptr<const CudaModule> module, const std::string& name);

  // Allows launches with `nbytes` of dynamic shared memory or less. Pre: the context is
  // current.
  void allow_shared(unsigned nbytes) const;

  cuda::Function* handle() const noexcept { return handle_; }

 private:
  const std::shared_ptr<const CudaModule> module_;
  cuda::Function* const handle_;
  mutable std::mutex mutex_;  // never taken in a forked child
  mutable std::atomic<unsigned> shared_{cuda::kSharedByDefault};  // bytes
};

// Captured work that can be launched any number of times. Everything that the work uses
// must outlive the graph.
class CudaGraph : private NoCopy {
 public:
  // Takes ownership of the recording, even if it throws.
  CudaGraph(std::shared_ptr<const CudaContext> context, cuda::Graph* recording);
  ~CudaGraph();

  Bytes nodes() const noexcept { return nodes_; }
  cuda::Executable* handle() const noexcept { return handle_; }

 private:
  const std::shared_ptr<const CudaContext> context_;
  std::size_t nodes_ = 0;
  cuda::Executable* handle_ = nullptr;
};

// A queue of work that does not synchronize with the default stream. What queued work
// uses must live until the work is done.
class CudaStream : private NoCopy {
 public:
  // A smaller number is a higher priority; the driver clamps it.
  CudaStream(std::shared_ptr<const CudaContext> context, int priority);
  ~CudaStream();  // waits for the queued work

  void synchronize() const;
  bool done() const;
  void record(const CudaEvent& event) const;
  void wait(const CudaEvent& event) const;  // work that is queued later waits for it
  // Addresses are the device's, or of page-locked memory.
  void copy(cuda::Address target, cuda::Address source, Bytes size) const;
  void fill(cuda::Address target, unsigned char byte, Bytes size) const;

  using Shape = std::array<unsigned, 3>;  // x, y, z
  void launch(const CudaFunction& function,
              const Shape& grid,
              const Shape& block,
              unsigned shared_bytes,
              void** arguments) const;  // arguments are copied
  void launch(const CudaGraph& graph) const;

  // Between these two calls, work is recorded instead of done. This includes the work
  // of streams that wait for an event of this one, and this stream must wait for them
  // before the end.
  void begin_capture();
  std::unique_ptr<CudaGraph> end_capture();  // ends the capture even if it throws

  cuda::Stream* handle() const noexcept { return handle_; }

 private:
  const std::shared_ptr<const CudaContext> context_;
  cuda::Stream* handle_ = nullptr;
  std::atomic<bool> capturing_{false};  // between begin_capture and end_capture
};

}  // namespace memcfg
