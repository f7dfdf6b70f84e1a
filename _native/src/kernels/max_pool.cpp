// Maximum pooling. The index is the place of the maximum in its window, row by row
// (y * window_width + x); of equal maxima the first one, of any NaN the first one.
#include <cstring>

#include "kernels/function_kernel.hpp"
#include "kernels/vectors.hpp"
#include "kernels/window.hpp"

namespace memcfg {
namespace {

using Place = std::uint8_t;

constexpr Count kPlacesMost = 256;  // places that an index can tell apart

// A window cut to the image: its first element, place and extent.
struct Cut {
  const float* first;
  std::int32_t place;
  Count rows, columns;
};

// The maximum of one cut window over a tile of channels from channel c on. Rows and
// columns that are known when compiling make it twice as fast; 0: those of the cut.
template <class V, int known_rows, int known_columns>
MEMCFG_INLINE void pool_tile(
    const Window& w, const Cut& cut, Count c, float* y, Place* index) {
  const Count height = known_rows != 0 ? known_rows : cut.rows;
  const Count width = known_columns != 0 ? known_columns : cut.columns;
  typename V::Floats best = V::load(cut.first + c);
  typename V::Ints where = typename V::Ints{} + cut.place;
  for (Count i = 0; i < height; ++i) {
    const float* x = cut.first + c + i * w.width * w.channels;
    for (Count j = 0; j < width; ++j) {
      const auto place = cut.place + static_cast<std::int32_t>(i * w.window_width + j);
      const typename V::Floats value = V::load(x + j * w.channels);
      const auto first_nan = (value != value) & (best == best);
      const auto better = (value > best) | first_nan;
      best = better ? value : best;
      where = better ? typename V::Ints{} + place : where;
    }
  }
  V::store(best, y + c);
  if (index != nullptr) V::store(where, index + c);
}

// One row of outputs; `index` may be null. The window comes as a copy, which stores
// cannot change, so that its numbers stay in registers.
template <int lanes>
MEMCFG_INLINE void pool_row_by(
    const Window w, const float* image, Count out_y, float* y, Place* index) {
  using V = Vectors<lanes>;
  const Range rows = w.rows(out_y);
  for (Count out_x = 0; out_x < w.out_width; ++out_x, y += w.channels) {
    const Range columns = w.columns(out_x);
    const Cut cut{
        image + w.at(out_y, out_x, rows.begin, columns.begin),
        static_cast<std::int32_t>(rows.begin * w.window_width + columns.begin),
        rows.length(),
        columns.length()};
    if (cut.rows == 2 && cut.columns == 2) {
      for_tiles<lanes>(w.channels,
                       [&](Count c) { pool_tile<V, 2, 2>(w, cut, c, y, index); });
    } else if (cut.rows == 3 && cut.columns == 3) {
      for_tiles<lanes>(w.channels,
                       [&](Count c) { pool_tile<V, 3, 3>(w, cut, c, y, index); });
    } else {
      for_tiles<lanes>(w.channels,
                       [&](Count c) { pool_tile<V, 0, 0>(w, cut, c, y, index); });
    }
    if (index != nullptr) index += w.channels;
  }
}

MEMCFG_VECTORIZED void pool_row(
    const Window& w, const float* image, Count out_y, float* y, Place* index) {
  if (w.channels >= 4) return pool_row_by<4>(w, image, out_y, y, index);
  pool_row_by<1>(w, image, out_y, y, index);
}

// One image: every output adds its dy to the pixel where its maximum lay.
MEMCFG_VECTORIZED void pass_back(const Window w,
                                 const Place* index,
                                 const float* dy,
                                 float* dx) {
  std::memset(dx, 0, float_bytes(w.pixels() * w.channels));
  const Count line = w.width * w.channels;
  for (Count out_y = 0; out_y < w.out_height; ++out_y) {
    const Range rows = w.rows(out_y);
    for (Count out_x = 0; out_x < w.out_width; ++out_x) {
      const Range columns = w.columns(out_x);
      float* first = dx + w.at(out_y, out_x, rows.begin, columns.begin);
      const Count start = rows.begin * w.window_width + columns.begin;
      for_disjoint_tiles(w.channels, [&](auto vectors, Count c) {
        using V = decltype(vectors);
        const auto places = V::load(index + c);
        const auto gradient = V::load(dy + c);
        for (Count i = 0; i < rows.length(); ++i) {
          float* x = first + i * line + c;
          auto place = static_cast<std::int32_t>(start + i * w.window_width);
          for (Count j = 0; j < columns.length(); ++j, ++place, x += w.channels) {
            const typename V::Floats zero = {};
            V::store(V::load(x) + (places == place ? gradient : zero), x);
          }
        }
      });
      index += w.channels;
      dy += w.channels;
    }
  }
}

void pool(const Window& w, const float* x, float* y, Place* index) {
  parallel_for(w.images * w.out_height, w.work(), [&](Count i) {
    const Count at = i * w.out_width * w.channels;
    const float* image = x + i / w.out_height * w.pixels() * w.channels;
    Place* places = index == nullptr ? nullptr : index + at;
    pool_row(w, image, i % w.out_height, y + at, places);
  });
}

// One row of outputs: what x has at the places of the maxima.
void take_row(
    const Window& w, const Place* index, Count out_y, const float* image, float* y) {
  for (Count out_x = 0; out_x < w.out_width; ++out_x) {
    for (Count c = 0; c < w.channels; ++c, ++index, ++y) {
      const Count place = *index;
      const Count row = place / w.window_width, column = place % w.window_width;
      *y = image[w.at(out_y, out_x, row, column) + c];
    }
  }
}

void check_places(const SpecReader& reader, const Window& w) {
  if (w.window_height > kPlacesMost || w.window_width > kPlacesMost ||
      w.window_height * w.window_width > kPlacesMost) {
    reader.fail("takes windows of up to 256 places");
  }
}

Bytes place_bytes(const Window& w) {
  return static_cast<Bytes>(w.outputs()) * sizeof(Place);
}

KernelPtr make_max_pool2d(const KernelSpec& spec) {
  const SpecReader reader(spec, {kFloat32}, {kFloat32, kUint8});
  const Window w(reader, spec.inputs[0], spec.outputs[0]);
  check_places(reader, w);
  const Kernel::Sizes sizes{{w.input_bytes()}, {w.output_bytes(), place_bytes(w)}};
  return function_kernel(sizes, 0, [=](void* const* o, void*) {
    pool(w, input(o, 0), output(o, 1), static_cast<Place*>(o[2]));
  });
}

KernelPtr make_max_pool2d_inference(const KernelSpec& spec) {
  const SpecReader reader(spec, {kFloat32}, {kFloat32});
  const Window w(reader, spec.inputs[0], spec.outputs[0]);
  return function_kernel(
      {{w.input_bytes()}, {w.output_bytes()}}, 0, [=](void* const* o, void*) {
        pool(w, input(o, 0), output(o, 1), nullptr);
      });
}

KernelPtr make_max_pool2d_gradient(const KernelSpec& spec) {
  const SpecReader reader(spec, {kUint8, kFloat32}, {kFloat32});
  const Window w(reader, spec.outputs[0], spec.inputs[1]);
  check_places(reader, w);
  return function_kernel(
      {{place_bytes(w), w.output_bytes()}, {w.input_bytes()}},
      0,
      [=](void* const* operands, void*) {
        const auto* index = static_cast<const Place*>(operands[0]);
        const float* dy = input(operands, 1);
        float* dx = output(operands, 2);
        parallel_for(w.images, w.work(), [&](Count n) {
          const Count at = n * w.out_pixels() * w.channels;
          pass_back(w, index + at, dy + at, dx + n * w.pixels() * w.channels);
        });
      });
}

KernelPtr make_max_pool2d_at(const KernelSpec& spec) {
  const SpecReader reader(spec, {kUint8, kFloat32}, {kFloat32});
  const Window w(reader, spec.inputs[1], spec.outputs[0]);
  check_places(reader, w);
  return function_kernel(
      {{place_bytes(w), w.input_bytes()}, {w.output_bytes()}},
      0,
      [=](void* const* operands, void*) {
        const auto* index = static_cast<const Place*>(operands[0]);
        const float* x = input(operands, 1);
        float* y = output(operands, 2);
        parallel_for(w.images * w.out_height, w.outputs(), [&](Count i) {
          const Count at = i * w.out_width * w.channels;
          const float* image = x + i / w.out_height * w.pixels() * w.channels;
          take_row(w, index + at, i % w.out_height, image, y + at);
        });
      });
}

const KernelType kMaxPool2d{"max_pool2d", make_max_pool2d, Floats::samples};
const KernelType kMaxPool2dInference{
    "max_pool2d_inference", make_max_pool2d_inference, Floats::samples};
const KernelType kMaxPool2dGradient{
    "max_pool2d_gradient", make_max_pool2d_gradient, Floats::samples};
const KernelType kMaxPool2dAt{"max_pool2d_at", make_max_pool2d_at, Floats::samples};

}  // namespace
}  // namespace memcfg
