// flatten, reshape: the same bytes under another shape; nothing to do in place.
#include <cstring>

#include "kernels/factories.hpp"
#include "kernels/parallel.hpp"

namespace memcfg {

KernelPtr make_copy(const KernelSpec& spec) {
  SpecReader reader(spec, 1, 0);
  const Count nbytes = reader.positive("nbytes");
  const Bytes bytes = static_cast<Bytes>(nbytes);
  return function_kernel({{bytes}, {bytes}}, 0, [=](void* const* operands, void*) {
    const char* from = static_cast<const char*>(operands[0]);
    char* to = static_cast<char*>(operands[1]);
    if (from == to) return;
    parallel_chunks(nbytes, kChunk * Count{kFloat}, [=](Count begin, Count length) {
      std::memcpy(to + begin, from + begin, static_cast<std::size_t>(length));
    });
  });
}

}  // namespace memcfg
