// conv3d and its gradients on oneDNN, in float32.
//
// Activations lie as [N, D, H, W, C], kernels as [KD, KH, KW, C / groups, O]. As for
// conv2d (convolution.cpp) the kernel is packed into scratch before the primitive, and
// its gradient unpacked after, and implementations by columns of windows are left out,
// since they take memory from the heap. Without AVX-512 that leaves only oneDNN's
// reference for the gradient of a kernel, which takes seconds where conv2d takes
// milliseconds: this one is made from gradients of kernels of planes.
#include <algorithm>
#include <array>
#include <cstring>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "kernels/function_kernel.hpp"
#include "kernels/parallel.hpp"
#include "kernels/primitive.hpp"

namespace memcfg {
namespace {

using namespace onednn;

constexpr int kOutput = 2;  // stands for the output among the image, kernel and image
constexpr std::size_t kAxes = 3;
using Three = std::array<Count, kAxes>;

// Numbers of the volume x, the kernel and the volume y among an op's operands: two
// inputs and the output, which is a gradient unless it is y.
struct Roles {
  int x, kernel, y;
};

struct Geometry {
  Count images, channels, units, groups;
  Three size, out, window;
  Dim strides[kAxes], before[kAxes], after[kAxes], dilation[kAxes];

  // Whichever of the three is an output.
  Geometry(const SpecReader& reader,
           const OperandSpec& x,
           const OperandSpec& kernel,
           const OperandSpec& y) {
    const auto &volume = reader.shape(x, 5), &taps = reader.shape(kernel, 5);
    const auto& made = reader.shape(y, 5);
    images = reader.narrow(volume[0], "images");
    channels = reader.narrow(volume[4], "channels");
    units = reader.narrow(made[4], "output channels");
    groups = reader.narrow(reader.integer("groups", 1), "groups");
    const auto steps = reader.integers<kAxes>("strides", 1);
    const auto spread = reader.integers<kAxes>("dilation", 1);
    const auto padding = reader.integers<2 * kAxes>("padding", 0);
    if (made[0] != images || channels % groups != 0 || units % groups != 0 ||
        taps[3] != channels / groups || taps[4] != units) {
      reader.fail("needs a kernel of its channels, which its groups divide");
    }
    for (std::size_t axis = 0; axis < kAxes; ++axis) {
      size[axis] = reader.narrow(volume[axis + 1], "length");
      out[axis] = reader.narrow(made[axis + 1], "output length");
      window[axis] = reader.narrow(taps[axis], "kernel length");
      strides[axis] = steps[axis];
      dilation[axis] = spread[axis] - 1;
      before[axis] = padding[2 * axis];
      const Count reach = (window[axis] - 1) * spread[axis] + 1;
      const Count room = size[axis] + before[axis] + padding[2 * axis + 1] - reach;
      if (room < 0 || room / strides[axis] + 1 != out[axis]) {
        reader.fail("has an output shape that is not that of its windows");
      }
      // oneDNN wants padding that ends where the last window does.
      after[axis] = (out[axis] - 1) * strides[axis] + reach - size[axis] - before[axis];
    }
    reader.product({images, size[0], size[1], size[2], channels});
    reader.product({images, out[0], out[1], out[2], units});
    reader.product({window[0], window[1], window[2], channels, units});
  }

  // Whether windows are single pixels, between which others lie. Of such pixels oneDNN
  // 3 may write behind its scratch in the gradient of the kernel (see conv2d).
  bool skips() const {
    bool skipped = false;
    for (std::size_t axis = 0; axis < kAxes; ++axis) {
      if (window[axis] != 1 || before[axis] != 0) return false;
      skipped = skipped || strides[axis] > 1;
    }
    return skipped;
  }
  // The same of the pixels alone that are read.
  Geometry gathered() const {
    Geometry read = *this;
    read.size = out;
    for (std::size_t axis = 0; axis < kAxes; ++axis) {
      read.strides[axis] = 1, read.after[axis] = 0;
    }
    return read;
  }
  Count pixels() const { return images * out[0] * out[1] * out[2]; }

  onednn::Shape kernel_dims() const {
    const Count in = channels / groups, made = units / groups;
    if (groups == 1) return {made, in, window[0], window[1], window[2]};
    return {groups, made, in, window[0], window[1], window[2]};
  }
  onednn::Shape kernel_strides() const {
    const Count column = channels / groups * units, row = window[2] * column;
    const Count plane = window[1] * row;
    if (groups == 1) return {1, units, plane, row, column};
    return {units / groups, 1, units, plane, row, column};
  }
};

Owned<MemoryDesc> describe_volumes(const OneDnn& library,
                                   Count n,
                                   const Three& size,
                                   Count c) {
  const Count row = size[2] * c, plane = size[1] * row;
  return describe(
      library, {n, c, size[0], size[1], size[2]}, {size[0] * plane, 1, plane, row, c});
}

// Whether an implementation takes all of its memory as scratch.
bool is_listed(const char* name) {
  for (const char* known : {"brg", "jit", "ref"}) {
    if (std::strncmp(name, known, std::strlen(known)) == 0) return true;
  }
  return false;
}

const char* name_of(const OneDnn& library, const PrimitiveDesc* primitive) {
  const char* name = nullptr;
  library.check(
      library.api().primitive_desc_query(primitive, query::implementation, 0, &name),
      "naming a convolution");
  return name;
}

template <class Create, class... Arguments>
Owned<PrimitiveDesc> choose(const OneDnn& library,
                            Create create,
                            const std::tuple<Arguments...>& arguments) {
  PrimitiveDesc* made = nullptr;
  const auto all = std::tuple_cat(std::tuple(&made, library.engine()), arguments);
  library.check(std::apply(create, all), "choosing a convolution");
  Owned<PrimitiveDesc> found{made, library.api().primitive_desc_destroy};
  while (!is_listed(name_of(library, made))) {
    library.check(library.api().primitive_desc_next_impl(made),
                  "choosing a convolution");
  }
  return found;
}

// The primitive, and the layouts that it is made from.
struct Problem {
  Problem(const KernelSpec& spec, const OneDnn& to_use, const Roles& numbers)
      : library(to_use),
        reader(spec, {kFloat32, kFloat32}, {kFloat32}),
        roles(numbers),
        given(reader,
              operand(spec, roles.x),
              operand(spec, roles.kernel),
              operand(spec, roles.y)),
        gathers(roles.kernel == kOutput && given.skips()),
        g(gathers ? given.gathered() : given),
        x(describe_volumes(library, g.images, g.size, g.channels)),
        y(describe_volumes(library, g.images, g.out, g.units)),
        kernel(describe(library, g.kernel_dims(), g.kernel_strides())),
        any(describe_any(library, g.kernel_dims())),
        attributes(user_scratchpad(library)),
        forward(make_forward()),
        primitive(make_primitive()) {}

  static const OperandSpec& operand(const KernelSpec& spec, int number) {
    return number == kOutput ? spec.outputs[0]
                             : spec.inputs[static_cast<std::size_t>(number)];
  }
  bool gradient() const { return roles.kernel == kOutput; }  // of the kernel

  Owned<PrimitiveDesc> make_forward() const {
    const MemoryDesc* const none = nullptr;
    const MemoryDesc *image = x.get(), *taps = any.get(), *made = y.get();
    return choose(library,
                  library.api().convolution_forward_primitive_desc_create,
                  std::tuple(int{propagation::forward_training},
                             int{algorithm::convolution_direct},
                             image,
                             taps,
                             none,
                             made,
                             g.strides,
                             g.dilation,
                             g.before,
                             g.after,
                             attributes.get()));
  }
  Owned<PrimitiveDesc> make_primitive() const {
    const Api& api = library.api();
    const MemoryDesc* const none = nullptr;
    const MemoryDesc *image = x.get(), *taps = any.get(), *made = y.get();
    const auto head = std::tuple(int{algorithm::convolution_direct}, image, taps);
    const auto tail = std::tuple(
        g.strides, g.dilation, g.before, g.after, forward.get(), attributes.get());
    if (roles.x == kOutput) {
      return choose(library,
                    api.convolution_backward_data_primitive_desc_create,
                    std::tuple_cat(head, std::tuple(made), tail));
    }
    if (gradient()) {
      return choose(library,
                    api.convolution_backward_weights_primitive_desc_create,
                    std::tuple_cat(head, std::tuple(none, made), tail));
    }
    return {nullptr, api.primitive_desc_destroy};
  }
  const PrimitiveDesc* get() const {
    return primitive ? primitive.get() : forward.get();
  }
  bool is_reference() const {
    return std::strncmp(name_of(library, get()), "ref", 3) == 0;
  }
  const MemoryDesc* packed() const {
    return layout(library, get(), gradient() ? query::diff_weights : query::weights);
  }
  Kernel::Sizes sizes(const KernelSpec& spec) const {
    return {{reader.bytes(spec.inputs[0]), reader.bytes(spec.inputs[1])},
            {reader.bytes(spec.outputs[0])}};
  }

  const OneDnn& library;
  SpecReader reader;
  Roles roles;
  Geometry given;
  bool gathers;  // the pixels that are read, to another volume
  Geometry g;
  Owned<MemoryDesc> x, y, kernel, any;
  Owned<Attributes> attributes;
  Owned<PrimitiveDesc> forward, primitive;
};

// Copies the pixels that windows of one pixel read.
void gather(const Geometry& g, const float* x, float* read) {
  const Bytes bytes = float_bytes(g.channels);
  parallel_for(g.images * g.out[0], g.pixels() * g.channels, [&](Count i) {
    const Count image = i / g.out[0], plane = i % g.out[0] * g.strides[0];
    float* to = read + i * g.out[1] * g.out[2] * g.channels;
    for (Count row = 0; row < g.out[1]; ++row) {
      const Count line =
          ((image * g.size[0] + plane) * g.size[1] + row * g.strides[1]) * g.size[2];
      for (Count column = 0; column < g.out[2]; ++column, to += g.channels) {
        std::memcpy(to, x + (line + column * g.strides[2]) * g.channels, bytes);
      }
    }
  });
}

// Scratch: the packed kernel, the gathered pixels, then that of the calls, which run
// one after another.
class Convolution final : public Kernel {
 public:
  Convolution(const KernelSpec& spec, const Problem& p)
      : Kernel(p.sizes(spec)), roles_(p.roles), given_(p.given) {
    const Api& api = p.library.api();
    const bool backward = roles_.x == kOutput, gradient = p.gradient();
    std::vector<Call::Operand> operands(3);
    operands[place(roles_.x)] = {backward ? arg::diff_source : arg::source, p.x.get()};
    operands[place(roles_.kernel)] = {gradient ? arg::diff_weights : arg::weights,
                                      p.packed()};
    operands[place(roles_.y)] = {
        roles_.y == kOutput ? arg::destination : arg::diff_destination, p.y.get()};
    call_.emplace(p.library, p.get(), operands);
    calls_ = call_->scratch_bytes();
    if (api.memory_desc_equal(p.kernel.get(), p.packed()) == 0) {
      packed_ = align_up(api.memory_desc_get_size(p.packed()));
      repack_.emplace(gradient ? reorder(p.library, p.packed(), p.kernel.get())
                               : reorder(p.library, p.kernel.get(), p.packed()));
      calls_ = std::max(calls_, repack_->scratch_bytes());
    }
    if (p.gathers) gathered_ = align_up(float_bytes(p.g.pixels() * p.g.channels));
  }

  const char* algorithm() const noexcept override { return "onednn"; }
  Bytes scratch_bytes() const noexcept override { return packed_ + gathered_ + calls_; }
  std::unique_ptr<RunState> make_run_state() const override {
    return std::make_unique<CallStates>(std::initializer_list{&call_, &repack_});
  }

  void run(void* const* operands, void* scratch, RunState* state) const override {
    auto& arguments = static_cast<CallStates*>(state)->arguments;
    void* addresses[3] = {operands[0], operands[1], operands[2]};
    char* const gathered = static_cast<char*>(scratch) + packed_;
    void* const rest = gathered + gathered_;
    void* const plain = addresses[roles_.kernel];
    if (repack_) addresses[roles_.kernel] = scratch;
    if (repack_ && roles_.kernel != kOutput) {
      repack_->run({plain, scratch}, rest, arguments[1]);
    }
    if (gathered_ != 0) {
      gather(given_, input(operands, roles_.x), reinterpret_cast<float*>(gathered));
      addresses[roles_.x] = gathered;
    }
    call_->run(addresses, rest, arguments[0]);
    if (repack_ && roles_.kernel == kOutput) {
      repack_->run({scratch, plain}, rest, arguments[1]);
    }
  }

 private:
  static std::size_t place(int number) { return static_cast<std::size_t>(number); }

  Roles roles_;
  Geometry given_;
  Bytes packed_ = 0, gathered_ = 0, calls_ = 0;
  std::optional<Call> call_;  // always there
  std::optional<Call> repack_;
};

// The gradient of a kernel by its planes: each is that of a kernel of conv2d, whose
// images are the planes of all volumes that it reads, or zeros outside of a volume.
class PlaneGradients final : public Kernel {
 public:
  PlaneGradients(const KernelSpec& spec, const Problem& p)
      : Kernel(p.sizes(spec)),
        g_(p.given),
        spread_(g_.dilation[0] + 1),
        in_place_(g_.window[0] == 1 && g_.strides[0] == 1 && g_.out[0] == g_.size[0]),
        of_plane_(make_kernel(plane_spec(spec, p), &p.library)),
        planes_(in_place_ ? 0 : align_up(float_bytes(planes() * plane()))),
        made_(bytes() % kAlignment == 0 ? 0 : align_up(bytes())) {}

  const char* algorithm() const noexcept override { return "onednn"; }
  Bytes scratch_bytes() const noexcept override {
    return planes_ + made_ + of_plane_->scratch_bytes();
  }
  std::unique_ptr<RunState> make_run_state() const override {
    return of_plane_->make_run_state();
  }

  void run(void* const* operands, void* scratch, RunState* state) const override {
    const auto* x = static_cast<const float*>(operands[0]);
    auto* kernel = static_cast<char*>(operands[2]);
    char* const read = static_cast<char*>(scratch);
    char* const made = read + planes_;
    void* of_plane[] = {in_place_ ? operands[0] : read, operands[1], made};
    for (Count tap = 0; tap < g_.window[0]; ++tap, kernel += bytes()) {
      if (!in_place_) take_planes(x, reinterpret_cast<float*>(read), tap);
      if (made_ == 0) of_plane[2] = kernel;
      of_plane_->run(of_plane, made + made_, state);
      if (made_ != 0) std::memcpy(kernel, made, bytes());
    }
  }

 private:
  KernelSpec plane_spec(const KernelSpec& spec, const Problem& p) const {
    KernelSpec made{"conv2d_gradient_kernel"};
    made.threads = spec.threads;
    const auto steps = p.reader.integers<kAxes>("strides", 1);
    const auto spread = p.reader.integers<kAxes>("dilation", 1);
    const auto padding = p.reader.integers<2 * kAxes>("padding", 0);
    made.set("strides", std::vector<std::int64_t>(steps.begin() + 1, steps.end()));
    made.set("dilation", std::vector<std::int64_t>(spread.begin() + 1, spread.end()));
    made.set("padding", std::vector<std::int64_t>(padding.begin() + 2, padding.end()));
    made.set("groups", std::int64_t{g_.groups});
    const auto floats = [](std::vector<std::int64_t> shape) {
      return OperandSpec{std::move(shape), kFloat32};
    };
    made.inputs = {floats({planes(), g_.size[1], g_.size[2], g_.channels}),
                   floats({planes(), g_.out[1], g_.out[2], g_.units})};
    made.outputs = {
        floats({g_.window[1], g_.window[2], g_.channels / g_.groups, g_.units})};
    return made;
  }
  // Copies the planes that one plane of the kernel reads.
  void take_planes(const float* x, float* read, Count tap) const {
    const Bytes bytes = float_bytes(plane());
    parallel_for(planes(), planes() * plane(), [&](Count i) {
      const Count image = i / g_.out[0];
      const Count at = i % g_.out[0] * g_.strides[0] + tap * spread_ - g_.before[0];
      float* const to = read + i * plane();
      if (at < 0 || at >= g_.size[0]) {
        std::memset(to, 0, bytes);
      } else {
        std::memcpy(to, x + (image * g_.size[0] + at) * plane(), bytes);
      }
    });
  }
  Count planes() const { return g_.images * g_.out[0]; }
  Count plane() const { return g_.size[1] * g_.size[2] * g_.channels; }  // elements
  Bytes bytes() const {  // of a plane of the kernel
    return float_bytes(g_.window[1] * g_.window[2] * (g_.channels / g_.groups) *
                       g_.units);
  }

  Geometry g_;
  Count spread_;   // of taps along depth
  bool in_place_;  // whether the planes lie so in the volumes
  std::unique_ptr<Kernel> of_plane_;
  Bytes planes_;  // that are read
  Bytes made_;    // of a plane of the kernel, if it would not be aligned; else 0
};

template <int x, int kernel, int y>
KernelPtr make(const KernelSpec& spec, const OneDnn& library) {
  const Problem problem(spec, library, Roles{x, kernel, y});
  if (spec.algorithm && *spec.algorithm != "onednn") problem.reader.fail_algorithm();
  if (problem.gradient() && problem.is_reference()) {
    return std::make_unique<PlaneGradients>(spec, problem);
  }
  return std::make_unique<Convolution>(spec, problem);
}

const KernelType kConv3d{"conv3d", make<0, 1, 2>};
const KernelType kGradientKernel{"conv3d_gradient_kernel", make<0, 2, 1>};
const KernelType kGradientInput{"conv3d_gradient_input", make<2, 0, 1>};

}  // namespace
}  // namespace memcfg
