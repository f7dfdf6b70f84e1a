// conv2d and its gradients on oneDNN.
//
// Activations lie as [N, H, W, C], kernels as [KH, KW, C / groups, O]. oneDNN is two
// to four times faster with the kernel packed its own way, so that the kernel is
// packed into scratch before the primitive (and its gradient unpacked after).
#include <optional>
#include <tuple>

#include "kernels/function_kernel.hpp"
#include "kernels/primitive.hpp"

namespace memcfg {
namespace {

using namespace onednn;

constexpr Count kVector = 16;  // elements, of the widest processors

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
    // oneDNN wants padding that ends where the last window does.
    after[0] = excess(out_height, kernel_height, height, 0);
    after[1] = excess(out_width, kernel_width, width, 1);
  }

  // Whether oneDNN 3 would write behind the scratch that it asks for: in the gradient
  // of the kernel it gathers the pixels that windows of one pixel read, in vectors of
  // channels also where there are fewer. It does so where the strides divide the image.
  bool breaks_scratch() const {
    return channels / groups < kVector && kernel_height == 1 && kernel_width == 1 &&
           (strides[0] > 1 || strides[1] > 1) && before[0] == 0 && before[1] == 0 &&
           out_height * strides[0] == height && out_width * strides[1] == width;
  }
  // The same of the pixels alone that are read.
  Geometry gathered() const {
    Geometry read = *this;
    read.height = out_height, read.width = out_width;
    for (const int axis : {0, 1}) read.strides[axis] = 1, read.after[axis] = 0;
    return read;
  }

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

  Bytes x_bytes() const { return float_bytes(images * height * width * channels); }
  Bytes y_bytes() const {
    return float_bytes(images * out_height * out_width * out_channels);
  }
  Bytes kernel_bytes() const {
    return float_bytes(kernel_height * kernel_width * channels / groups * out_channels);
  }

  onednn::Shape kernel_dims() const {
    const Count in = channels / groups, out = out_channels / groups;
    if (groups == 1) return {out, in, kernel_height, kernel_width};
    return {groups, out, in, kernel_height, kernel_width};
  }
  onednn::Shape kernel_strides() const {
    const Count in = channels / groups, out = out_channels / groups;
    const Count column = in * out_channels, row = kernel_width * column;
    if (groups == 1) return {1, out_channels, row, column};
    return {out, 1, out_channels, row, column};
  }
};

Owned<MemoryDesc> describe_nhwc(
    const OneDnn& library, Count n, Count h, Count w, Count c) {
  return describe(library, {n, c, h, w}, {h * w * c, 1, w * c, c});
}

// What copies the pixels that windows of one pixel read to an image of them.
Call make_gather(const OneDnn& library, const Geometry& g) {
  const Count pixel = g.channels, row = g.width * pixel;
  const auto read =
      describe(library,
               {g.images, g.channels, g.out_height, g.out_width},
               {g.height * row, 1, g.strides[0] * row, g.strides[1] * pixel});
  const auto made =
      describe_nhwc(library, g.images, g.out_height, g.out_width, g.channels);
  return reorder(library, read.get(), made.get());
}

// The layouts that the three primitives are made from.
struct Layouts {
  Layouts(const OneDnn& library, const Geometry& g)
      : x(describe_nhwc(library, g.images, g.height, g.width, g.channels)),
        y(describe_nhwc(library, g.images, g.out_height, g.out_width, g.out_channels)),
        kernel(describe(library, g.kernel_dims(), g.kernel_strides())),
        packed(describe_any(library, g.kernel_dims())),
        attributes(user_scratchpad(library)) {}

  Owned<MemoryDesc> x, y, kernel, packed;
  Owned<Attributes> attributes;
};

// What a function of oneDNN makes of the engine and these arguments.
template <class Create, class... Arguments>
Owned<PrimitiveDesc> choose(const OneDnn& library,
                            Create create,
                            const std::tuple<Arguments...>& arguments) {
  PrimitiveDesc* made = nullptr;
  const auto all = std::tuple_cat(std::tuple(&made, library.engine()), arguments);
  library.check(std::apply(create, all), "choosing a convolution");
  return {made, library.api().primitive_desc_destroy};
}

constexpr int kOutput = 2;  // number of the op's output among its operands

// The primitive whose operand `kOutput` is the image x, the kernel or the image y.
Owned<PrimitiveDesc> choose(
    const OneDnn& library, const Geometry& g, const Layouts& l, int x, int y) {
  const Api& api = library.api();
  const MemoryDesc *image = l.x.get(), *kernel = l.packed.get(), *out = l.y.get();
  const MemoryDesc* const bias = nullptr;
  const auto direct = std::tuple(int{algorithm::convolution_direct}, image, kernel);
  const auto windows = std::tuple(g.strides, g.dilation, g.before, g.after);
  auto forward = choose(library,
                        api.convolution_forward_primitive_desc_create,
                        std::tuple_cat(std::tuple(int{propagation::forward_training}),
                                       direct,
                                       std::tuple(bias, out),
                                       windows,
                                       std::tuple(l.attributes.get())));
  if (y == kOutput) return forward;
  const auto tail =
      std::tuple_cat(windows, std::tuple(forward.get(), l.attributes.get()));
  if (x == kOutput) {
    return choose(library,
                  api.convolution_backward_data_primitive_desc_create,
                  std::tuple_cat(direct, std::tuple(out), tail));
  }
  return choose(library,
                api.convolution_backward_weights_primitive_desc_create,
                std::tuple_cat(direct, std::tuple(bias, out), tail));
}

// A primitive whose operand number `kernel` is packed in scratch, and whose first
// operand is what `gather`, if there is one, makes of it in so many bytes of scratch.
// Scratch: the packed kernel, what was gathered, then that of the calls.
class Convolution final : public Kernel {
 public:
  Convolution(const OneDnn& library,
              const Sizes& sizes,
              Call call,
              int kernel,
              const MemoryDesc* plain,
              const MemoryDesc* packed,
              bool gradient,
              std::optional<Call> gather,
              Bytes gathered_bytes)
      : Kernel(sizes),
        call_(std::move(call)),
        gather_(std::move(gather)),
        kernel_(kernel),
        gradient_(gradient),
        gathered_bytes_(align_up(gathered_bytes)) {
    if (library.api().memory_desc_equal(plain, packed) != 0) return;
    packed_bytes_ = align_up(library.api().memory_desc_get_size(packed));
    repack_.emplace(gradient ? reorder(library, packed, plain)
                             : reorder(library, plain, packed));
  }

  const char* algorithm() const noexcept override { return "onednn"; }
  Bytes scratch_bytes() const noexcept override {
    Bytes most = call_->scratch_bytes();
    for (const auto* copy : {&repack_, &gather_}) {
      if (*copy) most = std::max(most, (*copy)->scratch_bytes());
    }
    return packed_bytes_ + gathered_bytes_ + most;
  }

  std::unique_ptr<RunState> make_run_state() const override {
    return std::make_unique<CallStates>(
        std::initializer_list{&call_, &repack_, &gather_});
  }

  void run(void* const* operands, void* scratch, RunState* state) const override {
    auto& arguments = static_cast<CallStates*>(state)->arguments;
    void* addresses[3] = {operands[0], operands[1], operands[2]};
    void* const gathered = static_cast<char*>(scratch) + packed_bytes_;
    void* const rest = static_cast<char*>(gathered) + gathered_bytes_;
    void* const plain = operands[kernel_];
    if (repack_) addresses[kernel_] = scratch;
    if (gather_) gather_->run({addresses[0], gathered}, rest, arguments[2]);
    if (gather_) addresses[0] = gathered;
    if (repack_ && !gradient_) repack_->run({plain, scratch}, rest, arguments[1]);
    call_->run({addresses[0], addresses[1], addresses[2]}, rest, arguments[0]);
    if (repack_ && gradient_) repack_->run({scratch, plain}, rest, arguments[1]);
  }

 private:
  std::optional<Call> call_;  // always there
  std::optional<Call> repack_;
  std::optional<Call> gather_;
  int kernel_;
  bool gradient_;
  Bytes packed_bytes_ = 0;
  Bytes gathered_bytes_;
};

// The kernel of an op whose operands of these numbers are the image x, the kernel and
// the image y: two inputs and the output, which is a gradient unless it is y.
template <int x, int kernel, int y>
KernelPtr make(const KernelSpec& spec, const OneDnn& library) {
  const SpecReader reader(spec, {kFloat32, kFloat32}, {kFloat32});
  const OperandSpec* const all[] = {&spec.inputs[0], &spec.inputs[1], &spec.outputs[0]};
  const Geometry given(reader, *all[x], *all[kernel], *all[y]);
  const bool gathers = kernel == kOutput && given.breaks_scratch();
  const Geometry g = gathers ? given.gathered() : given;
  const Layouts l(library, g);
  const auto primitive = choose(library, g, l, x, y);
  constexpr bool gradient = kernel == kOutput;
  const MemoryDesc* packed =
      layout(library, primitive.get(), gradient ? query::diff_weights : query::weights);
  Call::Operand operands[3];
  operands[x] = {x == kOutput ? arg::diff_source : arg::source, l.x.get()};
  operands[kernel] = {gradient ? arg::diff_weights : arg::weights, packed};
  operands[y] = {y == kOutput ? arg::destination : arg::diff_destination, l.y.get()};
  Bytes bytes[3];
  bytes[x] = given.x_bytes();
  bytes[kernel] = g.kernel_bytes();
  bytes[y] = g.y_bytes();
  const Kernel::Sizes sizes{{bytes[0], bytes[1]}, {bytes[2]}};
  Call call(library, primitive.get(), {operands[0], operands[1], operands[2]});
  std::optional<Call> gather;
  if (gathers) gather = make_gather(library, given);
  return std::make_unique<Convolution>(library,
                                       sizes,
                                       std::move(call),
                                       kernel,
                                       l.kernel.get(),
                                       packed,
                                       gradient,
                                       std::move(gather),
                                       gathers ? g.x_bytes() : 0);
}

const KernelType kConv2d{"conv2d", make<0, 1, 2>};
const KernelType kConv2dGradientKernel{"conv2d_gradient_kernel", make<0, 2, 1>};
const KernelType kConv2dGradientInput{"conv2d_gradient_input", make<2, 0, 1>};

}  // namespace
}  // namespace memcfg
