// bias: y = x + b, channel by channel; bias_gradient: the sum of dy over rows.
#include "kernels/columns.hpp"
#include "kernels/function_kernel.hpp"

namespace memcfg {
namespace {

// y[i * width + j] = x[i * width + j] + b[j], for `count` elements. In place: y = x.
MEMCFG_VECTORIZED void add_bias(
    const float* x, const float* b, Count count, Count width, float* y) {
  for (Count i = 0; i < count; i += width) {
    const Count length = std::min(width, count - i);
    MEMCFG_INDEPENDENT
    for (Count j = 0; j < length; ++j) y[i + j] = x[i + j] + b[j];
  }
}

KernelPtr make_bias(const KernelSpec& spec) {
  const SpecReader reader(spec, {kFloat32, kFloat32}, {kFloat32});
  const SpecReader::Rows shape = reader.rows(spec.inputs[0]);
  const Count channels = shape.channels, count = shape.count;
  const Count width = period(channels);
  const Count chunk = std::max(kChunk / width, Count{1}) * width;
  const Bytes all = float_bytes(count), each = float_bytes(channels);
  return function_kernel({{all, each}, {all}}, 0, [=](void* const* operands, void*) {
    const float* x = input(operands, 0);
    const float* b = input(operands, 1);
    float* y = output(operands, 2);
    float repeated[kPeriodMost];
    if (channels < kPeriod) {
      repeat(b, channels, repeated);
      b = repeated;
    }
    parallel_chunks(count, chunk, [=](Count begin, Count length) {
      add_bias(x + begin, b, length, width, y + begin);
    });
  });
}

KernelPtr make_bias_gradient(const KernelSpec& spec) {
  const SpecReader reader(spec, {kFloat32}, {kFloat32});
  const SpecReader::Rows shape = reader.rows(spec.inputs[0]);
  const Count channels = shape.channels, count = shape.count;
  const ColumnSum sum(shape.rows, channels);
  return function_kernel(
      {{float_bytes(count)}, {float_bytes(channels)}},
      float_bytes(sum.partials()),
      [=](void* const* operands, void* scratch) {
        const float* dy = input(operands, 0);
        float* db = output(operands, 1);
        sum.run(
            static_cast<float*>(scratch),
            [=](Count first, Count length, float* out) {
              sum_values(dy + first * channels, length, channels, out);
            },
            [=](Count c, double total) { db[c] = static_cast<float>(total); });
      });
}

const KernelType kBias{"bias", make_bias};
const KernelType kBiasGradient{"bias_gradient", make_bias_gradient};

}  // namespace
}  // namespace memcfg
