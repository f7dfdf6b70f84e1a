// bias: y = x + b, channel by channel; bias_gradient: the sum of dy over rows; and both
// with a ReLU, in one pass over the data.
#include "kernels/columns.hpp"
#include "kernels/function_kernel.hpp"
#include "kernels/functions.hpp"

namespace memcfg {
namespace {

// y = activation(x + b) for `count` elements, b over and over. In place: y = x.
template <class Activation>
MEMCFG_VECTORIZED void add_bias(
    const float* x, const float* b, Count count, Count width, float* y) {
  for (Count i = 0; i < count; i += width) {
    const Count length = std::min(width, count - i);
    MEMCFG_INDEPENDENT
    for (Count j = 0; j < length; ++j) y[i + j] = Activation::of(x[i + j] + b[j]);
  }
}

// dx = dy where y is positive, else 0; and its sums. In place: dx is either.
MEMCFG_VECTORIZED void sum_relu_gradient(const float* y,
                                         const float* dy,
                                         Count rows,
                                         Count channels,
                                         float* dx,
                                         float* out) {
  float* const outs[1] = {out};
  sum_rows<1>(rows, channels, outs, [=](Count i, Count) {
    dx[i] = Relu::gradient(y, dy, i);
    return Terms<1>{{dx[i]}};
  });
}

template <class Activation>
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
      add_bias<Activation>(x + begin, b, length, width, y + begin);
    });
  });
}

KernelPtr make_bias_gradient(const KernelSpec& spec) {
  const SpecReader reader(spec, {kFloat32}, {kFloat32});
  const SpecReader::Rows shape = reader.rows(spec.inputs[0]);
  const Count channels = shape.channels;
  const ColumnSum sum(shape.rows, channels);
  return function_kernel(
      {{float_bytes(shape.count)}, {float_bytes(channels)}},
      float_bytes(sum.partials()),
      [=](void* const* operands, void* scratch) {
        const float* dy = input(operands, 0);
        float* db = output(operands, 1);
        sum.run(
            [=](Count first, Count length, float* out) {
              sum_values(dy + first * channels, length, channels, out);
            },
            [=](Count c, double total) { db[c] = static_cast<float>(total); },
            static_cast<float*>(scratch));
      });
}

KernelPtr make_bias_relu_gradient(const KernelSpec& spec) {
  const SpecReader reader(spec, {kFloat32, kFloat32}, {kFloat32, kFloat32});
  const SpecReader::Rows shape = reader.rows(spec.inputs[0]);
  const Count channels = shape.channels;
  const ColumnSum sum(shape.rows, channels);
  const Bytes all = float_bytes(shape.count);
  return function_kernel(
      {{all, all}, {all, float_bytes(channels)}},
      float_bytes(sum.partials()),
      [=](void* const* operands, void* scratch) {
        const float *y = input(operands, 0), *dy = input(operands, 1);
        float *dx = output(operands, 2), *db = output(operands, 3);
        sum.run(
            [=](Count first, Count length, float* out) {
              const Count at = first * channels;
              sum_relu_gradient(y + at, dy + at, length, channels, dx + at, out);
            },
            [=](Count c, double total) { db[c] = static_cast<float>(total); },
            static_cast<float*>(scratch));
      });
}

const KernelType kBias{"bias", make_bias<Identity>};
const KernelType kBiasRelu{"bias_relu", make_bias<Relu>};
const KernelType kBiasGradient{"bias_gradient", make_bias_gradient};
const KernelType kBiasReluGradient{"bias_relu_gradient", make_bias_relu_gradient};

}  // namespace
}  // namespace memcfg
