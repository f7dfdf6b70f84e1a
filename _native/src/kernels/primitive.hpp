// Owning handles over oneDNN's objects, and a primitive that is ready to run.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <initializer_list>
#include <memory>
#include <optional>
#include <string>
#include <utility>
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
// An array in the layout of a format tag.
Owned<MemoryDesc> describe_tagged(const OneDnn& library,
                                  const Shape& dims,
                                  int tag,
                                  int type = data_type::f32);
// An array whose layout the primitive chooses.
Owned<MemoryDesc> describe_any(const OneDnn& library,
                               const Shape& dims,
                               int type = data_type::f32);

// Attributes that make every temporary the caller's.
Owned<Attributes> user_scratchpad(const OneDnn& library);
// What is done to a result on the way: it is multiplied by one vector of channels, and
// another one is added (post-ops 0 and 1); it is added to what is in its place; and
// then a ReLU as a PReLU of one slope, which is to be 0: NaN stays NaN, as it does not
// in oneDNN's own.
struct Post {
  bool sum = false, relu = false, scaled = false;

  int slope() const { return arg::slope_of_post_op((scaled ? 2 : 0) + (sum ? 1 : 0)); }
};
// Such attributes with these post-ops. `vector` is the layout of the vectors.
Owned<Attributes> with_post_ops(const OneDnn& library,
                                Post post,
                                const MemoryDesc* vector = nullptr);
// Where that slope is, which nobody writes.
void* no_slope();

// Results of which a part of so many bytes is made at a time stay in the second level
// of caches, or close to it, for the pass that adds to them.
inline constexpr Bytes kBlockBytes = Bytes{4} << 20;

// Copies an array that is to be added to, unless it is in its place.
void put_in_place(const void* from, void* to, Count elements);
// y = made + other, and a ReLU of it, which keeps NaN. `y` may be one of them.
void add_arrays(
    const float* made, const float* other, float* y, Count count, bool relu);

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
       const std::vector<Operand>& operands);

  Bytes scratch_bytes() const noexcept { return scratch_bytes_; }
  Arguments make_arguments() const;
  // Takes no memory. Pre: nobody else uses the arguments meanwhile, and there is an
  // address for each operand.
  void run(void* const* addresses, void* scratch, Arguments& arguments) const;
  void run(std::initializer_list<void*> addresses,
           void* scratch,
           Arguments& arguments) const {
    run(addresses.begin(), scratch, arguments);
  }

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

// A kernel that is one call: operand i of the op is address `order[i]` of the call. One
// more address may follow, the slope of a ReLU. Where the call adds to what is in the
// result, that is the last input, of `summed` elements.
class CallKernel final : public Kernel {
 public:
  CallKernel(const Sizes& sizes,
             Call call,
             std::vector<std::size_t> order,
             Count summed = 0)
      : Kernel(sizes),
        call_(std::move(call)),
        order_(std::move(order)),
        summed_(summed) {}

  const char* algorithm() const noexcept override { return "onednn"; }
  Bytes scratch_bytes() const noexcept override { return call_->scratch_bytes(); }
  std::unique_ptr<RunState> make_run_state() const override {
    return std::make_unique<CallStates>(std::initializer_list{&call_});
  }
  void run(void* const* operands, void* scratch, RunState* state) const override {
    void* at[5];
    std::fill_n(at, 5, no_slope());
    for (std::size_t i = 0; i < order_.size(); ++i) at[order_[i]] = operands[i];
    const std::size_t output = order_.size() - 1;
    if (summed_ != 0) put_in_place(operands[output - 1], operands[output], summed_);
    call_->run(at, scratch, static_cast<CallStates*>(state)->arguments[0]);
  }

 private:
  std::optional<Call> call_;  // always there
  std::vector<std::size_t> order_;
  Count summed_;
};

// How an array in a layout of blocks is the plain one in another order: of lines, which
// are parts that are neighbours in both. Two axes may be padded, with lines of zeros.
class LineOrder {
 public:
  // None where more axes are padded, or lines are short.
  static std::optional<LineOrder> of(const OneDnn& library,
                                     const MemoryDesc* plain,
                                     const MemoryDesc* packed);

  // Equal texts mean equal orders of plain arrays with as many bytes.
  std::string text() const;
  // Follow the cycles of the order within the array, with a bit a line from the heap.
  // The array has the bytes of the packed one.
  void pack(char* array) const;
  void unpack(char* array) const;

 private:
  struct Digit {                          // of a line's number in the packed array
    std::uint32_t extent, packed, plain;  // and what one more is in the two arrays
    std::array<std::uint32_t, 2> padded;  // and along the axes that are padded
  };
  static constexpr std::uint32_t kPadding = ~std::uint32_t{0};

  // The plain line that a packed one is, or `kPadding`.
  std::uint32_t source(std::uint32_t line) const {
    std::uint32_t found = 0, first = 0, second = 0;
    for (const Digit& digit : by_packed_) {
      const std::uint32_t value = line % digit.extent;
      line /= digit.extent;
      found += value * digit.plain;
      first += value * digit.padded[0];
      second += value * digit.padded[1];
    }
    return first < limits_[0] && second < limits_[1] ? found : kPadding;
  }
  // The packed line that a plain one is.
  std::uint32_t target(std::uint32_t line) const {
    std::uint32_t found = 0;
    for (const Digit& digit : by_plain_) {
      found += line / digit.plain * digit.packed;
      line %= digit.plain;
    }
    return found;
  }
  // Moves lines along the cycles of what gives the line that is to be in a place.
  template <class From>
  void turn(char* array, std::vector<bool>& done, From from) const;
  char* at(char* array, std::uint32_t line) const { return array + line * line_; }

  Bytes line_ = 0;
  std::uint32_t plain_ = 0, packed_ = 0;       // lines
  std::array<std::uint32_t, 2> limits_{1, 1};  // of lines along padded axes
  std::vector<Digit> by_packed_;  // the one that changes first is the first
  std::vector<Digit> by_plain_;   // it is the last
};

// Copies an array from one layout to the other; or, where both operands are the same
// array, changes its order in place.
class Repack final : public Kernel {
 public:
  Repack(const Sizes& sizes, Call copy, std::optional<LineOrder> order, bool packs)
      : Kernel(sizes),
        copy_(std::move(copy)),
        order_(std::move(order)),
        packs_(packs) {}

  const char* algorithm() const noexcept override { return "onednn"; }
  std::unique_ptr<RunState> make_run_state() const override {
    return std::make_unique<CallStates>(std::initializer_list{&copy_});
  }
  void run(void* const* operands, void*, RunState* state) const override;

 private:
  std::optional<Call> copy_;  // always there
  std::optional<LineOrder> order_;
  bool packs_;
};

// What copies an array from one layout to another: described, and ready to run. It is
// multiplied by scales along the axes that are bits of `scaled`.
Owned<PrimitiveDesc> describe_reorder(const OneDnn& library,
                                      const MemoryDesc* from,
                                      const MemoryDesc* to,
                                      int scaled = 0);
Call reorder(const OneDnn& library, const MemoryDesc* from, const MemoryDesc* to);

// An array's layout and its bytes.
struct Plain {
  const MemoryDesc* layout;
  Bytes bytes;
};
// Arrays that are worth packing have so many bytes (it takes 2 us), and at most half as
// many more when they are packed: a matrix of few columns is padded to a vector's.
inline constexpr Bytes kPackedLeast = 16384;
inline bool is_dense(Bytes plain, Bytes packed) {
  return packed <= plain + plain / 2;
}

// A kernel whose input `operand` is packed, with what packs it; null where the array is
// not worth it, or packing takes scratch.
std::optional<Packing> pack_operand(std::size_t operand,
                                    const OneDnn& library,
                                    const Plain& plain,
                                    const MemoryDesc* packed,
                                    std::unique_ptr<Kernel> kernel);

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
