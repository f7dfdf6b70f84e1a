// The contract of an op kernel and the table that makes one by name.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "memcfg/types.hpp"

namespace memcfg {

class OneDnn;  // the loaded oneDNN library (onednn.hpp)

// One op bound to its shapes and attributes, not to addresses.
//
// Contract. `run` gets the addresses of the op's inputs, then of its outputs, in
// graph order, each 64-byte aligned, and `scratch_bytes()` bytes of caller-owned
// scratch (null when that is 0). It writes every byte of its outputs, reads no
// byte of them before, takes no memory of its own, and gives the same bits for
// the same input bits wherever the operands lie. Output and input may share an
// address only for the in-place pairs that the op declares.
class Kernel {
 public:
  virtual ~Kernel() = default;
  virtual Bytes scratch_bytes() const noexcept { return 0; }
  virtual void run(void* const* operands, void* scratch) = 0;
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
