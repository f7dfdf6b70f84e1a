// The contract of an op kernel and the table that makes one by name.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "memcfg/types.hpp"

namespace memcfg {

class OneDnn;  // the loaded oneDNN library (onednn.hpp)

// One op bound to its shapes and attributes, not to addresses. It never changes: any
// number of threads and programs may run it at once.
//
// Contract. `run` gets the addresses of the operands (inputs, then outputs, in graph
// order), each 64-byte aligned with the bytes that the kernel declares, and
// `scratch_bytes()` bytes of caller-owned scratch (null when that is 0). It writes
// every byte of its outputs, reads no byte of them before, takes no memory of its own,
// and gives the same bits for the same input bits wherever the operands lie. Output and
// input may share an address only for the in-place pairs that the op declares.
class Kernel {
 public:
  struct Operand {
    Bytes size;    // bytes that it reads or writes
    bool written;  // an output
  };
  // Bytes of each operand.
  struct Sizes {
    std::vector<Bytes> inputs, outputs;
  };
  // What runs change beside operands and scratch: one run at a time has it. Null for a
  // kernel that changes nothing else.
  class RunState {
   public:
    RunState() = default;
    virtual ~RunState() = default;
    RunState(const RunState&) = delete;
    RunState& operator=(const RunState&) = delete;
  };

  explicit Kernel(const Sizes& sizes = {}) {
    for (const Bytes size : sizes.inputs) operands_.push_back({size, false});
    for (const Bytes size : sizes.outputs) operands_.push_back({size, true});
  }
  virtual ~Kernel() = default;
  Kernel(const Kernel&) = delete;
  Kernel& operator=(const Kernel&) = delete;

  const std::vector<Operand>& operands() const noexcept { return operands_; }
  virtual Bytes scratch_bytes() const noexcept { return 0; }
  virtual std::unique_ptr<RunState> make_run_state() const { return nullptr; }
  // Pre: `state` is of this kernel's make_run_state().
  virtual void run(void* const* operands, void* scratch, RunState* state) const = 0;

 private:
  std::vector<Operand> operands_;
};

// What a kernel is made from. The meaning of the numbers, type by type, stands in
// `_native/README.md`.
struct KernelSpec {
  std::string type;
  std::vector<std::int64_t> integers;
  std::vector<double> reals;
};

// Throws std::invalid_argument for an unknown type or malformed numbers, and
// std::runtime_error when the library refuses. `library` may be null: then the
// types that need oneDNN are unknown.
std::unique_ptr<Kernel> make_kernel(const KernelSpec& spec, const OneDnn* library);

}  // namespace memcfg
