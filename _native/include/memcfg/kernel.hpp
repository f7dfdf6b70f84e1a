// The contract of an op kernel and the table that makes one by name.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <variant>
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
class Kernel : private NoCopy {
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
  class RunState : private NoCopy {
   public:
    RunState() = default;
    virtual ~RunState() = default;
  };

  explicit Kernel(const Sizes& sizes = {}) {
    for (const Bytes size : sizes.inputs) operands_.push_back({size, false});
    for (const Bytes size : sizes.outputs) operands_.push_back({size, true});
  }
  virtual ~Kernel() = default;

  const std::vector<Operand>& operands() const noexcept { return operands_; }
  // The name of its algorithm: "native", or one of `list_algorithms`.
  virtual const char* algorithm() const noexcept { return "native"; }
  virtual Bytes scratch_bytes() const noexcept { return 0; }
  virtual std::unique_ptr<RunState> make_run_state() const { return nullptr; }
  // Pre: `state` is of this kernel's make_run_state().
  virtual void run(void* const* operands, void* scratch, RunState* state) const = 0;

 private:
  std::vector<Operand> operands_;
};

// One operand of an op. Whether there is memory for it is its user's business.
struct OperandSpec {
  std::vector<std::int64_t> shape;
  std::string dtype;  // as NumPy names it
};

// What a kernel is made from: an op as `memcfg/ops` describes it.
struct KernelSpec {
  using Attribute =
      std::variant<std::int64_t, double, std::string, std::vector<std::int64_t>>;

  std::string type;
  std::map<std::string, Attribute> attributes = {};
  std::vector<OperandSpec> inputs = {}, outputs = {};
  std::optional<std::string> algorithm = {};  // one of `list_algorithms`, or default
  // That will run it; 0: as OpenMP says. oneDNN divides work, and counts scratch, for
  // that many, whichever number runs it.
  int threads = 0;

  void set(const std::string& name, Attribute value) {
    attributes[name] = std::move(value);
  }
};

// One way to compute an op, with the scratch of its kernel.
struct Algorithm {
  std::string name;
  Bytes scratch_bytes;
};

// Throws std::invalid_argument for an unknown type or algorithm, an attribute that is
// missing or malformed, or operands that the op does not have, and std::runtime_error
// when the library refuses. `library` may be null: then the types that need oneDNN are
// unknown.
std::unique_ptr<Kernel> make_kernel(const KernelSpec& spec, const OneDnn* library);

// A kernel that reads one input packed the way it likes best, and what packs that.
struct Packing {
  std::vector<std::size_t> operands;  // inputs: which is packed, and what else it takes
  std::unique_ptr<Kernel> pack;       // of these operands -> packed; without scratch
  std::unique_ptr<Kernel> kernel;     // the op, with the bits of `make_kernel`'s
  // Where the packed input is the plain one in another order, what brings it back; both
  // then take one array as both operands. Equal texts mean equal orders.
  std::unique_ptr<Kernel> unpack;
  std::string layout;
};

// How an input that stays the same for many runs is packed once. Null where that gains
// nothing. Throws as `make_kernel` does.
std::optional<Packing> make_packing(const KernelSpec& spec, const OneDnn* library);

// The algorithms of an op, the default first. Throws as `make_kernel` does; the spec
// names none.
std::vector<Algorithm> list_algorithms(const KernelSpec& spec, const OneDnn* library);

// Whether there is a kernel of that type here; an expression needs none.
bool has_kernel(const std::string& type) noexcept;

// Whether that kernel is made with oneDNN.
bool needs_library(const std::string& type) noexcept;

}  // namespace memcfg
