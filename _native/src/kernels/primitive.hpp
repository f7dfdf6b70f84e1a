// Owning handles over oneDNN's objects, and a primitive that is ready to run.
#pragma once

#include <initializer_list>
#include <memory>
#include <vector>

#include "memcfg/onednn.hpp"
#include "memcfg/types.hpp"

namespace memcfg::onednn {

template <class T>
using Owned = std::unique_ptr<T, Status (*)(T*)>;

using Shape = std::vector<Dim>;

// A float32 array of `dims` whose element i lies at the dot product of i and
// `strides`, in elements.
Owned<MemoryDesc> describe(const OneDnn& library,
                           const Shape& dims,
                           const Shape& strides);
// A float32 array whose layout the primitive chooses.
Owned<MemoryDesc> describe_any(const OneDnn& library, const Shape& dims);

// Attributes that make every temporary the caller's.
Owned<Attributes> user_scratchpad(const OneDnn& library);

// A primitive with its operands. Everything is made once; a run sets addresses.
class Call {
 public:
  // Operands in the order of `run`'s addresses: the name and layout of each.
  struct Operand {
    int arg;
    const MemoryDesc* layout;
  };

  Call(const OneDnn& library,
       const PrimitiveDesc* primitive,
       std::initializer_list<Operand> operands);

  Bytes scratch_bytes() const noexcept { return scratch_bytes_; }
  void run(std::initializer_list<void*> addresses, void* scratch);

 private:
  void add(const Operand& operand);
  void set(std::size_t index, void* address);

  OneDnn library_;  // first: outlives what it made
  Owned<Primitive> primitive_;
  std::vector<Owned<Memory>> memories_;
  std::vector<ExecArg> arguments_;
  Bytes scratch_bytes_;
};

// A call that copies an array from one layout to another.
Call reorder(const OneDnn& library, const MemoryDesc* from, const MemoryDesc* to);

// The layout that a primitive wants of one operand (`query::...`).
inline const MemoryDesc* layout(const OneDnn& library,
                                const PrimitiveDesc* primitive,
                                int what) {
  return library.api().primitive_desc_query_md(primitive, what, 0);
}

}  // namespace memcfg::onednn
