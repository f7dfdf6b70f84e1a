// relu: y = max(x, 0), NaN stays NaN; relu_gradient: dy where y > 0, else 0.
#include "kernels/function_kernel.hpp"
#include "kernels/parallel.hpp"

namespace memcfg {
namespace {

MEMCFG_VECTORIZED void rectify(const float* x, Count count, float* y) {
  MEMCFG_INDEPENDENT
  for (Count i = 0; i < count; ++i) y[i] = x[i] < 0 ? 0 : x[i];
}

MEMCFG_VECTORIZED void pass_positive(const float* y,
                                     const float* dy,
                                     Count count,
                                     float* dx) {
  MEMCFG_INDEPENDENT
  for (Count i = 0; i < count; ++i) {
    const float gradient = dy[i];
    dx[i] = y[i] > 0 ? gradient : 0;
  }
}

KernelPtr make_relu(const KernelSpec& spec) {
  const SpecReader reader(spec, {kFloat32}, {kFloat32});
  const Count count = reader.count(spec.inputs[0]);
  const Bytes bytes = float_bytes(count);
  return function_kernel({{bytes}, {bytes}}, 0, [=](void* const* operands, void*) {
    const float* x = input(operands, 0);
    float* y = output(operands, 1);
    parallel_chunks(count, kChunk, [=](Count begin, Count length) {
      rectify(x + begin, length, y + begin);
    });
  });
}

KernelPtr make_relu_gradient(const KernelSpec& spec) {
  const SpecReader reader(spec, {kFloat32, kFloat32}, {kFloat32});
  const Count count = reader.count(spec.inputs[0]);
  const Bytes bytes = float_bytes(count);
  return function_kernel(
      {{bytes, bytes}, {bytes}}, 0, [=](void* const* operands, void*) {
        const float* y = input(operands, 0);
        const float* dy = input(operands, 1);
        float* dx = output(operands, 2);
        parallel_chunks(count, kChunk, [=](Count begin, Count length) {
          pass_positive(y + begin, dy + begin, length, dx + begin);
        });
      });
}

const KernelType kRelu{"relu", make_relu};
const KernelType kReluGradient{"relu_gradient", make_relu_gradient};

}  // namespace
}  // namespace memcfg
