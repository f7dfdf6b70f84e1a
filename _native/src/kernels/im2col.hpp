// A convolution, or a gradient of one, as one matrix product over its columns: a row of
// them is what a window reads (Chellapilla et al., "High Performance Convolutional
// Neural Networks for Document Processing", 2006). They lie in scratch, and have the
// bytes of all windows; where windows of one pixel read the image as it is, it is its
// own columns. float32, one group.
#pragma once

#include "kernels/function_kernel.hpp"

namespace memcfg {

inline constexpr const char* kIm2col = "im2col";

struct Im2col {
  enum class Result { output, kernel_gradient, input_gradient };

  // Windows over images of x; y has a pixel a window.
  Count images, height, width, channels, out_height, out_width, out_channels;
  Count window_height, window_width;
  Count stride[2], before[2], spread[2];  // before: padding; spread: between pixels
  Result result;
  bool bias = false, relu = false;

  Count rows() const { return images * out_height * out_width; }
  Count depth() const { return window_height * window_width * channels; }
  Count pixels() const { return height * width; }
  // Whether windows read each pixel once, in order.
  bool is_plain() const {
    return window_height == 1 && window_width == 1 && stride[0] == 1 &&
           stride[1] == 1 && height == out_height && width == out_width;
  }
  // Whether the numbers of a product are such that oneDNN counts right.
  bool is_narrow() const;
  Bytes columns_bytes() const {
    return is_plain() ? 0 : align_up(float_bytes(rows() * depth()));
  }
};

// Of its kernel; nothing is compiled for it.
Bytes im2col_scratch(const Im2col& of, const OneDnn& library);

// `sizes` are those of the op: the kernel and an image, or two images, and the bias.
KernelPtr make_im2col(const Im2col& of,
                      const Kernel::Sizes& sizes,
                      const OneDnn& library);

}  // namespace memcfg
