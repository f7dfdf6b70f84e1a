// conv2d, with and without what follows it, and its gradients on oneDNN.
//
// What may follow are a bias, batch normalisation by given statistics, a sum with an
// array z and a ReLU:
//
//   y = relu((x * kernel + bias - mean) * gamma / sqrt(variance + epsilon) + beta + z)
//
// The normalisation's factors go into the kernel while it is packed, which costs no
// pass and no byte, and the rest of it into the bias; but where the kernel may be given
// packed, it stays as it is, so that it can be brought back, and the normalisation is a
// product and a sum of the result, which for these shapes take no time. The ReLU is a
// post-op of the primitive: oneDNN's PReLU with a slope of 0, which keeps NaN, unlike
// its ReLU; it makes NaN of -inf, and -0 of what is less than 0. Where the primitive
// would be of another family with it, the ReLU is a pass.
//
// A sum is a post-op as well where the result takes at most `kBlockBytes`: z is where
// the result is to be, which is its own place or that of a copy. oneDNN reads and
// writes a result channels by channels, which takes longer than a pass where it comes
// from memory. There some images at a time are made in scratch, and are still in the
// cache when a pass adds them to z. The shapes alone say which of the two it is.
//
// Activations lie as [N, H, W, C], kernels as [KH, KW, C / groups, O]. oneDNN is two
// to four times faster with the kernel packed its own way, so that the kernel is
// packed into scratch before the primitive (and its gradient unpacked after).
//
// Algorithms: "onednn" is what oneDNN prefers, but for few channels; "brgemm" and
// "direct" name the first of its implementations of that family, whatever the
// processor's instructions. Its third family is left out, columns of windows and a
// matrix product ("gemm:"): it takes up to megabytes from the heap in each run, beside
// the scratch that it asks for. In float32 on x86-64 there is no Winograd in oneDNN 3.
// "im2col" is ours of that kind, with its columns in the scratch that is asked for
// (im2col.hpp). Each of them takes parts of the batch one after the other, "im2col/4"
// (micro_batches.hpp); listed are those that take less scratch so.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <iterator>
#include <optional>
#include <tuple>
#include <utility>

#include "kernels/function_kernel.hpp"
#include "kernels/functions.hpp"
#include "kernels/geometry.hpp"
#include "kernels/im2col.hpp"
#include "kernels/micro_batches.hpp"
#include "kernels/parallel.hpp"
#include "kernels/primitive.hpp"
#include "kernels/product.hpp"

namespace memcfg {
namespace {

using namespace onednn;

// Pixels of the result from which on packing the kernel takes less than a hundredth of
// a convolution: 0.4 ns an element of the kernel, against 0.02 ns a pixel.
constexpr Count kPixelsPaid = 2048;

// The pixels that windows of one pixel read, within their image and as one of them.
struct Pixels {
  Pixels(const OneDnn& library, const Geometry& g, int type)
      : read(describe(library,
                      {g.images, g.channels, g.out_height, g.out_width},
                      {g.height * g.width * g.channels,
                       1,
                       g.strides[0] * g.width * g.channels,
                       g.strides[1] * g.channels},
                      type)),
        made(describe_nhwc(
            library, g.images, g.out_height, g.out_width, g.channels, type)) {}

  Owned<MemoryDesc> read, made;
};

// The layouts that the three primitives are made from: images and kernels of one type;
// `kernel` and `made` are those of the op's own, which for a gradient is float32.
struct Layouts {
  Layouts(const OneDnn& library, const Geometry& g, int type, int kernel_type)
      : x(describe_nhwc(library, g.images, g.height, g.width, g.channels, type)),
        y(describe_nhwc(
            library, g.images, g.out_height, g.out_width, g.out_channels, type)),
        kernel(describe(library, g.kernel_dims(), g.kernel_strides(), kernel_type)),
        packed(describe_any(library, g.kernel_dims(), type)),
        made(describe_any(library, g.kernel_dims(), kernel_type)),
        bias(describe(library, {g.out_channels}, {1})),
        vector(describe(library, {1, g.out_channels, 1, 1}, {g.out_channels, 1, 1, 1})),
        attributes(user_scratchpad(library)) {}

  Owned<MemoryDesc> x, y, kernel, packed, made, bias, vector;
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

constexpr int kOutput = 2;  // stands for the output among the image, kernel and image
constexpr const char* kDefault = "onednn";
constexpr const char* kDirect = "direct";

// The algorithm that oneDNN's name of an implementation means, such as
// "brg_fwd:avx512_core+brgconv:avx512_core", "brdgmm_dw:avx2" or "jit_1x1:avx2"; null
// for one that cannot be named.
const char* family(const char* implementation) {
  const auto begins = [implementation](const char* text) {
    return std::strncmp(implementation, text, std::strlen(text)) == 0;
  };
  if (begins("brg") || begins("brdgmm")) return "brgemm";
  return begins("jit") ? kDirect : nullptr;
}

// Numbers of the image x, the kernel and the image y among an op's operands: two inputs
// and the output, which is a gradient unless it is y. Before the output stand a bias,
// gamma, beta, mean and variance of a normalisation, and what is added, if they are
// there.
struct Roles {
  int x, kernel, y;
  bool biased = false, normalized = false;
  Post post = {};

  bool gradient() const { return kernel == kOutput; }  // of the kernel
  int bias() const { return 2; }
  int gamma() const { return biased ? 3 : 2; }
  int vectors() const { return (biased ? 1 : 0) + (normalized ? 4 : 0); }
  int summed() const { return 2 + vectors(); }  // z
  int output() const { return summed() + (post.sum ? 1 : 0); }
  bool adds() const { return biased || normalized; }
  SpecReader::Dtypes inputs() const {
    SpecReader::Dtypes found{kAnyDtype, kAnyDtype};
    for (int i = 2; i < output(); ++i) found.push_back(kFloat32);
    return found;
  }
};

// What of a normalisation one channel's sums are multiplied by.
MEMCFG_VECTORIZED void find_scales(
    const float* gamma, const float* variance, float epsilon, Count count, float* out) {
  MEMCFG_INDEPENDENT
  for (Count c = 0; c < count; ++c)
    out[c] = gamma[c] / std::sqrt(variance[c] + epsilon);
}
// What is added to them then.
MEMCFG_VECTORIZED void find_shifts(const float* beta,
                                   const float* mean,
                                   const float* bias,  // null: none
                                   const float* scale,
                                   Count count,
                                   float* out) {
  if (bias == nullptr) {
    MEMCFG_INDEPENDENT
    for (Count c = 0; c < count; ++c) out[c] = beta[c] - mean[c] * scale[c];
    return;
  }
  MEMCFG_INDEPENDENT
  for (Count c = 0; c < count; ++c) out[c] = beta[c] + (bias[c] - mean[c]) * scale[c];
}

// An implementation that was chosen. Those of a gradient hang on the forward primitive,
// which oneDNN looks at again when it goes on to the next.
struct Choice {
  PrimitiveDesc* get() const { return gradient ? gradient.get() : forward.get(); }

  Owned<PrimitiveDesc> forward, gradient;  // no gradient in conv2d
};

// A convolution, with the geometry and layouts that its primitives have.
struct Problem {
  Problem(const KernelSpec& spec, const OneDnn& to_use, const Roles& numbers)
      : library(to_use),
        reader(spec, numbers.inputs(), {kAnyDtype}),
        roles(numbers),
        type(type_of(reader, operand(spec, roles.x))),
        sizes{{reader.bytes(spec.inputs[0]), reader.bytes(spec.inputs[1])},
              {reader.bytes(spec.outputs[0])}},
        given(reader,
              operand(spec, roles.x),
              operand(spec, roles.kernel),
              operand(spec, roles.y)),
        gathers(roles.gradient() && given.breaks_scratch(type)),
        g(gathers ? given.gathered() : given.of_images(block())),
        l(library, g, type, type_of(reader, operand(spec, roles.kernel))),
        epsilon(roles.normalized ? static_cast<float>(reader.real("epsilon")) : 0) {
    const int kernel = type_of(reader, operand(spec, roles.kernel));
    if (type_of(reader, operand(spec, roles.y)) != type ||
        kernel != (roles.gradient() ? int{data_type::f32} : type)) {
      reader.fail("has operands of one type, and float32 gradients of kernels");
    }
    for (int i = 2; i < roles.summed(); ++i) {
      const OperandSpec& vector = operand(spec, i, roles.output());
      sizes.inputs.push_back(reader.bytes(vector));
      if (reader.shape(vector, 1)[0] != g.out_channels) {
        reader.fail(roles.normalized ? "is normalised by other channels"
                                     : "has a bias of other channels");
      }
    }
    if (roles.post.sum) {
      const OperandSpec& z = operand(spec, roles.summed(), roles.output());
      sizes.inputs.push_back(reader.bytes(z));
      if (z.shape != spec.outputs[0].shape) {
        reader.fail("adds an array of another shape");
      }
    }
    if (is_packable()) choose_post({false, false, roles.normalized});
    if (g.images == given.images) {
      choose_post({roles.post.sum, roles.post.relu, post.scaled});
    }
  }

  // Images of which the results are made at a time: all, unless a pass adds to them.
  Count block() const {
    const Bytes image = float_bytes(given.of_images(1).results());
    const Bytes all = float_bytes(given.results());
    if (!roles.post.sum || all <= kBlockBytes) return given.images;
    const auto most = static_cast<Count>(kBlockBytes / image);
    Count found = std::max<Count>(most, 1);
    while (given.images % found != 0) --found;
    return found;
  }

  static const OperandSpec& operand(const KernelSpec& spec,
                                    int number,
                                    int output = kOutput) {
    return number == output ? spec.outputs[0]
                            : spec.inputs[static_cast<std::size_t>(number)];
  }

  // Whether a kernel is worth being given packed.
  bool is_packable() const {
    return !roles.gradient() && given.pixels() < kPixelsPaid &&
           sizes.inputs[static_cast<std::size_t>(roles.kernel)] >= kPackedLeast &&
           type == data_type::f32;
  }

  // Makes these post-ops of the primitive, if that leaves the implementation of the
  // same family.
  void choose_post(Post wanted) {
    const auto is = [](Post a, Post b) {
      return a.sum == b.sum && a.relu == b.relu && a.scaled == b.scaled;
    };
    if (is(wanted, post)) return;
    const char* const before = name(preferred().get());
    Owned<Attributes> plain =
        std::exchange(l.attributes, with_post_ops(library, wanted, l.vector.get()));
    const Post old = std::exchange(post, wanted);
    bool same = before != nullptr;
    if (same) {
      const Choice with = preferred();
      const char* const after = name(with.get());
      same = after != nullptr && std::strcmp(before, after) == 0;
    }
    if (!same) {
      post = old;
      l.attributes = std::move(plain);
    }
  }
  // Whether the primitive takes a bias.
  bool biases() const { return roles.adds() && !post.scaled; }
  // Whether the factors of a normalisation are those of the kernel.
  bool scales_kernel() const { return roles.normalized && !post.scaled; }

  // The implementation that oneDNN prefers; `next` turns it into the next one.
  Choice first() const {
    const Api& api = library.api();
    const MemoryDesc *image = l.x.get(), *kernel = l.packed.get(), *out = l.y.get();
    const MemoryDesc* const bias = nullptr;  // of a gradient
    const MemoryDesc* const own = biases() ? l.bias.get() : bias;
    const auto direct = std::tuple(int{algorithm::convolution_direct}, image, kernel);
    const auto made =
        std::tuple(int{algorithm::convolution_direct}, image, l.made.get());
    const auto windows = std::tuple(g.strides, g.dilation, g.before, g.after);
    auto forward = choose(library,
                          api.convolution_forward_primitive_desc_create,
                          std::tuple_cat(std::tuple(int{propagation::forward_training}),
                                         direct,
                                         std::tuple(own, out),
                                         windows,
                                         std::tuple(l.attributes.get())));
    if (roles.y == kOutput) {
      return {std::move(forward), {nullptr, api.primitive_desc_destroy}};
    }
    const auto tail =
        std::tuple_cat(windows, std::tuple(forward.get(), l.attributes.get()));
    auto gradient = roles.x == kOutput
                        ? choose(library,
                                 api.convolution_backward_data_primitive_desc_create,
                                 std::tuple_cat(direct, std::tuple(out), tail))
                        : choose(library,
                                 api.convolution_backward_weights_primitive_desc_create,
                                 std::tuple_cat(made, std::tuple(bias, out), tail));
    return {std::move(forward), std::move(gradient)};
  }
  // The default: direct where channels fill no vector, in float32 (up to 1.7 times as
  // fast as blocks of products, forward and for the image), and where products of
  // bfloat16 pair pixels; else what oneDNN prefers.
  Choice preferred() const {
    const Count vector = kVectorBytes / kFloat;
    auto found = first();
    const bool narrow = type == data_type::f32 && g.groups == 1 &&
                        g.channels < vector && g.out_channels <= vector;
    if (roles.gradient() || !(narrow || g.pairs_pixels(type))) return found;
    do {
      const char* const is = name(found.get());
      if (is != nullptr && std::strcmp(is, kDirect) == 0) return found;
    } while (next(found.get()));
    return first();
  }
  // Whether there is a next one.
  bool next(PrimitiveDesc* primitive) const {
    const Status status = library.api().primitive_desc_next_impl(primitive);
    if (status == kLast) return false;
    library.check(status, "choosing a convolution");
    return true;
  }
  // Its algorithm; null if it cannot be named.
  const char* name(const PrimitiveDesc* primitive) const {
    const char* text = nullptr;
    library.check(
        library.api().primitive_desc_query(primitive, query::implementation, 0, &text),
        "naming a convolution");
    return family(text);
  }
  Bytes gathered_bytes() const {
    return static_cast<Bytes>(g.images * g.height * g.width * g.channels) *
           item_bytes(type);
  }
  const MemoryDesc* packed(const PrimitiveDesc* primitive) const {
    return layout(
        library, primitive, roles.gradient() ? query::diff_weights : query::weights);
  }
  Bytes packed_bytes(const PrimitiveDesc* primitive) const {
    return library.api().memory_desc_get_size(packed(primitive));
  }

  const OneDnn& library;
  SpecReader reader;
  Roles roles;
  int type;                // of the images
  bool prepacked = false;  // whether the kernel is given packed
  Post post = {};          // what the primitive does of the role's
  Kernel::Sizes sizes;
  Geometry given;  // of the operands
  bool gathers;    // the pixels that are read, to another image
  Geometry g;      // of the primitive, which may make some images at a time
  Layouts l;
  float epsilon;
};

// A kernel's reorder from plain to packed, scaled by channels where it is.
Owned<PrimitiveDesc> describe_pack(const Problem& p, const MemoryDesc* packed) {
  const int axes = p.g.groups > 1 ? 3 : 1;  // the first, or the first two
  return describe_reorder(
      p.library, p.l.kernel.get(), packed, p.scales_kernel() ? axes : 0);
}
Call pack_call(const Problem& p, const MemoryDesc* packed) {
  const auto made = describe_pack(p, packed);
  const Call::Operand from{arg::source, p.l.kernel.get()};
  const Call::Operand to{arg::destination, packed};
  if (!p.scales_kernel()) return Call(p.library, made.get(), {from, to});
  const Call::Operand scales{arg::scales | arg::source, p.l.bias.get()};
  return Call(p.library, made.get(), {from, to, scales});
}

// Scratch: the packed kernel, a normalisation's scales and shifts, what was gathered,
// or results to which something is added, then that of the calls, which run one after
// another.
struct Scratch {
  Scratch(const Problem& p, const PrimitiveDesc* primitive)
      : calls(scratchpad_bytes(p.library, primitive)) {
    const Api& api = p.library.api();
    const MemoryDesc *plain = p.l.kernel.get(), *other = p.packed(primitive);
    const bool moves = p.scales_kernel() || api.memory_desc_equal(plain, other) == 0;
    if (!p.prepacked && moves) {
      packed = align_up(api.memory_desc_get_size(other));
      add(p.library,
          p.roles.gradient() ? describe_reorder(p.library, other, plain)
                             : describe_pack(p, other));
    }
    if (p.roles.normalized) {
      vector = align_up(float_bytes(p.g.out_channels));
      vectors = 2 * vector;
    }
    if (p.gathers) {
      const Pixels pixels(p.library, p.given, p.type);
      gathered = align_up(p.gathered_bytes());
      add(p.library, describe_reorder(p.library, pixels.read.get(), pixels.made.get()));
    }
    if (p.roles.post.sum && !p.post.sum) made = align_up(float_bytes(p.g.results()));
  }

  void add(const OneDnn& library, const Owned<PrimitiveDesc>& copy) {
    calls = std::max(calls, scratchpad_bytes(library, copy.get()));
  }
  Bytes total() const { return packed + vectors + gathered + made + calls; }

  Bytes packed = 0, vector = 0, vectors = 0, gathered = 0, made = 0, calls;
};

// A primitive whose kernel is packed in scratch unless it is given packed, and whose
// image x is gathered there if need be.
class Convolution final : public Kernel {
 public:
  Convolution(const Problem& p, const PrimitiveDesc* primitive, const char* algorithm)
      : Kernel(sizes(p, primitive)),
        algorithm_(algorithm),
        scratch_(p, primitive),
        roles_(p.roles),
        pass_{p.roles.post.sum && !p.post.sum, p.roles.post.relu && !p.post.relu},
        scaled_(p.post.scaled),
        channels_(p.g.out_channels),
        count_(p.given.results()),
        blocks_(p.given.images / p.g.images),
        read_bytes_(p.sizes.inputs[0] / static_cast<Bytes>(blocks_)),
        type_(p.type),
        zeroes_scratch_(p.roles.gradient() && p.g.reads_scratch(p.type)),
        epsilon_(p.epsilon) {
    std::vector<Call::Operand> operands(3);
    const bool backward = roles_.x == kOutput, gradient = roles_.gradient();
    const MemoryDesc *plain = p.l.kernel.get(), *packed = p.packed(primitive);
    at(operands, roles_.x) = {backward ? arg::diff_source : arg::source, p.l.x.get()};
    at(operands, roles_.kernel) = {gradient ? arg::diff_weights : arg::weights, packed};
    at(operands, roles_.y) = {
        roles_.y == kOutput ? arg::destination : arg::diff_destination, p.l.y.get()};
    if (p.biases()) operands.push_back({arg::bias, p.l.bias.get()});
    for (int i = 0; scaled_ && i < 2; ++i) {
      operands.push_back({arg::array_of_post_op(i), p.l.vector.get()});
    }
    const auto slope = describe(p.library, {1, 1, 1, 1}, {1, 1, 1, 1});
    if (p.post.relu) operands.push_back({p.post.slope(), slope.get()});
    call_.emplace(p.library, primitive, operands);
    if (scratch_.packed != 0) {
      repack_.emplace(gradient ? reorder(p.library, packed, plain)
                               : pack_call(p, packed));
    }
    if (p.gathers) {
      const Pixels pixels(p.library, p.given, p.type);
      gather_.emplace(reorder(p.library, pixels.read.get(), pixels.made.get()));
    }
  }

  const char* algorithm() const noexcept override { return algorithm_; }
  Bytes scratch_bytes() const noexcept override { return scratch_.total(); }

  std::unique_ptr<RunState> make_run_state() const override {
    return std::make_unique<CallStates>(
        std::initializer_list{&call_, &repack_, &gather_});
  }

  void run(void* const* operands, void* scratch, RunState* state) const override {
    auto& arguments = static_cast<CallStates*>(state)->arguments;
    void* const output = operands[roles_.output()];
    void* addresses[6] = {operands[0], operands[1], output, operands[roles_.bias()]};
    char* const vectors = static_cast<char*>(scratch) + scratch_.packed;
    void* const gathered = vectors + scratch_.vectors;
    void* const rest = static_cast<char*>(gathered) + scratch_.gathered + scratch_.made;
    void* const plain = addresses[roles_.kernel];
    const bool gradient = roles_.gradient();
    void* const scales = vectors + scratch_.vector;
    std::size_t next = roles_.adds() ? 4 : 3;
    if (roles_.normalized) {
      normalize(
          operands, static_cast<float*>(scales), reinterpret_cast<float*>(vectors));
      addresses[3] = scaled_ ? scales : vectors;
      if (scaled_) addresses[next++] = vectors;
    }
    addresses[next] = no_slope();
    if (repack_) addresses[roles_.kernel] = scratch;
    if (gather_) gather_->run({operands[roles_.x], gathered}, rest, arguments[2]);
    if (gather_) addresses[roles_.x] = gathered;
    if (repack_ && !gradient) {
      void* const places[3] = {plain, scratch, scales};
      repack_->run(places, rest, arguments[1]);
    }
    if (pass_.sum) {
      addresses[roles_.y] = gathered;
      run_blocks(operands, addresses, rest, arguments[0]);
      return;
    }
    if (roles_.post.sum) put_in_place(operands[roles_.summed()], output, count_);
    if (zeroes_scratch_) std::memset(rest, 0, call_->scratch_bytes());
    call_->run(addresses, rest, arguments[0]);
    if (repack_ && gradient) repack_->run({scratch, plain}, rest, arguments[1]);
    if (pass_.relu) apply_relu(output, count_, type_);
  }

 private:
  template <class T>
  static T& at(std::vector<T>& operands, int number) {
    return operands[static_cast<std::size_t>(number)];
  }
  static Sizes sizes(const Problem& p, const PrimitiveDesc* primitive) {
    Sizes all = p.sizes;
    if (p.prepacked) {
      all.inputs[static_cast<std::size_t>(p.roles.kernel)] = p.packed_bytes(primitive);
    }
    return all;
  }

  // Makes some images at a time where addresses[2] says, and adds what is to be added.
  void run_blocks(void* const* operands,
                  void** addresses,
                  void* scratch,
                  Arguments& arguments) const {
    const auto* const made = static_cast<const float*>(addresses[2]);
    const Count length = count_ / blocks_;
    for (Count block = 0; block < blocks_; ++block) {
      call_->run(addresses, scratch, arguments);
      addresses[0] = static_cast<char*>(addresses[0]) + read_bytes_;
      const Offset begin = block * length;
      add_arrays(made,
                 input(operands, roles_.summed()) + begin,
                 memcfg::output(operands, roles_.output()) + begin,
                 length,
                 pass_.relu);
    }
  }

  // Finds a normalisation's scales and shifts.
  void normalize(void* const* operands, float* scales, float* shifts) const {
    const int gamma = roles_.gamma();
    find_scales(input(operands, gamma),
                input(operands, gamma + 3),
                epsilon_,
                channels_,
                scales);
    find_shifts(input(operands, gamma + 1),
                input(operands, gamma + 2),
                roles_.biased ? input(operands, roles_.bias()) : nullptr,
                scales,
                channels_,
                shifts);
  }
  const char* algorithm_;
  Scratch scratch_;
  Roles roles_;
  Post pass_;    // what the primitive does not do
  bool scaled_;  // whether the result is multiplied by the scales
  Count channels_, count_;
  Count blocks_;      // of images
  Bytes read_bytes_;  // of a block
  int type_;
  bool zeroes_scratch_;
  float epsilon_;
  std::optional<Call> call_;  // always there
  std::optional<Call> repack_;
  std::optional<Call> gather_;
};

// The implementation that the spec names, and its name.
std::pair<Choice, const char*> find_algorithm(const KernelSpec& spec,
                                              const Problem& p) {
  if (!spec.algorithm || *spec.algorithm == kDefault) return {p.preferred(), kDefault};
  auto primitive = p.first();
  do {
    const char* name = p.name(primitive.get());
    if (name != nullptr && *spec.algorithm == name) return {std::move(primitive), name};
  } while (p.next(primitive.get()));
  p.reader.fail_algorithm();
}

// The same as one product, where that can be.
std::optional<Im2col> find_im2col(const Problem& p) {
  const Geometry& g = p.given;
  const bool plain = !p.roles.normalized && !p.roles.post.sum;
  if (g.groups != 1 || !plain || p.type != data_type::f32) return {};
  using Result = Im2col::Result;
  const Im2col found{g.images,
                     g.height,
                     g.width,
                     g.channels,
                     g.out_height,
                     g.out_width,
                     g.out_channels,
                     g.kernel_height,
                     g.kernel_width,
                     {g.strides[0], g.strides[1]},
                     {g.before[0], g.before[1]},
                     {g.dilation[0] + 1, g.dilation[1] + 1},
                     p.roles.gradient()     ? Result::kernel_gradient
                     : p.roles.x == kOutput ? Result::input_gradient
                                            : Result::output,
                     p.roles.biased,
                     p.roles.post.relu};
  if (!found.is_narrow()) return {};
  return found;
}

// The operands that have the batch as their first axis.
std::vector<std::size_t> batched(const Roles& roles) {
  const auto number = [&roles](int role) {
    return static_cast<std::size_t>(role == kOutput ? roles.output() : role);
  };
  std::vector<std::size_t> found{number(roles.x), number(roles.y)};
  if (roles.post.sum) found.push_back(number(roles.summed()));
  return found;
}

// Whether an algorithm's name is one of oneDNN's implementations.
bool is_library(const KernelSpec& spec) {
  return !spec.algorithm ||
         (*spec.algorithm != kIm2col && spec.algorithm->find('/') == std::string::npos);
}

KernelPtr make_whole(const KernelSpec& spec,
                     const OneDnn& library,
                     const Roles& roles) {
  const Problem p(spec, library, roles);
  if (!is_library(spec)) {
    const auto of = find_im2col(p);
    if (*spec.algorithm != kIm2col || !of) p.reader.fail_algorithm();
    return make_im2col(*of, p.sizes, library);
  }
  const auto [primitive, name] = find_algorithm(spec, p);
  return std::make_unique<Convolution>(p, primitive.get(), name);
}

// Those of the library, if all are asked for, and ours.
std::vector<Algorithm> list_whole(const Problem& p, bool all) {
  std::vector<Algorithm> found;
  if (all) {
    const auto primitive = p.first();
    found.push_back({kDefault, Scratch(p, p.preferred().get()).total()});
    do {
      const char* name = p.name(primitive.get());
      const auto same = [name](const Algorithm& each) { return each.name == name; };
      if (name == nullptr || std::any_of(found.begin(), found.end(), same)) continue;
      found.push_back({name, Scratch(p, primitive.get()).total()});
    } while (p.next(primitive.get()));
  }
  if (const auto of = find_im2col(p)) {
    found.push_back({kIm2col, im2col_scratch(*of, p.library)});
  }
  return found;
}

// The epilogue of a type of kernel.
enum EpilogueBits : unsigned {
  kNothing = 0,
  kBias = 1,
  kNormalization = 2,
  kSum = 4,
  kRelu = 8
};

template <int x, int kernel, int y, unsigned epilogue>
constexpr Roles kRoles{x,
                       kernel,
                       y,
                       (epilogue & kBias) != 0,
                       (epilogue & kNormalization) != 0,
                       {(epilogue & kSum) != 0, (epilogue & kRelu) != 0}};

template <int x, int kernel, int y, unsigned epilogue = kNothing>
KernelPtr make(const KernelSpec& spec, const OneDnn& library) {
  constexpr Roles roles = kRoles<x, kernel, y, epilogue>;
  if (is_library(spec)) return make_whole(spec, library, roles);
  const Problem checked(spec, library, roles);
  const auto parts = MicroBatches::of(spec, batched(roles));
  if (!parts) return make_whole(spec, library, roles);
  const KernelSpec part = parts->part(spec);
  if (!is_library(part) && part.algorithm != kIm2col) {
    checked.reader.fail_algorithm();
  }
  return parts->make(spec, make_whole(part, library, roles));
}

template <int x, int kernel, int y, unsigned epilogue = kNothing>
std::optional<Packing> pack(const KernelSpec& spec, const OneDnn& library) {
  if (!is_library(spec)) return std::nullopt;
  Problem p(spec, library, kRoles<x, kernel, y, epilogue>);
  const Bytes bytes = p.sizes.inputs[static_cast<std::size_t>(kernel)];
  if (!p.is_packable() || p.scales_kernel()) return std::nullopt;
  const auto [primitive, name] = find_algorithm(spec, p);
  const MemoryDesc *plain = p.l.kernel.get(), *packed = p.packed(primitive.get());
  if (library.api().memory_desc_equal(plain, packed) != 0) return std::nullopt;
  p.prepacked = true;
  auto own = std::make_unique<Convolution>(p, primitive.get(), name);
  return pack_operand(kernel, library, {plain, bytes}, packed, std::move(own));
}

// Columns beyond this are not listed: whoever measures algorithms runs all of them.
constexpr Bytes kColumnsMost = Bytes{64} << 20;

bool is_listed(const Algorithm& each) {
  return each.name.rfind(kIm2col, 0) != 0 || each.scratch_bytes <= kColumnsMost;
}

// The default, and what can be named; nothing is compiled for it. oneDNN's scratch is
// that of the kernel and of threads, so parts of the batch take less of it only where
// pixels are gathered first.
template <int x, int kernel, int y, unsigned epilogue = kNothing>
std::vector<Algorithm> list(const KernelSpec& spec, const OneDnn& library) {
  constexpr Roles roles = kRoles<x, kernel, y, epilogue>;
  const Problem p(spec, library, roles);
  const std::vector<Algorithm> whole = list_whole(p, true);
  std::vector<Algorithm> found;
  std::copy_if(whole.begin(), whole.end(), std::back_inserter(found), is_listed);
  const auto columns = find_im2col(p);
  if (!p.gathers && (!columns || columns->is_plain())) return found;
  for (const MicroBatches& parts : MicroBatches::list(spec, batched(roles))) {
    const KernelSpec part = parts.part(spec);
    for (Algorithm each : list_whole(Problem(part, library, roles), p.gathers)) {
      each.scratch_bytes += parts.sum_bytes(spec);
      const auto less = [&each](const Algorithm& other) {
        return other.name == each.name && each.scratch_bytes < other.scratch_bytes;
      };
      if (std::none_of(whole.begin(), whole.end(), less)) continue;
      each.name = parts.name(each.name);
      if (is_listed(each)) found.push_back(std::move(each));
    }
  }
  return found;
}

#define MEMCFG_FORWARD(variable, name, epilogue, floats)            \
  const KernelType variable {                                       \
    name, make<0, 1, 2, epilogue>, list<0, 1, 2, epilogue>, floats, \
        pack<0, 1, 2, epilogue>                                     \
  }
MEMCFG_FORWARD(kConv2d, "conv2d", kNothing, Floats::bfloat16);
MEMCFG_FORWARD(kBiased, "conv2d_bias", kBias, Floats::bfloat16);
MEMCFG_FORWARD(kBiasedRelu, "conv2d_bias_relu", kBias | kRelu, Floats::bfloat16);
// Scaled kernels are float32, and sums of residuals.
MEMCFG_FORWARD(kNormalized,
               "conv2d_batch_normalization_inference",
               kNormalization,
               Floats::float32);
MEMCFG_FORWARD(kNormalizedRelu,
               "conv2d_batch_normalization_inference_relu",
               kNormalization | kRelu,
               Floats::float32);
MEMCFG_FORWARD(kNormalizedAdd,
               "conv2d_batch_normalization_inference_add",
               kNormalization | kSum,
               Floats::float32);
MEMCFG_FORWARD(kNormalizedAddRelu,
               "conv2d_batch_normalization_inference_add_relu",
               kNormalization | kSum | kRelu,
               Floats::float32);
MEMCFG_FORWARD(kBiasedAdd, "conv2d_bias_add", kBias | kSum, Floats::float32);
MEMCFG_FORWARD(kBiasedAddRelu,
               "conv2d_bias_add_relu",
               kBias | kSum | kRelu,
               Floats::float32);
MEMCFG_FORWARD(kBiasedNormalized,
               "conv2d_bias_batch_normalization_inference",
               kBias | kNormalization,
               Floats::float32);
MEMCFG_FORWARD(kBiasedNormalizedRelu,
               "conv2d_bias_batch_normalization_inference_relu",
               kBias | kNormalization | kRelu,
               Floats::float32);
MEMCFG_FORWARD(kBiasedNormalizedAdd,
               "conv2d_bias_batch_normalization_inference_add",
               kBias | kNormalization | kSum,
               Floats::float32);
MEMCFG_FORWARD(kBiasedNormalizedAddRelu,
               "conv2d_bias_batch_normalization_inference_add_relu",
               kBias | kNormalization | kSum | kRelu,
               Floats::float32);
#undef MEMCFG_FORWARD
const KernelType kGradientKernel{
    "conv2d_gradient_kernel", make<0, 2, 1>, list<0, 2, 1>, Floats::bfloat16};
const KernelType kGradientInput{"conv2d_gradient_input",
                                make<2, 0, 1>,
                                list<2, 0, 1>,
                                Floats::bfloat16,
                                pack<2, 0, 1>};

}  // namespace
}  // namespace memcfg
