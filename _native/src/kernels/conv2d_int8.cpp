// conv2d_int8: a convolution over images by a kernel of 8-bit integers, with a scale
// for each channel of the result. Each image is rounded to 8 bits with a scale of its
// own, so that sums are integers of 32 bits, which are exact in any order.
//
// For few pixels oneDNN takes longer to put the kernel in its order than to convolve:
// their windows are gathered, and multiplied by the kernel as it is.
#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstring>
#include <optional>
#include <utility>

#include "kernels/function_kernel.hpp"
#include "kernels/geometry.hpp"
#include "kernels/parallel.hpp"
#include "kernels/product.hpp"
#include "kernels/rounded.hpp"

namespace memcfg {
namespace {

using namespace onednn;

constexpr Count kParts = 16;  // of an image, of which extremes are found beside others

// Pixels of the result up to which windows are gathered. By 128 x 256 windows of 3 x 3
// (Zen 4, in microseconds): 16 pixels take 39 rather than 311, of which the order takes
// 266, and 256 take 391 rather than 801.
constexpr Count kFewPixels = 256;
static_assert(kFewPixels <= kRowsMost);  // more take memory that is not scratch

// Whether an implementation takes all of its memory as scratch.
bool is_listed(const char* name) {
  return std::strncmp(name, "brg", 3) == 0 || std::strncmp(name, "jit", 3) == 0;
}

// What oneDNN convolves integers by; null: only by what takes memory from the heap, or
// is slow, as for some groups of channels.
Owned<PrimitiveDesc> choose_convolution(const OneDnn& library,
                                        const Geometry& g,
                                        int type) {
  const Api& api = library.api();
  const auto x = describe_nhwc(library, g.images, g.height, g.width, g.channels, type);
  const auto y = describe_nhwc(
      library, g.images, g.out_height, g.out_width, g.out_channels, data_type::s32);
  const auto kernel = describe_any(library, g.kernel_dims(), data_type::s8);
  const auto attributes = user_scratchpad(library);
  PrimitiveDesc* made = nullptr;
  Status status =
      api.convolution_forward_primitive_desc_create(&made,
                                                    library.engine(),
                                                    propagation::forward_training,
                                                    algorithm::convolution_direct,
                                                    x.get(),
                                                    kernel.get(),
                                                    nullptr,
                                                    y.get(),
                                                    g.strides,
                                                    g.dilation,
                                                    g.before,
                                                    g.after,
                                                    attributes.get());
  Owned<PrimitiveDesc> owned(made, api.primitive_desc_destroy);
  while (status == 0) {
    const char* name = nullptr;
    library.check(
        api.primitive_desc_query(owned.get(), query::implementation, 0, &name),
        "asking for an implementation");
    if (is_listed(name)) return owned;
    status = api.primitive_desc_next_impl(owned.get());
  }
  return {nullptr, api.primitive_desc_destroy};
}

// y = scales * scale of x's image * (rounded x * integers)
class Conv2dInt8 final : public Kernel {
 public:
  Conv2dInt8(const OneDnn& library, const Sizes& sizes, const Geometry& given)
      : Kernel(sizes), g_(given), signed_(multiplies_signed(library)) {
    block_ = images_of_block();
    const Geometry some = g_.of_images(block_);
    const int type = signed_ ? data_type::s8 : data_type::u8;
    if (gathers()) {
      const Dim pixels = block_ * pixels_of_image(), k = window(), n = g_.out_channels;
      call_.emplace(make_product(library,
                                 Matrix{pixels, k, k, 1, 1, 0, type},
                                 Matrix{k, n, n, 1, 1, 0, data_type::s8},
                                 Matrix{pixels, n, n, 1, 1, 0, data_type::s32}));
      return;
    }
    const auto chosen = choose_convolution(library, some, type);
    if (!chosen) return;
    const auto x =
        describe_nhwc(library, some.images, g_.height, g_.width, g_.channels, type);
    const auto y = describe_nhwc(library,
                                 some.images,
                                 g_.out_height,
                                 g_.out_width,
                                 g_.out_channels,
                                 data_type::s32);
    const auto plain =
        describe(library, g_.kernel_dims(), g_.kernel_strides(), data_type::s8);
    const MemoryDesc* const packed = layout(library, chosen.get(), query::weights);
    packed_bytes_ = align_up(library.api().memory_desc_get_size(packed));
    pack_.emplace(reorder(library, plain.get(), packed));
    call_.emplace(library,
                  chosen.get(),
                  std::vector<Call::Operand>{{arg::source, x.get()},
                                             {arg::weights, packed},
                                             {arg::destination, y.get()}});
  }

  const char* algorithm() const noexcept override { return "onednn"; }
  Bytes scratch_bytes() const noexcept override {
    const Bytes own = extremes_bytes() + rounded_bytes();
    if (!call_) return own;
    const Bytes pack = pack_ ? pack_->scratch_bytes() : 0;
    return own + gathered_bytes() + packed_bytes_ + others_bytes() +
           std::max(call_->scratch_bytes(), pack);
  }
  std::unique_ptr<RunState> make_run_state() const override {
    return std::make_unique<CallStates>(std::initializer_list{&call_, &pack_});
  }

  void run(void* const* operands, void* scratch, RunState* state) const override {
    auto& arguments = static_cast<CallStates*>(state)->arguments;
    const auto* const kernel = static_cast<const std::int8_t*>(operands[1]);
    const float* const scales = input(operands, 2);
    char* at = static_cast<char*>(scratch);
    const auto take = [&at](Bytes bytes) { return std::exchange(at, at + bytes); };
    auto* const extremes = reinterpret_cast<Extremes*>(take(extremes_bytes()));
    auto* const rounded = reinterpret_cast<std::int8_t*>(take(rounded_bytes()));
    auto* const gathered = reinterpret_cast<std::int8_t*>(take(gathered_bytes()));
    char* const packed = take(packed_bytes_);
    auto* const others = reinterpret_cast<std::int32_t*>(take(others_bytes()));
    if (pack_) pack_->run({operands[1], packed}, at, arguments[1]);
    const auto convolve = [&](const float* x, Magnitudes which, void* sums) {
      round(x, extremes, which, rounded);
      if (gathers()) {
        gather(rounded, gathered);
        call_->run({gathered, operands[1], sums}, at, arguments[0]);
      } else if (call_) {
        call_->run({rounded, packed, sums}, at, arguments[0]);
      } else {
        add_windows(rounded, kernel, static_cast<std::int32_t*>(sums));
      }
    };
    for (Count begin = 0; begin < g_.images; begin += block_) {
      const float* const x = input(operands, 0) + begin * image();
      float* const y = output(operands, 3) + begin * result();
      const bool negative = find_extremes(x, extremes);
      if (!needs_magnitudes() || !negative) {
        convolve(x, Magnitudes::of_all, y);
      } else {
        convolve(x, Magnitudes::of_positive, y);
        convolve(x, Magnitudes::of_negative, others);
        parallel_chunks(block_ * result(), kChunk, [=](Count first, Count count) {
          auto* const sums = reinterpret_cast<std::int32_t*>(y);
          subtract_sums(others + first, sums + first, count);
        });
      }
      const Count row = g_.out_width * g_.out_channels;
      parallel_for(block_ * g_.out_height, block_ * result(), [=](Count i) {
        const float scale = of_image(extremes, i / g_.out_height).scale;
        scale_sums(scale, scales, g_.out_width, g_.out_channels, y + i * row);
      });
    }
  }

 private:
  Count image() const { return g_.height * g_.width * g_.channels; }
  Count pixels_of_image() const { return g_.out_height * g_.out_width; }
  Count result() const { return pixels_of_image() * g_.out_channels; }
  Count window() const { return g_.kernel_height * g_.kernel_width * g_.channels; }

  // Images of which the sums stay in a cache, but as many in each block.
  Count images_of_block() const {
    const auto most = static_cast<Count>(kBlockBytes / float_bytes(result()));
    Count found = std::clamp<Count>(most, 1, g_.images);
    while (g_.images % found != 0) --found;
    return found;
  }
  bool gathers() const {
    return g_.groups == 1 && block_ * pixels_of_image() <= kFewPixels;
  }
  bool needs_magnitudes() const { return call_ && !signed_; }
  Bytes extremes_bytes() const {
    return align_up(static_cast<Bytes>(block_ * kParts) * sizeof(Extremes));
  }
  Bytes rounded_bytes() const { return align_up(static_cast<Bytes>(block_ * image())); }
  Bytes gathered_bytes() const {
    if (!gathers()) return 0;
    return align_up(static_cast<Bytes>(block_ * pixels_of_image() * window()));
  }
  Bytes others_bytes() const {
    return needs_magnitudes() ? align_up(float_bytes(block_ * result())) : 0;
  }

  Count begin_of(Count part) const { return part * image() / kParts; }
  static Rounding of_image(const Extremes* extremes, Count image) {
    Extremes found = extremes[image * kParts];
    for (Count i = 1; i < kParts; ++i) found.include(extremes[image * kParts + i]);
    return found.rounding();
  }

  // Those of each part of each image; returns whether a number has a sign.
  bool find_extremes(const float* x, Extremes* to) const {
    std::atomic<bool> negative{false};
    parallel_for(block_ * kParts, block_ * image(), [=, &negative](Count i) {
      const Count part = i % kParts, begin = begin_of(part);
      const float* const from = x + i / kParts * image() + begin;
      to[i] = extremes_of(from, begin_of(part + 1) - begin);
      if (to[i].negative) negative.store(true, std::memory_order_relaxed);
    });
    return negative;
  }

  void round(const float* x,
             const Extremes* extremes,
             Magnitudes which,
             std::int8_t* to) const {
    parallel_for(block_ * kParts, block_ * image(), [=](Count i) {
      const Count part = i % kParts, begin = begin_of(part);
      const Count place = i / kParts * image() + begin;
      const float factor = of_image(extremes, i / kParts).factor;
      const Count count = begin_of(part + 1) - begin;
      round_to_integers(x + place, count, factor, which, to + place);
    });
  }

  // The windows of pixels as rows, with zeros for what is outside of the image.
  void gather(const std::int8_t* x, std::int8_t* to) const {
    const Count tap = g_.channels, pixels = block_ * pixels_of_image();
    parallel_for(pixels, pixels * window(), [=](Count pixel) {
      const Count row = pixel / g_.out_width;  // of all images
      const Count top = row % g_.out_height * g_.strides[0] - g_.before[0];
      const Count left = pixel % g_.out_width * g_.strides[1] - g_.before[1];
      const std::int8_t* const from = x + row / g_.out_height * image();
      std::int8_t* next = to + pixel * window();
      for (Count ky = 0; ky < g_.kernel_height; ++ky) {
        const Count h = top + ky * (g_.dilation[0] + 1);
        for (Count kx = 0; kx < g_.kernel_width; ++kx, next += tap) {
          const Count w = left + kx * (g_.dilation[1] + 1);
          if (h < 0 || h >= g_.height || w < 0 || w >= g_.width) {
            std::fill_n(next, tap, std::int8_t{0});
          } else {
            std::copy_n(from + (h * g_.width + w) * tap, tap, next);
          }
        }
      }
    });
  }

  // The sums, tap by tap, for what oneDNN does not list.
  void add_windows(const std::int8_t* x,
                   const std::int8_t* kernel,
                   std::int32_t* sums) const {
    const Count in = g_.channels / g_.groups, out = g_.out_channels / g_.groups;
    const Count row = g_.out_width * g_.out_channels;
    parallel_for(block_ * g_.out_height, block_ * result(), [=](Count i) {
      std::int32_t* const to = sums + i * row;
      std::fill_n(to, row, 0);
      const std::int8_t* const from = x + i / g_.out_height * image();
      for (Count ky = 0; ky < g_.kernel_height; ++ky) {
        const Count h = i % g_.out_height * g_.strides[0] - g_.before[0] +
                        ky * (g_.dilation[0] + 1);
        if (h < 0 || h >= g_.height) continue;
        for (Count kx = 0; kx < g_.kernel_width; ++kx) {
          const Count shift = kx * (g_.dilation[1] + 1) - g_.before[1];
          const Count step = g_.strides[1];
          const Count first = shift < 0 ? (-shift + step - 1) / step : 0;
          const Count room = g_.width - 1 - shift;
          const Count end = room < 0 ? 0 : std::min(room / step + 1, g_.out_width);
          if (first >= end) continue;
          const Count pixel = h * g_.width + first * step + shift;
          const Count tap = (ky * g_.kernel_width + kx) * in * g_.out_channels;
          for (Count group = 0; group < g_.groups; ++group) {
            add_integer_products(from + pixel * g_.channels + group * in,
                                 step * g_.channels,
                                 kernel + tap + group * out,
                                 end - first,
                                 in,
                                 g_.out_channels,
                                 out,
                                 to + first * g_.out_channels + group * out,
                                 g_.out_channels);
          }
        }
      }
    });
  }

  Geometry g_;
  bool signed_;  // whether what the call reads is
  Count block_ = 1;
  Bytes packed_bytes_ = 0;
  // The convolution, or the product; packing is for the former. None where oneDNN lists
  // nothing.
  std::optional<Call> call_, pack_;
};

KernelPtr make_conv2d_int8(const KernelSpec& spec, const OneDnn& library) {
  const SpecReader reader(spec, {kFloat32, kInt8, kFloat32}, {kFloat32});
  const Geometry g(reader, spec.inputs[0], spec.inputs[1], spec.outputs[0]);
  const auto& kernel = reader.shape(spec.inputs[1], 4);
  if (kernel[2] * g.groups != g.channels || kernel[3] != g.out_channels) {
    reader.fail("has a kernel of other channels");
  }
  if (reader.shape(spec.inputs[2], 1)[0] != g.out_channels) {
    reader.fail("has scales of other channels");
  }
  if (spec.outputs[0].shape[0] != g.images) reader.fail("has a result of other images");
  Kernel::Sizes sizes;
  for (const auto& each : spec.inputs) sizes.inputs.push_back(reader.bytes(each));
  sizes.outputs.push_back(reader.bytes(spec.outputs[0]));
  return std::make_unique<Conv2dInt8>(library, sizes, g);
}

const KernelType kConv2dInt8{"conv2d_int8", make_conv2d_int8};

}  // namespace
}  // namespace memcfg
