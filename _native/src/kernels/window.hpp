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

  explicit Window(const KernelSpec& spec) {
    SpecReader reader(spec, 14, 0);
    images = reader.positive("images");
    height = reader.positive("height");
    width = reader.positive("width");
    channels = reader.positive("channels");
    out_height = reader.positive("output height");
    out_width = reader.positive("output width");
    window_height = reader.positive("window height");
    window_width = reader.positive("window width");
    stride_y = reader.positive("vertical stride");
    stride_x = reader.positive("horizontal stride");
    top = reader.natural("top padding");
    const Count bottom = reader.natural("bottom padding");
    left = reader.natural("left padding");
    const Count right = reader.natural("right padding");
    reader.product({images, height, width, channels});
    reader.product({images, out_height, out_width, channels});
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
