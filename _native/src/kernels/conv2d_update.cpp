// The update of a convolution's kernel whose gradient never exists whole: it is
// computed for blocks of input channels in scratch, one after the other, by the kernel
// of the gradient, and used up by the update's expression.
//
// Kernels lie as [KH, KW, C, O]: a block of channels is KH x KW long rows of what is
// updated, one of filters would be very many short ones. The channels of x are copied
// to scratch. The blocks depend on the shapes alone.
#include <algorithm>
#include <cstring>
#include <optional>

#include "kernels/parallel.hpp"
#include "kernels/primitive.hpp"
#include "kernels/tiled_update.hpp"

namespace memcfg {
namespace {

constexpr const char* kGradient = "conv2d_gradient_kernel";
constexpr Count kChannelsUnit = 16;            // floats of the widest vector
constexpr Count kBlockBytes = kTileBytes / 2;  // it is there packed and plain

// What is computed at a time.
struct Blocks {
  explicit Blocks(const KernelSpec& spec) {
    const SpecReader reader(spec);
    if (spec.inputs.size() < 2 || spec.outputs.empty()) {
      reader.fail("reads x, dy and what it updates");
    }
    if (reader.integer("groups", 1) != 1) reader.fail("takes one group");
    kernel = reader.shape(spec.outputs[0], 4);
    channels = kernel[2];
    const SpecReader::Rows x = reader.rows(spec.inputs[0]);
    if (x.channels != channels) reader.fail("has a kernel of other channels than x");
    pixels = x.rows;
    item_bytes = onednn::item_bytes(onednn::type_of(reader, spec.inputs[0]));
    elements = reader.product({kernel[0], kernel[1], channels, kernel[3]});
    const Count blocks = std::max<Count>(elements * Count{kFloat} / kBlockBytes, 1);
    const Count units =
        (channels + blocks * kChannelsUnit - 1) / (blocks * kChannelsUnit);
    length = std::min(channels, units * kChannelsUnit);
    rest = channels % length;
    if (length != channels) x_bytes = align_up(of_x(pixels * length));
    result_bytes = align_up(float_bytes(elements / channels * length));
  }

  Bytes of_x(Count count) const { return static_cast<Bytes>(count) * item_bytes; }

  // The gradient of so many channels, as an op.
  KernelSpec gradient(const KernelSpec& spec, Count count) const {
    KernelSpec found{kGradient, spec.attributes, {spec.inputs[0], spec.inputs[1]}};
    found.algorithm = spec.algorithm;
    found.inputs[0].shape.back() = count;
    found.outputs.push_back({kernel, kFloat32});
    found.outputs[0].shape[2] = count;
    return found;
  }
  TiledUpdate update(const KernelSpec& spec, Count count) const {
    return {spec, kernel[0] * kernel[1], count * kernel[3], channels * kernel[3]};
  }

  std::vector<Count> kernel;  // shape
  Count channels, pixels, elements;
  Count length, rest;  // channels of a block, and of the last one if it is shorter
  Bytes item_bytes;    // of x
  Bytes x_bytes = 0, result_bytes;
};

// The gradient of some channels, and their update.
struct Block {
  Block(const KernelSpec& spec,
        const OneDnn& library,
        const Blocks& blocks,
        Count count)
      : gradient(
            KernelType::find(kGradient)->make(blocks.gradient(spec, count), library)),
        update(blocks.update(spec, count)) {}

  KernelPtr gradient;
  TiledUpdate update;
};

class Conv2dUpdate final : public Kernel {
 public:
  Conv2dUpdate(const KernelSpec& spec,
               const OneDnn& library,
               const Kernel::Sizes& sizes,
               const Blocks& blocks)
      : Kernel(sizes), blocks_(blocks), whole_(spec, library, blocks, blocks.length) {
    if (blocks.rest != 0) rest_.emplace(spec, library, blocks, blocks.rest);
  }

  const char* algorithm() const noexcept override {
    return whole_.gradient->algorithm();
  }
  Bytes scratch_bytes() const noexcept override {
    const Bytes rest = rest_ ? rest_->gradient->scratch_bytes() : 0;
    return blocks_.x_bytes + blocks_.result_bytes +
           std::max(whole_.gradient->scratch_bytes(), rest);
  }
  std::unique_ptr<RunState> make_run_state() const override {
    auto made = std::make_unique<States>();
    made->whole = whole_.gradient->make_run_state();
    if (rest_) made->rest = rest_->gradient->make_run_state();
    return made;
  }

  void run(void* const* operands, void* scratch, RunState* state) const override {
    auto& states = *static_cast<States*>(state);
    char* const result = static_cast<char*>(scratch) + blocks_.x_bytes;
    char* const rest = result + blocks_.result_bytes;
    for (Count first = 0; first < blocks_.channels; first += blocks_.length) {
      const bool whole = first + blocks_.length <= blocks_.channels;
      const Block& block = whole ? whole_ : *rest_;
      void* of[] = {operands[0], operands[1], result};
      if (blocks_.x_bytes != 0) {
        of[0] = scratch;
        copy_x(operands[0], first, whole ? blocks_.length : blocks_.rest, scratch);
      }
      block.gradient->run(of, rest, (whole ? states.whole : states.rest).get());
      block.update.run(operands, first * blocks_.kernel[3], result);
    }
  }

 private:
  struct States final : RunState {
    std::unique_ptr<RunState> whole, rest;
  };

  void copy_x(const void* x, Count first, Count count, void* to) const {
    const Bytes from_bytes = blocks_.of_x(blocks_.channels);
    const Bytes to_bytes = blocks_.of_x(count);
    const char* const from = static_cast<const char*>(x) + blocks_.of_x(first);
    const Count piece = std::max<Count>(kChunk / count, 1);
    const Count pieces = (blocks_.pixels + piece - 1) / piece;
    parallel_for(pieces, blocks_.pixels * count, [&](Count i) {
      const Count end = std::min(blocks_.pixels, (i + 1) * piece);
      for (Count pixel = i * piece; pixel < end; ++pixel) {
        const auto at = static_cast<Bytes>(pixel);
        std::memcpy(
            static_cast<char*>(to) + at * to_bytes, from + at * from_bytes, to_bytes);
      }
    });
  }

  Blocks blocks_;
  Block whole_;
  std::optional<Block> rest_;
};

KernelPtr make_conv2d_update(const KernelSpec& spec, const OneDnn& library) {
  const Blocks blocks(spec);
  const auto sizes = check_tiled_update(spec, blocks.elements);
  return std::make_unique<Conv2dUpdate>(spec, library, sizes, blocks);
}

// Those of the gradient that blocks of both sizes have.
std::vector<Algorithm> list_conv2d_update(const KernelSpec& spec,
                                          const OneDnn& library) {
  const Blocks blocks(spec);
  const KernelType& type = *KernelType::find(kGradient);
  const auto whole = type.list(blocks.gradient(spec, blocks.length), library);
  const Count last = blocks.rest != 0 ? blocks.rest : blocks.length;
  const auto rest = type.list(blocks.gradient(spec, last), library);
  std::vector<Algorithm> found;
  for (const Algorithm& each : whole) {
    for (const Algorithm& other : rest) {
      if (each.name != other.name) continue;
      const Bytes most = std::max(each.scratch_bytes, other.scratch_bytes);
      found.push_back({each.name, blocks.x_bytes + blocks.result_bytes + most});
    }
  }
  return found;
}

const KernelType kConv2dUpdate{
    "conv2d_update", make_conv2d_update, list_conv2d_update, Floats::bfloat16};

}  // namespace
}  // namespace memcfg
