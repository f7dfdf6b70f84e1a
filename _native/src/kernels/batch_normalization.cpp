// Batch normalisation over rows of C channels (Ioffe and Szegedy 2015).
//
//   y = (x - mean) * gamma / sqrt(variance + epsilon) + beta
//
// The variance is biased and is computed from deviations (two passes), not from
// squares. Statistics and the gradient's sums are fixed blocks of rows (columns.hpp).
#include <cmath>

#include "kernels/columns.hpp"
#include "kernels/function_kernel.hpp"

namespace memcfg {
namespace {

struct Shape {
  Count rows, channels, count, width, chunk;
  double epsilon;

  explicit Shape(const SpecReader& reader, const OperandSpec& x) {
    const SpecReader::Rows found = reader.rows(x);
    rows = found.rows;
    channels = found.channels;
    count = found.count;
    epsilon = reader.real("epsilon");
    width = period(channels);
    chunk = std::max(kChunk / width, Count{1}) * width;
  }
};

// The factors of one channel, each repeated to the period, in caller's scratch.
struct Factors {
  static constexpr Count kArrays = 4;
  static Count floats(const Shape& shape) { return kArrays * shape.width; }

  Factors(float* scratch, const Shape& shape)
      : mean(scratch),
        scale(mean + shape.width),
        slope(scale + shape.width),
        shift(slope + shape.width) {}

  // set(channel) writes the channel's first copy; the rest are repeated.
  template <class Set>
  void fill(const Shape& shape, const Set& set) const {
    for (Count c = 0; c < shape.channels; ++c) set(c);
    for (float* values : {mean, scale, slope, shift}) {
      for (Count j = shape.channels; j < shape.width; ++j) {
        values[j] = values[j - shape.channels];
      }
    }
  }

  float* mean;
  float* scale;
  float* slope;
  float* shift;
};

MEMCFG_VECTORIZED void normalize(
    const float* x, const Factors& f, Count count, Count width, float* y) {
  const float *mean = f.mean, *scale = f.scale, *shift = f.shift;
  for (Count i = 0; i < count; i += width) {
    const Count length = std::min(width, count - i);
    MEMCFG_INDEPENDENT
    for (Count j = 0; j < length; ++j) {
      y[i + j] = (x[i + j] - mean[j]) * scale[j] + shift[j];
    }
  }
}

// dx = scale * ((dy - shift) - slope * (x - mean)): exactly 0 where a channel has one
// value, since both differences are. In place: dx = dy.
MEMCFG_VECTORIZED void differentiate(const float* x,
                                     const float* dy,
                                     const Factors& f,
                                     Count count,
                                     Count width,
                                     float* dx) {
  const float *mean = f.mean, *scale = f.scale, *slope = f.slope, *shift = f.shift;
  for (Count i = 0; i < count; i += width) {
    const Count length = std::min(width, count - i);
    MEMCFG_INDEPENDENT
    for (Count j = 0; j < length; ++j) {
      dx[i + j] = scale[j] * ((dy[i + j] - shift[j]) - slope[j] * (x[i + j] - mean[j]));
    }
  }
}

void apply(const Shape& shape,
           const Factors& factors,
           const float* x,
           const float* gamma,
           const float* beta,
           const float* mean,
           const float* variance,
           float* y) {
  factors.fill(shape, [&](Count c) {
    factors.mean[c] = mean[c];
    factors.scale[c] =
        static_cast<float>(gamma[c] / std::sqrt(variance[c] + shape.epsilon));
    factors.slope[c] = 0;
    factors.shift[c] = beta[c];
  });
  parallel_chunks(shape.count, shape.chunk, [&](Count begin, Count length) {
    normalize(x + begin, factors, length, shape.width, y + begin);
  });
}

// mean[C] and variance[C] of x; `repeated` receives the mean over the period.
void statistics(const Shape& shape,
                const ColumnSum& sum,
                const float* x,
                float* repeated,
                float* partials,
                float* mean,
                float* variance) {
  const Count channels = shape.channels;
  const double rows = static_cast<double>(shape.rows);
  sum.run(
      partials,
      [=](Count first, Count length, float* out) {
        sum_values(x + first * channels, length, channels, out);
      },
      [=](Count c, double total) { mean[c] = static_cast<float>(total / rows); });
  repeat(mean, channels, repeated);
  sum.run(
      partials,
      [=](Count first, Count length, float* out) {
        sum_squares(x + first * channels, repeated, length, channels, out);
      },
      [=](Count c, double total) { variance[c] = static_cast<float>(total / rows); });
}

// The two sums of the gradient: dbeta = sum(dy), and dgamma = sum(dy * (x - mean)),
// still without its factor 1 / sqrt(variance + epsilon).
void gradient_sums(const Shape& shape,
                   const ColumnSum& sum,
                   const float* x,
                   const float* dy,
                   const float* mean,
                   float* partials,
                   float* dgamma,
                   float* dbeta) {
  const Count channels = shape.channels;
  sum.run(
      partials,
      [=](Count first, Count length, float* out) {
        sum_values(dy + first * channels, length, channels, out);
      },
      [=](Count c, double total) { dbeta[c] = static_cast<float>(total); });
  sum.run(
      partials,
      [=](Count first, Count length, float* out) {
        const Count at = first * channels;
        sum_products(dy + at, x + at, mean, length, channels, out);
      },
      [=](Count c, double total) { dgamma[c] = static_cast<float>(total); });
}

KernelPtr make_batch_normalization(const KernelSpec& spec) {
  const SpecReader reader(
      spec, {kFloat32, kFloat32, kFloat32}, {kFloat32, kFloat32, kFloat32});
  const Shape shape(reader, spec.inputs[0]);
  const ColumnSum sum(shape.rows, shape.channels);
  const Bytes scratch_bytes = float_bytes(Factors::floats(shape) + sum.partials());
  const Bytes all = float_bytes(shape.count), each = float_bytes(shape.channels);
  return function_kernel(
      {{all, each, each}, {all, each, each}},
      scratch_bytes,
      [=](void* const* operands, void* scratch) {
        float* floats = static_cast<float*>(scratch);
        float *y = output(operands, 3), *mean = output(operands, 4);
        float* variance = output(operands, 5);
        const Factors factors(floats, shape);
        const float* x = input(operands, 0);
        float* partials = floats + Factors::floats(shape);
        statistics(shape, sum, x, factors.mean, partials, mean, variance);
        const float *gamma = input(operands, 1), *beta = input(operands, 2);
        apply(shape, factors, x, gamma, beta, mean, variance, y);
      });
}

KernelPtr make_batch_normalization_inference(const KernelSpec& spec) {
  const SpecReader reader(
      spec, {kFloat32, kFloat32, kFloat32, kFloat32, kFloat32}, {kFloat32});
  const Shape shape(reader, spec.inputs[0]);
  const Bytes scratch_bytes = float_bytes(Factors::floats(shape));
  const Bytes all = float_bytes(shape.count), each = float_bytes(shape.channels);
  return function_kernel(
      {{all, each, each, each, each}, {all}},
      scratch_bytes,
      [=](void* const* operands, void* scratch) {
        const Factors factors(static_cast<float*>(scratch), shape);
        const float *gamma = input(operands, 1), *beta = input(operands, 2);
        const float *mean = input(operands, 3), *variance = input(operands, 4);
        float* y = output(operands, 5);
        apply(shape, factors, input(operands, 0), gamma, beta, mean, variance, y);
      });
}

KernelPtr make_batch_normalization_gradient(const KernelSpec& spec) {
  const SpecReader reader(spec,
                          {kFloat32, kFloat32, kFloat32, kFloat32, kFloat32},
                          {kFloat32, kFloat32, kFloat32});
  const Shape shape(reader, spec.inputs[0]);
  const ColumnSum sum(shape.rows, shape.channels);
  const Bytes scratch_bytes = float_bytes(Factors::floats(shape) + sum.partials());
  const Bytes all = float_bytes(shape.count), each = float_bytes(shape.channels);
  return function_kernel(
      {{all, all, each, each, each}, {all, each, each}},
      scratch_bytes,
      [=](void* const* operands, void* scratch) {
        float* floats = static_cast<float*>(scratch);
        const Factors factors(floats, shape);
        const float *x = input(operands, 0), *dy = input(operands, 1);
        const float *gamma = input(operands, 2), *mean = input(operands, 3);
        const float* variance = input(operands, 4);
        float *dx = output(operands, 5), *dgamma = output(operands, 6);
        float* dbeta = output(operands, 7);
        repeat(mean, shape.channels, factors.mean);
        float* partials = floats + Factors::floats(shape);
        gradient_sums(shape, sum, x, dy, factors.mean, partials, dgamma, dbeta);
        const double rows = static_cast<double>(shape.rows);
        factors.fill(shape, [&](Count c) {
          const double inverse = 1 / std::sqrt(variance[c] + shape.epsilon);
          factors.scale[c] = static_cast<float>(gamma[c] * inverse);
          factors.slope[c] = static_cast<float>(inverse * inverse * dgamma[c] / rows);
          factors.shift[c] = static_cast<float>(dbeta[c] / rows);
          dgamma[c] = static_cast<float>(dgamma[c] * inverse);
        });
        parallel_chunks(shape.count, shape.chunk, [&](Count begin, Count length) {
          differentiate(
              x + begin, dy + begin, factors, length, shape.width, dx + begin);
        });
      });
}

const KernelType kBatchNormalization{"batch_normalization", make_batch_normalization};
const KernelType kBatchNormalizationInference{"batch_normalization_inference",
                                              make_batch_normalization_inference};
const KernelType kBatchNormalizationGradient{"batch_normalization_gradient",
                                             make_batch_normalization_gradient};

}  // namespace
}  // namespace memcfg
