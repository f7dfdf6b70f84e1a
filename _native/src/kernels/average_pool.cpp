// Average pooling; the padding does not count in the mean.
#include <cstring>

#include "kernels/function_kernel.hpp"
#include "kernels/vectors.hpp"
#include "kernels/window.hpp"

namespace memcfg {
namespace {

// One row of outputs. The window comes as a copy, which stores cannot change, so that
// its numbers stay in registers.
template <int lanes>
void average_row(const Window w, const float* image, Count out_y, float* y) {
  using V = Vectors<lanes>;
  const Range rows = w.rows(out_y);
  const Count line = w.width * w.channels;
  for (Count out_x = 0; out_x < w.out_width; ++out_x, y += w.channels) {
    const Range columns = w.columns(out_x);
    const float* first = image + w.at(out_y, out_x, rows.begin, columns.begin);
    const float places = static_cast<float>(rows.length() * columns.length());
    for_tiles<lanes>(w.channels, [&](Count c) {
      typename V::Floats sum = {};
      for (Count i = 0; i < rows.length(); ++i) {
        const float* x = first + i * line + c;
        for (Count j = 0; j < columns.length(); ++j, x += w.channels) sum += V::load(x);
      }
      V::store(sum / places, y + c);
    });
  }
}

// One image: every output adds its share of dy to the pixels of its window.
void share_back(const Window w, const float* dy, float* dx) {
  std::memset(dx, 0, float_bytes(w.pixels() * w.channels));
  const Count line = w.width * w.channels;
  for (Count out_y = 0; out_y < w.out_height; ++out_y) {
    const Range rows = w.rows(out_y);
    for (Count out_x = 0; out_x < w.out_width; ++out_x, dy += w.channels) {
      const Range columns = w.columns(out_x);
      float* first = dx + w.at(out_y, out_x, rows.begin, columns.begin);
      const float places = static_cast<float>(rows.length() * columns.length());
      for_disjoint_tiles(w.channels, [&](auto vectors, Count c) {
        using V = decltype(vectors);
        const auto share = V::load(dy + c) / places;
        for (Count i = 0; i < rows.length(); ++i) {
          float* x = first + i * line + c;
          for (Count j = 0; j < columns.length(); ++j, x += w.channels) {
            V::store(V::load(x) + share, x);
          }
        }
      });
    }
  }
}

KernelPtr make_average_pool2d(const KernelSpec& spec) {
  const SpecReader reader(spec, {kFloat32}, {kFloat32});
  const Window w(reader, spec.inputs[0], spec.outputs[0]);
  return function_kernel(
      {{w.input_bytes()}, {w.output_bytes()}}, 0, [=](void* const* operands, void*) {
        const float* x = input(operands, 0);
        float* y = output(operands, 1);
        const auto row = w.channels >= 4 ? average_row<4> : average_row<1>;
        parallel_for(w.images * w.out_height, w.work(), [&](Count i) {
          const float* image = x + i / w.out_height * w.pixels() * w.channels;
          row(w, image, i % w.out_height, y + i * w.out_width * w.channels);
        });
      });
}

KernelPtr make_average_pool2d_gradient(const KernelSpec& spec) {
  const SpecReader reader(spec, {kFloat32}, {kFloat32});
  const Window w(reader, spec.outputs[0], spec.inputs[0]);
  return function_kernel(
      {{w.output_bytes()}, {w.input_bytes()}}, 0, [=](void* const* operands, void*) {
        const float* dy = input(operands, 0);
        float* dx = output(operands, 1);
        parallel_for(w.images, w.work(), [&](Count n) {
          share_back(w,
                     dy + n * w.out_pixels() * w.channels,
                     dx + n * w.pixels() * w.channels);
        });
      });
}

const KernelType kAveragePool2d{"average_pool2d", make_average_pool2d, Floats::samples};
const KernelType kAveragePool2dGradient{
    "average_pool2d_gradient", make_average_pool2d_gradient, Floats::samples};

}  // namespace
}  // namespace memcfg
