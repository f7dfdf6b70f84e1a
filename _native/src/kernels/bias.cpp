// bias: y = x + b, channel by channel; bias_gradient: the sum of dy over rows; and both
// with a ReLU, in one pass over the data.
#include "kernels/columns.hpp"
#include "kernels/function_kernel.hpp"
#include "kernels/functions.hpp"

namespace memcfg {
namespace {

// y = activation(x + b) for `count` elements, b over and over. In place: y = x.
template <class Activation, class T>
MEMCFG_VECTORIZED void add_bias(
    const T* x, const float* b, Count count, Count width, T* y) {
  for (Count i = 0; i < count; i += width) {
    const Count length = std::min(width, count - i);
    MEMCFG_INDEPENDENT
    for (Count j = 0; j < length; ++j) {
      y[i + j] = stored_as<T>(Activation::of(as_float(x[i + j]) + b[j]));
    }
  }
}

// dx = dy where y is positive, else 0; and its sums. In place: dx is dy, or y if its
// rows are no wider.
template <class T>
MEMCFG_VECTORIZED void sum_relu_gradient(const T* y,
                                         const T* dy,
                                         Count rows,
                                         Count channels,
                                         Count wide,
                                         T* dx,
                                         float* out) {
  float* const outs[1] = {out};
  if (wide == channels) {
    sum_rows<1>(rows, channels, outs, [=](Count i, Count) {
      const float slope = Relu::gradient(y, dy, i);
      dx[i] = stored_as<T>(slope);
      return Terms<1>{{slope}};
    });
    return;
  }
  std::fill_n(out, channels, 0.0F);
  accumulate_rows<1>(rows, channels, outs, [=](Count row, Count j) {
    const Count i = row * channels + j;
    const float slope = Relu::gradient(as_float(y[row * wide + j]), as_float(dy[i]));
    dx[i] = stored_as<T>(slope);
    return Terms<1>{{slope}};
  });
}

template <class T, class Activation>
KernelPtr make_bias_of(const KernelSpec& spec) {
  const SpecReader reader(spec, {kName<T>, kFloat32}, {kName<T>});
  const SpecReader::Rows shape = reader.rows(spec.inputs[0]);
  const Count channels = shape.channels, count = shape.count;
  const Count width = period(channels);
  const Count chunk = std::max(kChunk / width, Count{1}) * width;
  const Bytes all = reader.bytes(spec.inputs[0]), each = float_bytes(channels);
  return function_kernel({{all, each}, {all}}, 0, [=](void* const* operands, void*) {
    const T* x = input_as<T>(operands, 0);
    const float* b = input(operands, 1);
    T* y = output_as<T>(operands, 2);
    float repeated[kPeriodMost];
    if (channels < kPeriod) {
      repeat(b, channels, repeated);
      b = repeated;
    }
    parallel_chunks(count, chunk, [=](Count begin, Count length) {
      add_bias<Activation, T>(x + begin, b, length, width, y + begin);
    });
  });
}

template <class T>
KernelPtr make_bias_gradient_of(const KernelSpec& spec) {
  const SpecReader reader(spec, {kName<T>}, {kFloat32});
  const SpecReader::Rows shape = reader.rows(spec.inputs[0]);
  const Count channels = shape.channels;
  const ColumnSum sum(shape.rows, channels);
  return function_kernel(
      {{reader.bytes(spec.inputs[0])}, {float_bytes(channels)}},
      float_bytes(sum.partials()),
      [=](void* const* operands, void* scratch) {
        const T* dy = input_as<T>(operands, 0);
        float* db = output(operands, 1);
        sum.run(
            [=](Count first, Count length, float* out) {
              sum_values(dy + first * channels, length, channels, out);
            },
            [=](Count c, double total) { db[c] = static_cast<float>(total); },
            static_cast<float*>(scratch));
      });
}

template <class T>
KernelPtr make_bias_relu_gradient_of(const KernelSpec& spec) {
  const SpecReader reader(spec, {kName<T>, kName<T>}, {kName<T>, kFloat32});
  const SpecReader::Rows shape = reader.rows(spec.inputs[1]);
  const Count channels = shape.channels, wide = reader.rows(spec.inputs[0]).channels;
  const Count place = reader.has("first") ? reader.integer("first", 0) : 0;
  if (wide - channels < place) reader.fail("reads channels that are not there");
  const ColumnSum sum(shape.rows, channels);
  const Bytes all = reader.bytes(spec.inputs[1]);
  return function_kernel(
      {{reader.bytes(spec.inputs[0]), all}, {all, float_bytes(channels)}},
      float_bytes(sum.partials()),
      [=](void* const* operands, void* scratch) {
        const T* y = input_as<T>(operands, 0) + place;
        const T* dy = input_as<T>(operands, 1);
        T* dx = output_as<T>(operands, 2);
        float* db = output(operands, 3);
        sum.run(
            [=](Count first, Count length, float* out) {
              const Count at = first * channels;
              sum_relu_gradient(
                  y + first * wide, dy + at, length, channels, wide, dx + at, out);
            },
            [=](Count c, double total) { db[c] = static_cast<float>(total); },
            static_cast<float*>(scratch));
      });
}

// dx = dy where y is positive, which is the channels from "first" on of wider rows.
template <class T>
MEMCFG_VECTORIZED void mask_rows(
    const T* y, const T* dy, Count rows, Count channels, Count wide, T* dx) {
  for (Count i = 0; i < rows; ++i, y += wide, dy += channels, dx += channels) {
    MEMCFG_INDEPENDENT
    for (Count j = 0; j < channels; ++j) {
      dx[j] = stored_as<T>(Relu::gradient(y, dy, j));
    }
  }
}

template <class T>
KernelPtr make_relu_gradient_at_of(const KernelSpec& spec) {
  const SpecReader reader(spec, {kName<T>, kName<T>}, {kName<T>});
  const SpecReader::Rows shape = reader.rows(spec.inputs[1]);
  const Count channels = shape.channels, wide = reader.rows(spec.inputs[0]).channels;
  const Count place = reader.integer("first", 0);
  if (wide - channels < place) reader.fail("reads channels that are not there");
  const Count chunk = std::max(kChunk / channels, Count{1}) * channels;
  const Bytes all = reader.bytes(spec.inputs[1]);
  return function_kernel({{reader.bytes(spec.inputs[0]), all}, {all}},
                         0,
                         [=](void* const* operands, void*) {
                           const T* y = input_as<T>(operands, 0) + place;
                           const T* dy = input_as<T>(operands, 1);
                           T* dx = output_as<T>(operands, 2);
                           parallel_chunks(
                               shape.count, chunk, [=](Count begin, Count length) {
                                 const Count row = begin / channels;
                                 mask_rows(y + row * wide,
                                           dy + begin,
                                           length / channels,
                                           channels,
                                           wide,
                                           dx + begin);
                               });
                         });
}

template <class Activation>
KernelPtr make_bias(const KernelSpec& spec) {
  return of_floats(spec,
                   [&](auto x) { return make_bias_of<decltype(x), Activation>(spec); });
}
KernelPtr make_bias_gradient(const KernelSpec& spec) {
  return of_floats(spec,
                   [&](auto x) { return make_bias_gradient_of<decltype(x)>(spec); });
}
KernelPtr make_bias_relu_gradient(const KernelSpec& spec) {
  return of_floats(
      spec, [&](auto x) { return make_bias_relu_gradient_of<decltype(x)>(spec); });
}
KernelPtr make_relu_gradient_at(const KernelSpec& spec) {
  return of_floats(spec,
                   [&](auto x) { return make_relu_gradient_at_of<decltype(x)>(spec); });
}

constexpr Floats kBoth = Floats::bfloat16;

const KernelType kReluGradientAt{"relu_gradient_at", make_relu_gradient_at, kBoth};
const KernelType kBias{"bias", make_bias<Identity>, kBoth};
const KernelType kBiasRelu{"bias_relu", make_bias<Relu>, kBoth};
const KernelType kBiasGradient{"bias_gradient", make_bias_gradient, kBoth};
const KernelType kBiasReluGradient{
    "bias_relu_gradient", make_bias_relu_gradient, kBoth};
const KernelType kBiasReluGradientAt{
    "bias_relu_gradient_at", make_bias_relu_gradient, kBoth};

}  // namespace
}  // namespace memcfg
