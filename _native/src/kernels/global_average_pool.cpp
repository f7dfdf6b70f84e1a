// global_average_pool2d: the mean over an image's pixels, channel by channel; its
// gradient gives every pixel dy / pixels.
#include "kernels/columns.hpp"
#include "kernels/function_kernel.hpp"

namespace memcfg {
namespace {

struct Shape {
  Count images, pixels, channels, count;

  // `x` is the op's image, input or output.
  Shape(const KernelSpec& spec, const std::vector<OperandSpec>& x) {
    const SpecReader reader(spec, {kFloat32}, {kFloat32});
    const auto& shape = reader.shape(x[0], 4);
    images = shape[0];
    pixels = shape[1] * shape[2];
    channels = shape[3];
    count = images * pixels * channels;
  }
};

KernelPtr make_global_average_pool2d(const KernelSpec& spec) {
  const Shape s(spec, spec.inputs);
  const float pixels = static_cast<float>(s.pixels);
  const Bytes all = float_bytes(s.count), means = float_bytes(s.images * s.channels);
  return function_kernel({{all}, {means}}, 0, [=](void* const* operands, void*) {
    const float* x = input(operands, 0);
    float* y = output(operands, 1);
    parallel_for(s.images, s.count, [=](Count n) {
      float* mean = y + n * s.channels;
      sum_values(x + n * s.pixels * s.channels, s.pixels, s.channels, mean);
      for (Count c = 0; c < s.channels; ++c) mean[c] /= pixels;
    });
  });
}

KernelPtr make_global_average_pool2d_gradient(const KernelSpec& spec) {
  const Shape s(spec, spec.outputs);
  const float pixels = static_cast<float>(s.pixels);
  const Bytes all = float_bytes(s.count), means = float_bytes(s.images * s.channels);
  return function_kernel({{means}, {all}}, 0, [=](void* const* operands, void*) {
    const float* dy = input(operands, 0);
    float* dx = output(operands, 1);
    parallel_for(s.images, s.count, [=](Count n) {
      const float* gradient = dy + n * s.channels;
      float* image = dx + n * s.pixels * s.channels;
      for (Count c = 0; c < s.channels; ++c) image[c] = gradient[c] / pixels;
      for (Count p = 1; p < s.pixels; ++p) {
        std::copy_n(image, s.channels, image + p * s.channels);
      }
    });
  });
}

const KernelType kGlobalAveragePool2d{
    "global_average_pool2d", make_global_average_pool2d, Floats::samples};
const KernelType kGlobalAveragePool2dGradient{"global_average_pool2d_gradient",
                                              make_global_average_pool2d_gradient,
                                              Floats::samples};

}  // namespace
}  // namespace memcfg
