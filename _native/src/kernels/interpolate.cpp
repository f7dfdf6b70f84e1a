// interpolate and its gradient: arrays enlarged along an axis by straight lines.
#include <algorithm>
#include <cmath>

#include "kernels/function_kernel.hpp"
#include "kernels/parallel.hpp"

namespace memcfg {
namespace {

// An output element is `1 - weight` of element `first` and `weight` of `second`.
struct Line {
  Count first, second;
  float weight;
};

// A small array [blocks, length, columns] and a large one, `factor` times as long.
struct Enlarged {
  Enlarged(const SpecReader& reader, const OperandSpec& small, const OperandSpec& large)
      : count(reader.count(small)), factor(reader.integer("factor", 1)) {
    const auto axis = static_cast<std::size_t>(reader.integer("axis", 0));
    if (axis >= small.shape.size()) reader.fail("has no such axis");
    auto shape = small.shape;
    shape[axis] *= factor;
    if (shape != large.shape)
      reader.fail("needs one axis that is larger by the factor");
    length = small.shape[axis];
    columns = 1;
    for (std::size_t i = axis + 1; i < shape.size(); ++i) columns *= shape[i];
    blocks = count / length / columns;
    for (Count i = 0; i < length * factor; ++i) {
      const double place =
          (static_cast<double>(i) + 0.5) / static_cast<double>(factor) - 0.5;
      const double inside = std::clamp(place, 0.0, static_cast<double>(length - 1));
      const auto first = static_cast<Count>(std::floor(inside));
      lines.push_back({first,
                       std::min(first + 1, length - 1),
                       static_cast<float>(inside - std::floor(inside))});
    }
  }
  Bytes small_bytes() const { return float_bytes(count); }
  Bytes large_bytes() const { return float_bytes(count * factor); }

  Count count, factor, length, columns, blocks;
  std::vector<Line> lines;
};

MEMCFG_VECTORIZED void mix(
    const float* a, const float* b, float weight, Count columns, float* y) {
  MEMCFG_INDEPENDENT
  for (Count j = 0; j < columns; ++j) y[j] = a[j] * (1 - weight) + b[j] * weight;
}

MEMCFG_VECTORIZED void add_scaled(const float* x,
                                  float weight,
                                  Count columns,
                                  float* y) {
  MEMCFG_INDEPENDENT
  for (Count j = 0; j < columns; ++j) y[j] += x[j] * weight;
}

KernelPtr make_interpolate(const KernelSpec& spec) {
  const SpecReader reader(spec, {kFloat32}, {kFloat32});
  const Enlarged of(reader, spec.inputs[0], spec.outputs[0]);
  return function_kernel(
      {{of.small_bytes()}, {of.large_bytes()}}, 0, [=](void* const* operands, void*) {
        const float* x = input(operands, 0);
        float* y = output(operands, 1);
        parallel_for(of.blocks * of.length, of.count * of.factor, [&](Count piece) {
          const float* from = x + piece / of.length * of.length * of.columns;
          for (Count i = 0; i < of.factor; ++i) {
            const Count place = piece % of.length * of.factor + i;
            const Line& line = of.lines[static_cast<std::size_t>(place)];
            mix(from + line.first * of.columns,
                from + line.second * of.columns,
                line.weight,
                of.columns,
                y + (piece * of.factor + i) * of.columns);
          }
        });
      });
}

// Each element gathers, in their order, the outputs that it is a part of.
KernelPtr make_gradient(const KernelSpec& spec) {
  const SpecReader reader(spec, {kFloat32}, {kFloat32});
  const Enlarged of(reader, spec.outputs[0], spec.inputs[0]);
  return function_kernel(
      {{of.large_bytes()}, {of.small_bytes()}}, 0, [=](void* const* operands, void*) {
        const float* dy = input(operands, 0);
        float* dx = output(operands, 1);
        parallel_for(of.blocks * of.length, of.count * of.factor, [&](Count piece) {
          const Count place = piece % of.length;
          const float* from = dy + (piece - place) * of.factor * of.columns;
          float* to = dx + piece * of.columns;
          std::fill_n(to, of.columns, 0.0F);
          const Count begin = std::max(place - 1, Count{0}) * of.factor;
          const Count end = std::min(place + 2, of.length) * of.factor;
          for (Count i = begin; i < end; ++i) {
            const Line& line = of.lines[static_cast<std::size_t>(i)];
            const float* row = from + i * of.columns;
            if (line.first == place) add_scaled(row, 1 - line.weight, of.columns, to);
            if (line.second == place) add_scaled(row, line.weight, of.columns, to);
          }
        });
      });
}

const KernelType kInterpolate{"interpolate", make_interpolate, Floats::samples};
const KernelType kInterpolateGradient{
    "interpolate_gradient", make_gradient, Floats::samples};

}  // namespace
}  // namespace memcfg
