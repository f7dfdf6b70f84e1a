// concatenate and split: rows of bytes from or to several arrays.
#include <cstring>

#include "kernels/function_kernel.hpp"
#include "kernels/parallel.hpp"

namespace memcfg {
namespace {

// One array beside others of the same element type that agree in all but one axis:
// `rows` pieces, of which each part has a number of bytes.
struct Joint {
  Count rows = 1;
  std::vector<Count> parts;  // bytes
  Count row = 0;             // bytes of all parts

  Joint(const SpecReader& reader,
        const OperandSpec& whole,
        const std::vector<OperandSpec>& operands) {
    const Count rank = static_cast<Count>(whole.shape.size());
    Count axis = reader.integer("axis", -rank);
    axis = axis < 0 ? axis + rank : axis;
    if (axis >= rank) reader.fail("needs axis < " + std::to_string(rank));
    for (Count i = 0; i < axis; ++i) rows *= whole.shape[static_cast<std::size_t>(i)];
    for (const OperandSpec& each : operands) {
      auto shape = whole.shape;
      if (each.shape.size() != shape.size()) reader.fail("joins arrays of one rank");
      const auto along = static_cast<std::size_t>(axis);
      shape[along] = each.shape[along];
      if (each.shape != shape || each.dtype != whole.dtype) {
        reader.fail("joins arrays that agree in all but one axis");
      }
      parts.push_back(static_cast<Count>(reader.bytes(each)) / rows);
      row += parts.back();
    }
  }

  // copy(place in the whole, part, place in the part, bytes) for every piece.
  template <class Copy>
  void for_pieces(const Copy& copy) const {
    parallel_for(rows, rows * row / Count{kFloat}, [&](Count i) {
      Count place = i * row;
      for (std::size_t part = 0; part < parts.size(); ++part) {
        const Count bytes = parts[part];
        copy(place, part, i * bytes, static_cast<std::size_t>(bytes));
        place += bytes;
      }
    });
  }

  std::vector<Bytes> part_bytes() const {
    std::vector<Bytes> result;
    for (const Count bytes : parts) result.push_back(static_cast<Bytes>(rows * bytes));
    return result;
  }
  Bytes bytes() const { return static_cast<Bytes>(rows * row); }
};

KernelPtr make_concatenate(const KernelSpec& spec) {
  const SpecReader reader(spec);
  if (spec.inputs.empty() || spec.outputs.size() != 1) {
    reader.fail("has inputs, and one output");
  }
  const Joint joint(reader, spec.outputs[0], spec.inputs);
  const std::size_t count = spec.inputs.size();
  return function_kernel(
      {joint.part_bytes(), {joint.bytes()}}, 0, [=](void* const* operands, void*) {
        char* whole = static_cast<char*>(operands[count]);
        joint.for_pieces([=](Count to, std::size_t part, Count from, std::size_t size) {
          std::memcpy(
              whole + to, static_cast<const char*>(operands[part]) + from, size);
        });
      });
}

KernelPtr make_split(const KernelSpec& spec) {
  const SpecReader reader(spec);
  if (spec.inputs.size() != 1 || spec.outputs.empty()) {
    reader.fail("has one of inputs, and outputs");
  }
  const Joint joint(reader, spec.inputs[0], spec.outputs);
  return function_kernel(
      {{joint.bytes()}, joint.part_bytes()}, 0, [=](void* const* operands, void*) {
        const char* whole = static_cast<const char*>(operands[0]);
        joint.for_pieces([=](Count from, std::size_t part, Count to, std::size_t size) {
          std::memcpy(static_cast<char*>(operands[part + 1]) + to, whole + from, size);
        });
      });
}

const KernelType kConcatenate{"concatenate", make_concatenate, Floats::bfloat16};
const KernelType kSplit{"split", make_split, Floats::bfloat16};

}  // namespace
}  // namespace memcfg
