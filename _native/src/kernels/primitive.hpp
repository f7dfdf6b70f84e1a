// Owning handles over oneDNN's objects, and a primitive that is ready to run.
#pragma once

#include <initializer_list>
#include <memory>
#include <optional>
#include <vector>

#include "kernels/spec.hpp"
#include "memcfg/kernel.hpp"
#include "memcfg/onednn.hpp"
#include "memcfg/types.hpp"

namespace memcfg::onednn {

template <class T>
using Owned = std::unique_ptr<T, Status (*)(T*)>;

using Shape = std::vector<Dim>;

// The type of an operand, float32 or bfloat16, and its bytes.
inline int type_of(const SpecReader& reader, const OperandSpec& operand) {
  return reader.is_bfloat16(operand) ? data_type::bf16 : data_type::f32;
}
inline Bytes item_bytes(int type) {
  return type == data_type::bf16 ? 2 : kFloat;
}

// An array of `dims` whose element i lies at the dot product of i and `strides`, in
// elements.
Owned<MemoryDesc> describe(const OneDnn& library,
                           const Shape& dims,
                           const Shape& strides,
                           int type = data_type::f32);
// An array whose layout the primitive chooses.
Owned<MemoryDesc> describe_any(const OneDnn& library,
                               const Shape& dims,
                               int type = data_type::f32);

// Attributes that make every temporary the caller's.
Owned<Attributes> user_scratchpad(const OneDnn& library);

// The operands of a call as oneDNN takes them: objects whose addresses a run sets.
struct Arguments {
  std::vector<Owned<Memory>> memories;
  std::vector<ExecArg> list;
};

// A primitive with the layouts of its operands. It never changes.
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
  Arguments make_arguments() const;
  // Takes no memory. Pre: nobody else uses the arguments meanwhile.
  void run(std::initializer_list<void*> addresses,
           void* scratch,
           Arguments& arguments) const;

 private:
  struct Layout {
    int arg;
    Owned<MemoryDesc> desc;
  };
  void add(const Operand& operand);
  void set(Memory* memory, void* address) const;

  OneDnn library_;  // first: outlives what it made
  Owned<Primitive> primitive_;
  std::vector<Layout> layouts_;  // the scratchpad's last
  Bytes scratch_bytes_;
};

// The arguments of a kernel's calls, in an order of its own; none where there is no
// call.
struct CallStates final : Kernel::RunState {
  explicit CallStates(std::initializer_list<const std::optional<Call>*> calls) {
    for (const auto* call : calls) {
      arguments.push_back(*call ? (*call)->make_arguments() : Arguments{});
    }
  }
  std::vector<Arguments> arguments;
};

// What copies an array from one layout to another: described, and ready to run.
Owned<PrimitiveDesc> describe_reorder(const OneDnn& library,
                                      const MemoryDesc* from,
                                      const MemoryDesc* to);
Call reorder(const OneDnn& library, const MemoryDesc* from, const MemoryDesc* to);

// The layout that a primitive wants of one operand (`query::...`).
inline const MemoryDesc* layout(const OneDnn& library,
                                const PrimitiveDesc* primitive,
                                int what) {
  return library.api().primitive_desc_query_md(primitive, what, 0);
}
// The scratch that a primitive wants.
inline Bytes scratchpad_bytes(const OneDnn& library, const PrimitiveDesc* primitive) {
  const MemoryDesc* scratchpad = layout(library, primitive, query::scratchpad);
  return library.api().memory_desc_get_size(scratchpad);
}

}  // namespace memcfg::onednn
