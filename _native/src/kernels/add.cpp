// add: y = a + b, element by element.
#include "kernels/function_kernel.hpp"
#include "kernels/parallel.hpp"

namespace memcfg {
namespace {

MEMCFG_VECTORIZED void add_arrays(const float* a,
                                  const float* b,
                                  Count count,
                                  float* y) {
  MEMCFG_INDEPENDENT
  for (Count i = 0; i < count; ++i) y[i] = a[i] + b[i];
}

KernelPtr make_add(const KernelSpec& spec) {
  const SpecReader reader(spec, {kFloat32, kFloat32}, {kFloat32});
  const Count count = reader.count(spec.inputs[0]);
  const Bytes bytes = float_bytes(count);
  return function_kernel(
      {{bytes, bytes}, {bytes}}, 0, [=](void* const* operands, void*) {
        const float* a = input(operands, 0);
        const float* b = input(operands, 1);
        float* y = output(operands, 2);
        parallel_chunks(count, kChunk, [=](Count begin, Count length) {
          add_arrays(a + begin, b + begin, length, y + begin);
        });
      });
}

const KernelType kAdd{"add", make_add};

}  // namespace
}  // namespace memcfg
