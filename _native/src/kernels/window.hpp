// The geometry of pooling: windows over an image with explicit padding.
#pragma once

#include <algorithm>

#include "kernels/spec.hpp"

namespace memcfg {

// A half-open interval.
struct Range {
  Count begin, end;
  Count length() const { return end - begin; }
};

// Invariant: every window meets the image (padding is less than the window).
struct Window {
  Count images, height, width, channels, out_height, out_width;
  Count window_height, window_width, stride_y, stride_x, top, left;

  // Over the image `x`; `y` has an element a window.
  Window(const SpecReader& reader, const OperandSpec& x, const OperandSpec& y) {
    const auto &image = reader.shape(x, 4), &out = reader.shape(y, 4);
    images = image[0];
    height = image[1];
    width = image[2];
    channels = image[3];
    out_height = out[1];
    out_width = out[2];
    const auto window = reader.integers<2>("pool_size", 1);
    window_height = window[0];
    window_width = window[1];
    const auto strides = reader.integers<2>("strides", 1);
    stride_y = strides[0];
    stride_x = strides[1];
    const auto [above, bottom, before, right] = reader.integers<4>("padding", 0);
    top = above;
    left = before;
    reader.product(
        {images, out_height, out_width, window_height, window_width, channels});
    if (std::max(top, bottom) >= window_height ||
        std::max(left, right) >= window_width) {
      reader.fail("needs padding less than its window");
    }
    if ((height + top + bottom - window_height) / stride_y + 1 != out_height ||
        (width + left + right - window_width) / stride_x + 1 != out_width ||
        height + top + bottom < window_height || width + left + right < window_width) {
      reader.fail("has an output shape that is not that of its windows");
    }
  }

  Count pixels() const { return height * width; }
  Count out_pixels() const { return out_height * out_width; }
  Count count() const { return images * pixels() * channels; }  // input elements
  Bytes input_bytes() const { return float_bytes(count()); }
  Count outputs() const { return images * out_pixels() * channels; }
  Bytes output_bytes() const { return float_bytes(outputs()); }
  Count work() const {  // elements that all windows read
    return images * out_pixels() * window_height * window_width * channels;
  }

  // The window's rows and columns that lie in the image, counted in the window.
  Range rows(Count out_y) const {
    return inside(out_y * stride_y - top, window_height, height);
  }
  Range columns(Count out_x) const {
    return inside(out_x * stride_x - left, window_width, width);
  }

  // Element of an image under place (y, x) of an output's window.
  Count at(Count out_y, Count out_x, Count y, Count x) const {
    const Count row = out_y * stride_y - top + y;
    return (row * width + out_x * stride_x - left + x) * channels;
  }

 private:
  static Range inside(Count first, Count length, Count size) {
    return {std::max(Count{0}, -first), std::min(length, size - first)};
  }
};

}  // namespace memcfg
