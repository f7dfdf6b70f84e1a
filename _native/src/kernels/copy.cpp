// flatten, reshape: the same bytes under another shape; nothing to do in place.
#include <cstring>

#include "kernels/function_kernel.hpp"
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

const KernelType kFlatten{"flatten", make_copy};
const KernelType kReshape{"reshape", make_copy};

}  // namespace
}  // namespace memcfg
