// The shapes of a convolution over images, and what oneDNN wants to know of them.
#pragma once

#include <array>

#include "kernels/primitive.hpp"

namespace memcfg::onednn {

inline constexpr Count kVectorBytes = 64;  // of the widest processors

struct Geometry {
  Count images, height, width, channels, out_height, out_width, out_channels;
  Count kernel_height, kernel_width;
  Dim strides[2], before[2], after[2], dilation[2];
  Count groups;

  // Whichever of the three is an output.
  Geometry(const SpecReader& reader,
           const OperandSpec& x,
           const OperandSpec& kernel,
           const OperandSpec& y) {
    const auto &image = reader.shape(x, 4), &window = reader.shape(kernel, 4);
    const auto& out = reader.shape(y, 4);
    images = reader.narrow(image[0], "images");
    height = reader.narrow(image[1], "height");
    width = reader.narrow(image[2], "width");
    channels = reader.narrow(image[3], "channels");
    out_height = reader.narrow(out[1], "output height");
    out_width = reader.narrow(out[2], "output width");
    out_channels = reader.narrow(out[3], "output channels");
    kernel_height = reader.narrow(window[0], "kernel height");
    kernel_width = reader.narrow(window[1], "kernel width");
    const auto steps = reader.integers<2>("strides", 1);
    const auto spread = reader.integers<2>("dilation", 1);
    const auto padding = reader.integers<4>("padding", 0);
    for (std::size_t axis = 0; axis < 2; ++axis) {
      strides[axis] = steps[axis];
      dilation[axis] = spread[axis] - 1;
      before[axis] = padding[2 * axis];
      after[axis] = padding[2 * axis + 1];
    }
    groups = reader.narrow(reader.integer("groups", 1), "groups");
    check(reader);
    // Of images that are narrower than a stride oneDNN 3 reads what is behind them, in
    // bfloat16. A window alone needs no stride, but for padding that ends in the image.
    if (out_width == 1 && width < strides[1] &&
        excess(out_width, kernel_width, width, 1) >= 0) {
      strides[1] = 1;
    }
    // oneDNN wants padding that ends where the last window does.
    after[0] = excess(out_height, kernel_height, height, 0);
    after[1] = excess(out_width, kernel_width, width, 1);
  }

  // Whether oneDNN 3 would write behind the scratch that it asks for: in the gradient
  // of the kernel it gathers the pixels that windows of one pixel read, in vectors of
  // channels also where there are fewer. It does so where the strides divide the image;
  // where that is narrower than one, it reads behind the image.
  bool breaks_scratch(int type) const {
    return channels / groups < kVectorBytes / static_cast<Count>(item_bytes(type)) &&
           kernel_height == 1 && kernel_width == 1 &&
           (strides[0] > 1 || strides[1] > 1) && before[0] == 0 && before[1] == 0 &&
           (reads_scratch(type) ||
            (out_height * strides[0] == height && out_width * strides[1] == width));
  }
  // Whether oneDNN 3 reads scratch that it has not written: in the gradient of the
  // kernel it takes columns apart by their place in a stride, and images have fewer.
  bool reads_scratch(int type) const {
    return type == data_type::bf16 && width < strides[1];
  }
  // Whether oneDNN 3 reads two neighbours at a time, the second by 0, though each
  // window has one number: in products of bfloat16, where what is not finite then
  // spreads.
  bool pairs_pixels(int type) const {
    return type == data_type::bf16 && channels == 1 && kernel_height == 1 &&
           kernel_width == 1;
  }
  // The same of the pixels alone that are read.
  Geometry gathered() const {
    Geometry read = *this;
    read.height = out_height, read.width = out_width;
    for (const int axis : {0, 1}) read.strides[axis] = 1, read.after[axis] = 0;
    return read;
  }

  // The same convolution of some images.
  Geometry of_images(Count count) const {
    Geometry found = *this;
    found.images = count;
    return found;
  }
  Count pixels() const { return images * out_height * out_width; }
  Count results() const { return pixels() * out_channels; }

  void check(const SpecReader& reader) const {
    reader.product({images, height, width, channels});
    reader.product({images, out_height, out_width, out_channels});
    reader.product({kernel_height, kernel_width, channels, out_channels});
    if (channels % groups != 0 || out_channels % groups != 0) {
      reader.fail("needs channels that its groups divide");
    }
    if (outputs(height, kernel_height, 0) != out_height ||
        outputs(width, kernel_width, 1) != out_width) {
      reader.fail("has an output shape that is not that of its windows");
    }
  }

  Count extent(Count kernel, int axis) const {
    return (kernel - 1) * (dilation[axis] + 1) + 1;
  }
  Count outputs(Count size, Count kernel, int axis) const {
    const Count room = size + before[axis] + after[axis] - extent(kernel, axis);
    return room < 0 ? 0 : room / strides[axis] + 1;
  }
  Count excess(Count out, Count kernel, Count size, int axis) const {
    return (out - 1) * strides[axis] + extent(kernel, axis) - size - before[axis];
  }

  Shape kernel_dims() const {
    const Count in = channels / groups, out = out_channels / groups;
    if (groups == 1) return {out, in, kernel_height, kernel_width};
    return {groups, out, in, kernel_height, kernel_width};
  }
  Shape kernel_strides() const {
    const Count in = channels / groups, out = out_channels / groups;
    const Count column = in * out_channels, row = kernel_width * column;
    if (groups == 1) return {1, out_channels, row, column};
    return {out, 1, out_channels, row, column};
  }
};

inline Owned<MemoryDesc> describe_nhwc(
    const OneDnn& library, Count n, Count h, Count w, Count c, int type) {
  return describe(library, {n, c, h, w}, {h * w * c, 1, w * c, c}, type);
}

}  // namespace memcfg::onednn
