#include "kernels/im2col.hpp"

#include <algorithm>
#include <cstring>
#include <limits>
#include <optional>

#include "kernels/parallel.hpp"
#include "kernels/product.hpp"

namespace memcfg {
namespace {

using namespace onednn;
using Result = Im2col::Result;

// The pixel that a place of a window reads, or -1 for padding.
struct Axis {
  Axis(const Im2col& of, int axis)
      : size(axis == 0 ? of.height : of.width),
        out(axis == 0 ? of.out_height : of.out_width),
        stride(of.stride[axis]),
        before(of.before[axis]),
        spread(of.spread[axis]) {}

  Count pixel(Count window, Count place) const {
    const Count at = window * stride - before + place * spread;
    return at < 0 || at >= size ? -1 : at;
  }
  // The window that reads a pixel there; -1: none does.
  Count window(Count pixel, Count place) const {
    const Count at = pixel + before - place * spread;
    return at < 0 || at % stride != 0 || at / stride >= out ? -1 : at / stride;
  }

  Count size, out, stride, before, spread;
};

// The columns of x.
void gather(const Im2col& of, const float* x, float* columns) {
  const Axis down(of, 0), across(of, 1);
  const Count c = of.channels, row = of.window_width * c;
  const auto pixel_bytes = float_bytes(c), row_bytes = float_bytes(row);
  const Count lines = of.images * of.out_height;
  parallel_for(lines, of.rows() * of.depth(), [&](Count line) {
    const float* const image = x + line / of.out_height * of.pixels() * c;
    const Count y = line % of.out_height;
    float* to = columns + line * of.out_width * of.depth();
    for (Count window = 0; window < of.out_width; ++window) {
      const Count first = window * across.stride - across.before;
      const bool whole =
          across.spread == 1 && first >= 0 && first + of.window_width <= of.width;
      for (Count j = 0; j < of.window_height; ++j, to += row) {
        const Count in = down.pixel(y, j);
        if (in < 0) {
          std::memset(to, 0, row_bytes);
          continue;
        }
        const float* const from = image + in * of.width * c;
        if (whole) {
          std::memcpy(to, from + first * c, row_bytes);
          continue;
        }
        for (Count i = 0; i < of.window_width; ++i) {
          const Count at = across.pixel(window, i);
          if (at < 0) {
            std::memset(to + i * c, 0, pixel_bytes);
          } else {
            std::memcpy(to + i * c, from + at * c, pixel_bytes);
          }
        }
      }
    }
  });
}

MEMCFG_VECTORIZED void add(const float* from, Count count, float* to) {
  MEMCFG_INDEPENDENT
  for (Count i = 0; i < count; ++i) to[i] += from[i];
}

// dx: each pixel is the sum of the columns that it is in, in the order of the window's
// places.
void scatter(const Im2col& of, const float* columns, float* dx) {
  const Axis down(of, 0), across(of, 1);
  const Count c = of.channels, depth = of.depth();
  parallel_for(of.images * of.height, of.rows() * depth, [&](Count line) {
    const Count first = line / of.height * of.out_height, y = line % of.height;
    float* to = dx + line * of.width * c;
    for (Count x = 0; x < of.width; ++x, to += c) {
      std::memset(to, 0, float_bytes(c));
      for (Count j = 0; j < of.window_height; ++j) {
        const Count row = down.window(y, j);
        if (row < 0) continue;
        for (Count i = 0; i < of.window_width; ++i) {
          const Count window = across.window(x, i);
          if (window < 0) continue;
          const Count at = (first + row) * of.out_width + window;
          add(columns + at * depth + (j * of.window_width + i) * c, c, to);
        }
      }
    }
  });
}

// Its product, a block of rows at a time where the library would take memory.
struct RowProduct {
  explicit RowProduct(const Im2col& of) {
    const Dim rows = of.rows(), depth = of.depth(), units = of.out_channels;
    switch (of.result) {
      case Result::output:
        left = {rows, depth, depth, 1};
        right = {depth, units, units, 1};
        break;
      case Result::kernel_gradient:
        left = {depth, rows, 1, depth};
        right = {rows, units, units, 1};
        break;
      case Result::input_gradient:
        left = {rows, units, units, 1};
        right = {units, depth, 1, units};
        break;
    }
    result = {left.rows, right.columns, right.columns, 1};
    const bool large = left.rows > kRowsMost && right.columns > kRowsMost;
    block = large ? kRowsMost : left.rows;
    rest = left.rows % block;
    epilogue.bias = of.bias;
  }

  // That of so many rows.
  RowProduct of_rows(Dim count) const {
    RowProduct part = *this;
    part.left.rows = part.result.rows = count;
    return part;
  }
  Bytes scratch_bytes(const OneDnn& library) const {
    const auto layout = describe(library, right);
    const auto made = choose_product(library, left, layout.get(), result, epilogue);
    return scratchpad_bytes(library, made.get());
  }
  Call make(const OneDnn& library) const {
    return make_product(library, left, right, result, epilogue);
  }

  Matrix left, right, result;
  Dim block, rest;
  Epilogue epilogue;
};

class Im2colKernel final : public Kernel {
 public:
  Im2colKernel(const Im2col& of, const Sizes& sizes, const OneDnn& library)
      : Kernel(sizes), of_(of), product_(of) {
    whole_.emplace(product_.of_rows(product_.block).make(library));
    if (product_.rest != 0)
      rest_.emplace(product_.of_rows(product_.rest).make(library));
    calls_ = whole_->scratch_bytes();
    if (rest_) calls_ = std::max(calls_, rest_->scratch_bytes());
  }

  const char* algorithm() const noexcept override { return kIm2col; }
  Bytes scratch_bytes() const noexcept override { return of_.columns_bytes() + calls_; }
  std::unique_ptr<RunState> make_run_state() const override {
    return std::make_unique<CallStates>(std::initializer_list{&whole_, &rest_});
  }

  void run(void* const* operands, void* scratch, RunState* state) const override {
    auto* const columns = static_cast<float*>(scratch);
    char* const rest = static_cast<char*>(scratch) + of_.columns_bytes();
    void* const out = operands[of_.bias ? 3 : 2];
    auto& states = *static_cast<CallStates*>(state);
    const bool plain = of_.is_plain();
    if (of_.result == Result::input_gradient) {
      void* const to = plain ? out : columns;
      multiply({operands[1], operands[0], to, nullptr}, rest, states);
      if (!plain) scatter(of_, columns, static_cast<float*>(out));
      return;
    }
    if (!plain) gather(of_, input(operands, 0), columns);
    void* const left = plain ? operands[0] : columns;
    multiply({left, operands[1], out, of_.bias ? operands[2] : nullptr}, rest, states);
    if (of_.relu) {
      apply_relu(out, product_.result.rows * product_.result.columns, data_type::f32);
    }
  }

 private:
  struct Places {
    void *left, *right, *result, *bias;
  };

  void multiply(const Places& at, void* scratch, CallStates& states) const {
    const RowProduct& p = product_;
    auto* left = static_cast<float*>(at.left);
    auto* result = static_cast<float*>(at.result);
    for (Dim row = 0; row < p.left.rows; row += p.block) {
      const bool whole = row + p.block <= p.left.rows;
      void* const addresses[] = {left, at.right, result, at.bias};
      const Call& call = whole ? *whole_ : *rest_;
      call.run(addresses, scratch, states.arguments[whole ? 0 : 1]);
      left += p.block * p.left.row_stride;
      result += p.block * p.result.row_stride;
    }
  }

  Im2col of_;
  RowProduct product_;
  std::optional<Call> whole_, rest_;  // the first is always there
  Bytes calls_ = 0;
};

}  // namespace

bool Im2col::is_narrow() const {
  constexpr Count kMost = std::numeric_limits<std::int32_t>::max();
  return out_height * out_width <= kMost / images &&
         window_height * window_width <= kMost / channels &&
         rows() <= kMost / std::max<Count>(depth() / kFloat, 1);
}

Bytes im2col_scratch(const Im2col& of, const OneDnn& library) {
  const RowProduct p(of);
  Bytes calls = p.of_rows(p.block).scratch_bytes(library);
  if (p.rest != 0) calls = std::max(calls, p.of_rows(p.rest).scratch_bytes(library));
  return of.columns_bytes() + calls;
}

KernelPtr make_im2col(const Im2col& of,
                      const Kernel::Sizes& sizes,
                      const OneDnn& library) {
  return std::make_unique<Im2colKernel>(of, sizes, library);
}

}  // namespace memcfg
