// A softmax cross-entropy of a dense product, its loss and gradients at once, or the
// loss alone: blocks of rows are multiplied, turned into the gradient of their logits
// and used up, one after the other. The kernel's gradient is added up in float32, in
// the blocks' order. Of x and a kernel of bfloat16 the logits are float32, and their
// gradient is rounded for the products that read it.
#include <numeric>

#include "kernels/bfloat16.hpp"
#include "kernels/cross_entropy.hpp"
#include "kernels/parallel.hpp"
#include "kernels/product.hpp"

namespace memcfg {
namespace {

using namespace onednn;

constexpr Dim kBlockBytes = 32 << 20;  // of logits
constexpr Dim kRowsLeast = 16;
constexpr Count kRowCost = 16;  // one exponential in elements of a plain loop
constexpr Count kPiece = 1024;  // columns of a sum down the rows

// A product whose result is added to what is there.
Call make_sum_of_products(const OneDnn& library,
                          const Matrix& left,
                          const Matrix& right,
                          const Matrix& result) {
  const Api& api = library.api();
  const auto a = describe(library, left), b = describe(library, right),
             c = describe(library, result);
  PrimitiveDesc* made = nullptr;
  library.check(
      api.matmul_primitive_desc_create(&made,
                                       library.engine(),
                                       a.get(),
                                       b.get(),
                                       nullptr,
                                       c.get(),
                                       with_post_ops(library, {true, false}).get()),
      "choosing a sum of matrix products");
  const Owned<PrimitiveDesc> primitive(made, api.primitive_desc_destroy);
  return Call(
      library,
      made,
      {{arg::source, a.get()}, {arg::weights, b.get()}, {arg::destination, c.get()}});
}

// sums[j] += the sum of rows[i, j] over i.
MEMCFG_VECTORIZED void add_rows(
    const float* x, Count rows, Count width, Count stride, float* sums) {
  for (Count i = 0; i < rows; ++i, x += stride) {
    MEMCFG_INDEPENDENT
    for (Count j = 0; j < width; ++j) sums[j] += x[j];
  }
}

MEMCFG_VECTORIZED void add_to_row(const float* bias, Count width, float* row) {
  MEMCFG_INDEPENDENT
  for (Count j = 0; j < width; ++j) row[j] += bias[j];
}

struct Lengths {
  Dim rows, depth, classes;
  bool transposed;  // the kernel is [classes, depth]
  int type;         // of x, of the kernel and of x's gradient

  bool narrow() const { return type != data_type::f32; }
  Bytes bytes(Dim count) const { return static_cast<Bytes>(count) * item_bytes(type); }
};

class DenseCrossEntropy final : public Kernel {
 public:
  DenseCrossEntropy(const OneDnn& library,
                    const Kernel::Sizes& sizes,
                    const Lengths& lengths)
      : Kernel(sizes),
        of_(lengths),
        block_(std::min(lengths.rows,
                        std::clamp(kBlockBytes / (lengths.classes * Dim{kFloat}) /
                                       kRowsLeast * kRowsLeast,
                                   kRowsLeast,
                                   kRowsMost))),
        biased_(sizes.inputs.size() > 3),
        differentiates_(sizes.outputs.size() > 1),
        piece_(piece_of(lengths)) {
    const Dim last = lengths.rows % block_;
    whole_.make(library, of_, block_, piece_, differentiates_);
    if (last != 0) rest_.make(library, of_, last, piece_, differentiates_);
    logit_bytes_ = align_up(float_bytes(block_ * of_.classes));
    if (differentiates_ && of_.narrow()) {
      rounded_bytes_ = align_up(of_.bytes(block_ * of_.classes));
    }
    if (differentiates_ && !of_.transposed) {
      transposed_bytes_ = align_up(of_.bytes(block_ * of_.depth));
    }
    loss_bytes_ = align_up(static_cast<Bytes>(of_.rows) * sizeof(double));
  }

  const char* algorithm() const noexcept override { return "onednn"; }
  Bytes scratch_bytes() const noexcept override {
    return logit_bytes_ + rounded_bytes_ + transposed_bytes_ + loss_bytes_ +
           std::max(whole_.scratch_bytes(), rest_.scratch_bytes());
  }

  std::unique_ptr<RunState> make_run_state() const override {
    return std::make_unique<CallStates>(
        std::initializer_list<const std::optional<Call>*>{&whole_.logits,
                                                          &whole_.input,
                                                          &whole_.kernel,
                                                          &whole_.last,
                                                          &whole_.transpose,
                                                          &rest_.logits,
                                                          &rest_.input,
                                                          &rest_.kernel,
                                                          &rest_.last,
                                                          &rest_.transpose});
  }

  void run(void* const* operands, void* scratch, RunState* state) const override {
    auto& arguments = static_cast<CallStates*>(state)->arguments;
    const int first = biased_ ? 4 : 3;
    char* bytes = static_cast<char*>(scratch);
    Parts parts{};
    parts.x = static_cast<char*>(operands[0]);
    parts.labels = static_cast<const Label*>(operands[1]);
    parts.kernel = operands[2];
    parts.bias = biased_ ? static_cast<float*>(operands[3]) : nullptr;
    parts.logits = reinterpret_cast<float*>(bytes);
    bytes += logit_bytes_;
    parts.gradient = of_.narrow() ? bytes : reinterpret_cast<char*>(parts.logits);
    bytes += rounded_bytes_;
    parts.transposed = bytes;
    bytes += transposed_bytes_;
    auto* const losses = reinterpret_cast<double*>(bytes);
    parts.losses = losses;
    parts.rest = bytes + loss_bytes_;
    if (differentiates_) {
      parts.dx = static_cast<char*>(operands[first + 1]);
      parts.dkernel = static_cast<float*>(operands[first + 2]);
      parts.dbias = biased_ ? static_cast<float*>(operands[first + 3]) : nullptr;
      clear(parts);
    }
    for (Dim row = 0; row < of_.rows; row += block_) {
      const bool is_whole = row + block_ <= of_.rows;
      const Calls& calls = is_whole ? whole_ : rest_;
      Arguments* const given = arguments.data() + (is_whole ? 0 : kCalls);
      const Dim rows = std::min(block_, of_.rows - row);
      calls.logits->run({parts.x, parts.kernel, parts.logits}, parts.rest, given[0]);
      compare(parts, rows);
      if (differentiates_) {
        calls.input->run(
            {parts.gradient, parts.kernel, parts.dx}, parts.rest, given[1]);
        add_to_kernel(calls, parts, rows, given);
        parts.dx += of_.bytes(rows * of_.depth);
      }
      parts.x += of_.bytes(rows * of_.depth);
      parts.labels += rows;
      parts.losses += rows;
    }
    const double total = std::accumulate(losses, losses + of_.rows, 0.0);
    *static_cast<float*>(operands[first]) =
        static_cast<float>(total / static_cast<double>(of_.rows));
  }

 private:
  static constexpr int kCalls = 5;

  // The products of a block of so many rows. The kernel's gradient is made in pieces
  // of its rows, since oneDNN takes memory of its own for larger ones.
  struct Calls {
    std::optional<Call> logits, input, kernel, last, transpose;

    void make(const OneDnn& library,
              const Lengths& of,
              Dim rows,
              Dim piece,
              bool differentiates) {
      const Dim d = of.depth, v = of.classes;
      const auto matrix = [&](Dim m, Dim n, Dim row, Dim column) {
        return Matrix{m, n, row, column, 1, 0, of.type};
      };
      const Matrix x = matrix(rows, d, d, 1), of_gradient = matrix(rows, v, v, 1);
      const Matrix of_logits{rows, v, v, 1};
      const Matrix down = matrix(d, v, of.transposed ? 1 : v, of.transposed ? d : 1);
      const Matrix up = matrix(v, d, down.column_stride, down.row_stride);
      logits.emplace(make_product(library, x, down, of_logits));
      if (!differentiates) return;
      input.emplace(make_product(library, of_gradient, up, x));
      const auto sum = [&](Dim some) {
        if (of.transposed) {
          return make_sum_of_products(
              library, matrix(some, rows, 1, v), x, Matrix{some, d, d, 1});
        }
        return make_sum_of_products(
            library, matrix(some, rows, rows, 1), of_gradient, Matrix{some, v, v, 1});
      };
      const Dim count = of.transposed ? v : d;
      kernel.emplace(sum(piece));
      if (count % piece != 0) last.emplace(sum(count % piece));
      if (of.transposed) return;
      const Matrix from = matrix(d, rows, 1, d), to = matrix(d, rows, rows, 1);
      transpose.emplace(
          reorder(library, describe(library, from).get(), describe(library, to).get()));
    }

    Bytes scratch_bytes() const noexcept {
      Bytes most = 0;
      for (const auto* call : {&logits, &input, &kernel, &last, &transpose}) {
        if (*call) most = std::max(most, (*call)->scratch_bytes());
      }
      return most;
    }
  };

  // Rows of the kernel's gradient that one product makes: all, unless they are long.
  static Dim piece_of(const Lengths& of) {
    const Dim count = of.transposed ? of.classes : of.depth;
    const Dim width = of.transposed ? of.depth : of.classes;
    return width <= kRowsMost ? count : std::min(count, kRowsMost);
  }

  // What a block of rows reads and writes.
  struct Parts {
    char *x, *dx;
    void* kernel;
    float *bias, *dkernel, *dbias;  // the biases may be null
    const Label* labels;
    float* logits;   // scratch, as what follows
    char* gradient;  // of the logits: they themselves, or rounded
    char* transposed;
    double* losses;
    char* rest;
  };

  void clear(const Parts& at) const {
    parallel_chunks(of_.depth * of_.classes, kChunk, [=](Count begin, Count length) {
      std::fill_n(at.dkernel + begin, length, 0.0F);
    });
    if (biased_) std::fill_n(at.dbias, of_.classes, 0.0F);
  }

  // Losses of each row; logits become their gradient.
  void compare(const Parts& at, Count rows) const {
    const Count v = of_.classes;
    const float factor = 1 / static_cast<float>(of_.rows);
    const bool differentiates = differentiates_, narrow = of_.narrow();
    parallel_for(rows, rows * v * kRowCost, [=](Count i) {
      float* const row = at.logits + i * v;
      if (at.bias != nullptr) add_to_row(at.bias, v, row);
      at.losses[i] = row_loss(row, at.labels[i], v, differentiates ? row : nullptr);
      if (!differentiates) return;
      row_gradient(row, at.labels[i], v, factor, row);
      if (narrow) round(row, v, reinterpret_cast<Bfloat16*>(at.gradient) + i * v);
    });
    if (!differentiates_ || !biased_) return;
    parallel_chunks(v, kPiece, [=](Count begin, Count length) {
      add_rows(at.logits + begin, rows, length, v, at.dbias + begin);
    });
  }

  void add_to_kernel(const Calls& calls,
                     const Parts& at,
                     Dim rows,
                     Arguments* given) const {
    const Dim count = of_.transposed ? of_.classes : of_.depth;
    const Dim width = of_.transposed ? of_.depth : of_.classes;
    if (!of_.transposed) calls.transpose->run({at.x, at.transposed}, at.rest, given[4]);
    for (Dim place = 0; place < count; place += piece_) {
      const bool is_whole = place + piece_ <= count;
      const Call& call = is_whole ? *calls.kernel : *calls.last;
      char* const left = of_.transposed ? at.gradient + of_.bytes(place)
                                        : at.transposed + of_.bytes(place * rows);
      call.run({left, of_.transposed ? at.x : at.gradient, at.dkernel + place * width},
               at.rest,
               given[is_whole ? 2 : 3]);
    }
  }

  Lengths of_;
  Dim block_;
  bool biased_;
  bool differentiates_;  // else there is the loss alone
  Dim piece_;
  Calls whole_, rest_;
  Bytes logit_bytes_ = 0, rounded_bytes_ = 0, transposed_bytes_ = 0, loss_bytes_ = 0;
};

template <bool differentiates>
KernelPtr make_dense_cross_entropy(const KernelSpec& spec, const OneDnn& library) {
  using Dtypes = SpecReader::Dtypes;
  const bool biased = spec.inputs.size() > 3;
  const std::size_t outputs = differentiates ? (biased ? 4 : 3) : 1;
  const bool narrow = !spec.inputs.empty() && spec.inputs[0].dtype == kBfloat16;
  const char* const dtype = narrow ? kBfloat16 : kFloat32;
  Dtypes read{dtype, kInt32, dtype}, written(outputs, kFloat32);
  if (biased) read.push_back(kFloat32);
  if (differentiates) written[1] = dtype;
  const SpecReader reader(spec, read, written);
  const SpecReader::Rows x = reader.rows(spec.inputs[0]);
  const std::vector<Count>& kernel = reader.shape(spec.inputs[2], 2);
  const bool transposed = reader.integer("transposed", 0) != 0;
  const Lengths lengths{reader.narrow(x.rows, "rows"),
                        reader.narrow(x.channels, "inputs"),
                        reader.narrow(kernel[transposed ? 0 : 1], "classes"),
                        transposed,
                        type_of(reader, spec.inputs[0])};
  if (kernel[transposed ? 1 : 0] != x.channels ||
      reader.count(spec.inputs[1]) != x.rows) {
    reader.fail("has operands that do not fit each other");
  }
  const Bytes all = reader.bytes(spec.inputs[0]), whole = reader.bytes(spec.inputs[2]);
  const Bytes labels = static_cast<Bytes>(x.rows) * sizeof(Label);
  const Bytes each = float_bytes(lengths.classes);
  Kernel::Sizes sizes{{all, labels, whole}, {kFloat}};
  const Bytes gradient = float_bytes(reader.count(spec.inputs[2]));
  if (differentiates) sizes.outputs = {kFloat, all, gradient};
  if (biased) {
    if (reader.bytes(spec.inputs[3]) != each) reader.fail("has another bias");
    sizes.inputs.push_back(each);
    if (differentiates) sizes.outputs.push_back(each);
  }
  return std::make_unique<DenseCrossEntropy>(library, sizes, lengths);
}

const KernelType kDenseCrossEntropy{
    "dense_cross_entropy", make_dense_cross_entropy<true>, nullptr, Floats::bfloat16};
const KernelType kDenseCrossEntropyInference{"dense_cross_entropy_inference",
                                             make_dense_cross_entropy<false>,
                                             nullptr,
                                             Floats::bfloat16};

}  // namespace
}  // namespace memcfg
