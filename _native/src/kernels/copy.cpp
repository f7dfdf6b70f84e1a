// flatten, reshape: the same bytes under another shape; nothing to do in place. fill:
// one number as an array; constant: numbers as an array. part: one of the equal
// parts of a tensor's bytes, with zeros behind the end.
#include <algorithm>
#include <cstdint>
#include <cstring>

#include "kernels/function_kernel.hpp"
#include "kernels/functions.hpp"
#include "kernels/parallel.hpp"

namespace memcfg {
namespace {

KernelPtr make_copy(const KernelSpec& spec) {
  const SpecReader reader(spec, {kAnyDtype}, {kAnyDtype});
  const Bytes bytes = reader.bytes(spec.inputs[0]);
  const Count nbytes = static_cast<Count>(bytes);
  return function_kernel({{bytes}, {bytes}}, 0, [=](void* const* operands, void*) {
    const char* from = static_cast<const char*>(operands[0]);
    char* to = static_cast<char*>(operands[1]);
    if (from == to) return;
    parallel_chunks(nbytes, kChunk * Count{kFloat}, [=](Count begin, Count length) {
      std::memcpy(to + begin, from + begin, static_cast<std::size_t>(length));
    });
  });
}

KernelPtr make_fill(const KernelSpec& spec) {
  if (spec.outputs.size() == 1 && spec.outputs[0].dtype == kInt64) {
    const SpecReader reader(spec, {}, {kInt64});
    const Bytes bytes = reader.bytes(spec.outputs[0]);
    const auto value = static_cast<std::int64_t>(reader.real("value"));
    return function_kernel({{}, {bytes}}, 0, [=](void* const* operands, void*) {
      std::fill_n(static_cast<std::int64_t*>(operands[0]), bytes / sizeof value, value);
    });
  }
  const SpecReader reader(spec, {}, {kFloat32});
  const Count count = reader.count(spec.outputs[0]);
  const float value = static_cast<float>(reader.real("value"));
  return function_kernel(
      {{}, {float_bytes(count)}}, 0, [=](void* const* operands, void*) {
        std::fill_n(output(operands, 0), count, value);
      });
}

KernelPtr make_constant(const KernelSpec& spec) {
  const SpecReader reader(spec, {}, {kFloat32});
  const Count count = reader.count(spec.outputs[0]);
  const std::string& digits = reader.text("data");
  if (digits.size() != static_cast<std::size_t>(count) * 8) {
    reader.fail("needs 8 digits an element");
  }
  std::vector<float> numbers;
  for (std::size_t i = 0; i < digits.size(); i += 8) {
    const std::string each = digits.substr(i, 8);
    if (each.find_first_not_of("0123456789abcdef") != std::string::npos) {
      reader.fail("needs hexadecimal digits");
    }
    numbers.push_back(
        float_of(static_cast<std::uint32_t>(std::stoul(each, nullptr, 16))));
  }
  return function_kernel(
      {{}, {float_bytes(count)}}, 0, [=](void* const* operands, void*) {
        std::copy(numbers.begin(), numbers.end(), output(operands, 0));
      });
}

KernelPtr make_part(const KernelSpec& spec) {
  const SpecReader reader(spec, {kAnyDtype}, {kAnyDtype});
  const Bytes whole = reader.bytes(spec.inputs[0]);
  const Bytes part = reader.bytes(spec.outputs[0]);
  const Count rank = reader.integer("rank", 0), ranks = reader.integer("ranks", 1);
  if (rank >= ranks) reader.fail("has no part " + std::to_string(rank));
  const Bytes begin = std::min(static_cast<Bytes>(rank) * part, whole);
  const Count own = static_cast<Count>(std::min(part, whole - begin));
  return function_kernel({{whole}, {part}}, 0, [=](void* const* operands, void*) {
    const char* from = static_cast<const char*>(operands[0]) + begin;
    char* to = static_cast<char*>(operands[1]);
    parallel_chunks(own, kChunk * Count{kFloat}, [=](Count first, Count length) {
      std::memcpy(to + first, from + first, static_cast<std::size_t>(length));
    });
    std::memset(to + own, 0, part - static_cast<Bytes>(own));
  });
}

const KernelType kConstant{"constant", make_constant};
const KernelType kFill{"fill", make_fill};
const KernelType kFlatten{"flatten", make_copy, Floats::bfloat16};
const KernelType kPart{"part", make_part, Floats::bfloat16};
const KernelType kReshape{"reshape", make_copy, Floats::bfloat16};

}  // namespace
}  // namespace memcfg
