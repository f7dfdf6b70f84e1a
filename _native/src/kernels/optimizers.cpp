// State updates, each element on its own: sgd, sgd_momentum, adam (Kingma and Ba
// 2015), with Keras's formulas, and moving_average. All work in place.
#include <cmath>

#include "kernels/function_kernel.hpp"
#include "kernels/parallel.hpp"

namespace memcfg {
namespace {

MEMCFG_VECTORIZED void descend(
    const float* w, const float* g, float rate, Count count, float* w_out) {
  MEMCFG_INDEPENDENT
  for (Count i = 0; i < count; ++i) w_out[i] = w[i] - rate * g[i];
}

MEMCFG_VECTORIZED void descend_with_momentum(const float* w,
                                             const float* g,
                                             const float* v,
                                             float rate,
                                             float momentum,
                                             Count count,
                                             float* w_out,
                                             float* v_out) {
  MEMCFG_INDEPENDENT
  for (Count i = 0; i < count; ++i) {
    const float velocity = momentum * v[i] - rate * g[i];
    w_out[i] = w[i] + velocity;
    v_out[i] = velocity;
  }
}

MEMCFG_VECTORIZED void descend_with_nesterov(const float* w,
                                             const float* g,
                                             const float* v,
                                             float rate,
                                             float momentum,
                                             Count count,
                                             float* w_out,
                                             float* v_out) {
  MEMCFG_INDEPENDENT
  for (Count i = 0; i < count; ++i) {
    const float step = rate * g[i];
    const float velocity = momentum * v[i] - step;
    w_out[i] = w[i] + (momentum * velocity - step);
    v_out[i] = velocity;
  }
}

struct AdamFactors {
  float alpha;        // learning_rate * sqrt(1 - beta_2^t) / (1 - beta_1^t)
  float complement1;  // 1 - beta_1
  float complement2;  // 1 - beta_2
  float epsilon;
};

// The arrays of one call; outputs may be the inputs of the same name.
struct AdamArrays {
  const float *w, *g, *m, *v;
  float *w_out, *m_out, *v_out;
};

MEMCFG_VECTORIZED void descend_with_adam(AdamArrays a,
                                         AdamFactors f,
                                         Count begin,
                                         Count length) {
  MEMCFG_INDEPENDENT
  for (Count i = begin; i < begin + length; ++i) {
    const float g = a.g[i];
    const float m = a.m[i] + (g - a.m[i]) * f.complement1;
    const float v = a.v[i] + (g * g - a.v[i]) * f.complement2;
    a.w_out[i] = a.w[i] - f.alpha * m / (std::sqrt(v) + f.epsilon);
    a.m_out[i] = m;
    a.v_out[i] = v;
  }
}

MEMCFG_VECTORIZED void average(
    const float* moving, const float* value, float momentum, Count count, float* out) {
  const float complement = 1 - momentum;
  MEMCFG_INDEPENDENT
  for (Count i = 0; i < count; ++i) {
    out[i] = momentum * moving[i] + complement * value[i];
  }
}

KernelPtr make_sgd(const KernelSpec& spec) {
  const SpecReader reader(spec, {kFloat32, kFloat32, kFloat32}, {kFloat32});
  const Count count = reader.count(spec.inputs[0]);
  const Bytes bytes = float_bytes(count);
  return function_kernel(
      {{bytes, bytes, kFloat}, {bytes}}, 0, [=](void* const* operands, void*) {
        const float *w = input(operands, 0), *g = input(operands, 1);
        const float rate = *input(operands, 2);
        float* out = output(operands, 3);
        parallel_chunks(count, kChunk, [=](Count begin, Count length) {
          descend(w + begin, g + begin, rate, length, out + begin);
        });
      });
}

KernelPtr make_sgd_momentum(const KernelSpec& spec) {
  const SpecReader reader(
      spec, {kFloat32, kFloat32, kFloat32, kFloat32}, {kFloat32, kFloat32});
  const Count count = reader.count(spec.inputs[0]);
  const bool nesterov = reader.integer("nesterov", 0) != 0;
  const float momentum = static_cast<float>(reader.real("momentum"));
  const auto update = nesterov ? descend_with_nesterov : descend_with_momentum;
  const Bytes bytes = float_bytes(count);
  return function_kernel(
      {{bytes, bytes, bytes, kFloat}, {bytes, bytes}},
      0,
      [=](void* const* operands, void*) {
        const float *w = input(operands, 0), *g = input(operands, 1);
        const float *v = input(operands, 2), rate = *input(operands, 3);
        float *w_out = output(operands, 4), *v_out = output(operands, 5);
        parallel_chunks(count, kChunk, [=](Count i, Count length) {
          update(w + i, g + i, v + i, rate, momentum, length, w_out + i, v_out + i);
        });
      });
}

KernelPtr make_adam(const KernelSpec& spec) {
  const SpecReader reader(spec,
                          {kFloat32, kFloat32, kFloat32, kFloat32, kFloat32, kInt64},
                          {kFloat32, kFloat32, kFloat32});
  const Count count = reader.count(spec.inputs[0]);
  const double beta1 = reader.real("beta_1");
  const double beta2 = reader.real("beta_2");
  const float epsilon = static_cast<float>(reader.real("epsilon"));
  const Bytes bytes = float_bytes(count);
  return function_kernel(
      {{bytes, bytes, bytes, bytes, kFloat, sizeof(std::int64_t)},
       {bytes, bytes, bytes}},
      0,
      [=](void* const* operands, void*) {
        const AdamArrays arrays{input(operands, 0),
                                input(operands, 1),
                                input(operands, 2),
                                input(operands, 3),
                                output(operands, 6),
                                output(operands, 7),
                                output(operands, 8)};
        const double rate = *input(operands, 4);
        const auto step = *static_cast<const std::int64_t*>(operands[5]);
        const double t = static_cast<double>(step) + 1;
        const double alpha =
            rate * std::sqrt(1 - std::pow(beta2, t)) / (1 - std::pow(beta1, t));
        const AdamFactors factors{static_cast<float>(alpha),
                                  static_cast<float>(1 - beta1),
                                  static_cast<float>(1 - beta2),
                                  epsilon};
        parallel_chunks(count, kChunk, [=](Count begin, Count length) {
          descend_with_adam(arrays, factors, begin, length);
        });
      });
}

KernelPtr make_moving_average(const KernelSpec& spec) {
  const SpecReader reader(spec, {kFloat32, kFloat32}, {kFloat32});
  const Count count = reader.count(spec.inputs[0]);
  const float momentum = static_cast<float>(reader.real("momentum"));
  const Bytes bytes = float_bytes(count);
  return function_kernel(
      {{bytes, bytes}, {bytes}}, 0, [=](void* const* operands, void*) {
        const float *moving = input(operands, 0), *value = input(operands, 1);
        float* out = output(operands, 2);
        parallel_chunks(count, kChunk, [=](Count begin, Count length) {
          average(moving + begin, value + begin, momentum, length, out + begin);
        });
      });
}

const KernelType kSgd{"sgd", make_sgd};
const KernelType kSgdMomentum{"sgd_momentum", make_sgd_momentum};
const KernelType kAdam{"adam", make_adam};
const KernelType kMovingAverage{"moving_average", make_moving_average};

}  // namespace
}  // namespace memcfg
