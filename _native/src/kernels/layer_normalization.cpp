// Layer normalisation over rows of C channels (Ba, Kiros and Hinton 2016).
//
//   y = (x - mean) / sqrt(variance + epsilon) * gamma + beta
//
// A row is summed in lanes whose number is fixed, so that its bits depend on the row
// alone; sums over rows are fixed blocks of rows (columns.hpp).
#include <algorithm>
#include <cmath>

#include "kernels/columns.hpp"
#include "kernels/function_kernel.hpp"

namespace memcfg {
namespace {

constexpr Count kLanes = 16;

// The sum of term(j) over [0, count).
template <class Term>
MEMCFG_INLINE double sum_row(Count count, const Term& term) {
  float lanes[kLanes] = {};
  Count j = 0;
  for (; j + kLanes <= count; j += kLanes) {
    for (Count k = 0; k < kLanes; ++k) lanes[k] += term(j + k);
  }
  double total = 0;
  for (const float lane : lanes) total += lane;
  for (; j < count; ++j) total += term(j);
  return total;
}

template <class T>
MEMCFG_VECTORIZED void normalize_row(const T* x,
                                     const float* gamma,
                                     const float* beta,
                                     Count count,
                                     double epsilon,
                                     T* y,
                                     float* mean_out,
                                     float* variance_out) {
  const double n = static_cast<double>(count);
  const float mean =
      static_cast<float>(sum_row(count, [=](Count j) { return as_float(x[j]); }) / n);
  const float variance = static_cast<float>(sum_row(count,
                                                    [=](Count j) {
                                                      const float deviation =
                                                          as_float(x[j]) - mean;
                                                      return deviation * deviation;
                                                    }) /
                                            n);
  const float inverse = static_cast<float>(1 / std::sqrt(variance + epsilon));
  MEMCFG_INDEPENDENT
  for (Count j = 0; j < count; ++j) {
    const float value = (as_float(x[j]) - mean) * inverse * gamma[j] + beta[j];
    y[j] = stored_as<T>(value);
  }
  *mean_out = mean;
  *variance_out = variance;
}

// dx = inverse * (g - mean(g) - xhat * mean(g * xhat)), where g = dy * gamma and
// xhat = (x - mean) * inverse. In place: dx = dy.
template <class T>
MEMCFG_VECTORIZED void differentiate_row(const T* x,
                                         const T* dy,
                                         const float* gamma,
                                         Count count,
                                         float mean,
                                         float inverse,
                                         T* dx) {
  const double n = static_cast<double>(count);
  const float shift = static_cast<float>(
      sum_row(count, [=](Count j) { return as_float(dy[j]) * gamma[j]; }) / n);
  const float tilt = static_cast<float>(
      sum_row(count,
              [=](Count j) {
                return as_float(dy[j]) * gamma[j] * ((as_float(x[j]) - mean) * inverse);
              }) /
      n);
  MEMCFG_INDEPENDENT
  for (Count j = 0; j < count; ++j) {
    const float normalized = (as_float(x[j]) - mean) * inverse;
    const float slope = as_float(dy[j]) * gamma[j] - shift - normalized * tilt;
    dx[j] = stored_as<T>(inverse * slope);
  }
}

template <class T>
MEMCFG_VECTORIZED void add_products(
    const T* x, const T* dy, Count count, float mean, float inverse, float* sums) {
  MEMCFG_INDEPENDENT
  for (Count j = 0; j < count; ++j) {
    sums[j] += as_float(dy[j]) * ((as_float(x[j]) - mean) * inverse);
  }
}

float inverse_of(float variance, double epsilon) {
  return static_cast<float>(1 / std::sqrt(variance + epsilon));
}

template <class T>
KernelPtr make_forward(const KernelSpec& spec) {
  const SpecReader reader(
      spec, {kName<T>, kFloat32, kFloat32}, {kName<T>, kFloat32, kFloat32});
  const SpecReader::Rows s = reader.rows(spec.inputs[0]);
  const double epsilon = reader.real("epsilon");
  const Bytes all = reader.bytes(spec.inputs[0]), channels = float_bytes(s.channels);
  const Bytes rows = float_bytes(s.rows);
  return function_kernel(
      {{all, channels, channels}, {all, rows, rows}}, 0, [=](void* const* o, void*) {
        const T* x = input_as<T>(o, 0);
        const float *gamma = input(o, 1), *beta = input(o, 2);
        T* y = output_as<T>(o, 3);
        float *mean = output(o, 4), *variance = output(o, 5);
        parallel_for(s.rows, s.count, [=](Count i) {
          const Count at = i * s.channels;
          normalize_row(
              x + at, gamma, beta, s.channels, epsilon, y + at, mean + i, variance + i);
        });
      });
}

template <class T>
KernelPtr make_backward(const KernelSpec& spec) {
  const SpecReader reader(spec,
                          {kName<T>, kName<T>, kFloat32, kFloat32, kFloat32},
                          {kName<T>, kFloat32, kFloat32});
  const SpecReader::Rows s = reader.rows(spec.inputs[0]);
  const double epsilon = reader.real("epsilon");
  const ColumnSum sum(s.rows, s.channels);
  const Bytes all = reader.bytes(spec.inputs[0]), channels = float_bytes(s.channels);
  const Bytes rows = float_bytes(s.rows);
  return function_kernel(
      {{all, all, channels, rows, rows}, {all, channels, channels}},
      float_bytes(sum.partials()),
      [=](void* const* o, void* scratch) {
        const T *x = input_as<T>(o, 0), *dy = input_as<T>(o, 1);
        const float* gamma = input(o, 2);
        const float *mean = input(o, 3), *variance = input(o, 4);
        T* dx = output_as<T>(o, 5);
        float *dgamma = output(o, 6), *dbeta = output(o, 7);
        float* partials = static_cast<float*>(scratch);
        sum.run(
            [=](Count first, Count length, float* out) {
              sum_values(dy + first * s.channels, length, s.channels, out);
            },
            [=](Count c, double total) { dbeta[c] = static_cast<float>(total); },
            partials);
        sum.run(
            [=](Count first, Count length, float* out) {
              std::fill_n(out, s.channels, 0.0F);
              for (Count i = first; i < first + length; ++i) {
                const Count at = i * s.channels;
                const float inverse = inverse_of(variance[i], epsilon);
                add_products(x + at, dy + at, s.channels, mean[i], inverse, out);
              }
            },
            [=](Count c, double total) { dgamma[c] = static_cast<float>(total); },
            partials);
        parallel_for(s.rows, s.count, [=](Count i) {  // last: dx may be dy
          const Count at = i * s.channels;
          const float inverse = inverse_of(variance[i], epsilon);
          differentiate_row(
              x + at, dy + at, gamma, s.channels, mean[i], inverse, dx + at);
        });
      });
}

KernelPtr make_layer_normalization(const KernelSpec& spec) {
  return of_floats(spec, [&](auto x) { return make_forward<decltype(x)>(spec); });
}
KernelPtr make_layer_normalization_gradient(const KernelSpec& spec) {
  return of_floats(spec, [&](auto x) { return make_backward<decltype(x)>(spec); });
}

const KernelType kLayerNormalization{
    "layer_normalization", make_layer_normalization, Floats::bfloat16};
const KernelType kLayerNormalizationGradient{"layer_normalization_gradient",
                                             make_layer_normalization_gradient,
                                             Floats::bfloat16};

}  // namespace
}  // namespace memcfg
