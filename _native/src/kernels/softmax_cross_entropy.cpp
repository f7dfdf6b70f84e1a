// Softmax cross-entropy from logits: loss = mean of -log softmax(logits)[label].
//
// The row's maximum is subtracted first; exponentials are added up in double, and the
// mean is taken in double, row after row. A label out of range reads nothing and makes
// the loss NaN.
#include <limits>

#include "kernels/cross_entropy.hpp"
#include "kernels/function_kernel.hpp"
#include "kernels/parallel.hpp"

namespace memcfg {
namespace {

constexpr Count kRowCost = 16;  // one exponential in elements of a plain loop

struct Shape {
  Count rows, classes, cost;

  Shape(const SpecReader& reader, const SpecReader::Rows& logits)
      : rows(logits.rows),
        classes(logits.channels),
        cost(reader.product({rows, classes, kRowCost})) {}
  Bytes logit_bytes() const { return float_bytes(rows * classes); }
  Bytes label_bytes() const { return static_cast<Bytes>(rows) * sizeof(Label); }
};

void mean_loss(const Shape& shape,
               const float* logits,
               const Label* labels,
               float* loss,
               float* probabilities,
               double* row_losses) {
  const Count k = shape.classes;
  parallel_for(shape.rows, shape.cost, [=](Count i) {
    float* row = probabilities == nullptr ? nullptr : probabilities + i * k;
    row_losses[i] = row_loss(logits + i * k, labels[i], k, row);
  });
  double total = 0;
  for (Count i = 0; i < shape.rows; ++i) total += row_losses[i];
  *loss = static_cast<float>(total / static_cast<double>(shape.rows));
}

const Label* labels_of(void* const* operands) {
  return static_cast<const Label*>(operands[1]);
}

Bytes loss_bytes(const Shape& shape) {
  return static_cast<Bytes>(shape.rows) * sizeof(double);
}

// `keeps`: the probabilities are an output, too.
template <bool keeps>
KernelPtr make_softmax_cross_entropy(const KernelSpec& spec) {
  const SpecReader reader =
      keeps ? SpecReader(spec, {kFloat32, kInt32}, {kFloat32, kFloat32})
            : SpecReader(spec, {kFloat32, kInt32}, {kFloat32});
  const Shape shape(reader, reader.rows(spec.inputs[0]));
  const Bytes logits = shape.logit_bytes();
  Kernel::Sizes sizes{{logits, shape.label_bytes()}, {kFloat}};
  if (keeps) sizes.outputs.push_back(logits);
  return function_kernel(
      sizes, loss_bytes(shape), [=](void* const* operands, void* scratch) {
        float* const loss = output(operands, 2);
        float* const kept = keeps ? output(operands, 3) : nullptr;
        auto* const losses = static_cast<double*>(scratch);
        mean_loss(shape, input(operands, 0), labels_of(operands), loss, kept, losses);
      });
}

// dlogits = (probabilities - onehot(label)) / rows.
KernelPtr make_softmax_cross_entropy_gradient(const KernelSpec& spec) {
  const SpecReader reader(spec, {kFloat32, kInt32}, {kFloat32});
  const Shape shape(reader, reader.rows(spec.inputs[0]));
  const Count k = shape.classes;
  const float factor = 1 / static_cast<float>(shape.rows);
  return function_kernel(
      {{shape.logit_bytes(), shape.label_bytes()}, {shape.logit_bytes()}},
      0,
      [=](void* const* operands, void*) {
        const float* probabilities = input(operands, 0);
        const Label* labels = labels_of(operands);
        float* gradient = output(operands, 2);
        parallel_for(shape.rows, shape.rows * k, [=](Count i) {
          row_gradient(probabilities + i * k, labels[i], k, factor, gradient + i * k);
        });
      });
}

// Of each row, without the mean; a row whose label is `ignored` has a loss of 0.
struct Rows {
  Shape shape;
  bool ignores;
  Label ignored;

  Rows(const KernelSpec& spec, const SpecReader& reader)
      : shape(reader, reader.rows(spec.inputs[0])),
        ignores(reader.has("ignored")),
        ignored(ignores ? static_cast<Label>(reader.integer("ignored", kLeast)) : 0) {}
  bool ignore(Label label) const { return ignores && label == ignored; }

 private:
  static constexpr Count kLeast = std::numeric_limits<Label>::min();
};

KernelPtr make_cross_entropy_rows(const KernelSpec& spec) {
  const SpecReader reader(spec, {kFloat32, kInt32}, {kFloat32, kFloat32});
  const Rows of(spec, reader);
  const Bytes logits = of.shape.logit_bytes();
  return function_kernel(
      {{logits, of.shape.label_bytes()}, {float_bytes(of.shape.rows), logits}},
      0,
      [=](void* const* operands, void*) {
        const float* x = input(operands, 0);
        const Label* labels = labels_of(operands);
        float* losses = output(operands, 2);
        float* kept = output(operands, 3);
        const Count k = of.shape.classes;
        parallel_for(of.shape.rows, of.shape.cost, [=](Count i) {
          const double loss = row_loss(x + i * k, labels[i], k, kept + i * k);
          losses[i] = of.ignore(labels[i]) ? 0 : static_cast<float>(loss);
        });
      });
}

// dlogits = (probabilities - onehot(label)) * dy of the row.
KernelPtr make_cross_entropy_rows_gradient(const KernelSpec& spec) {
  const SpecReader reader(spec, {kFloat32, kInt32, kFloat32}, {kFloat32});
  const Rows of(spec, reader);
  const Bytes logits = of.shape.logit_bytes();
  return function_kernel(
      {{logits, of.shape.label_bytes(), float_bytes(of.shape.rows)}, {logits}},
      0,
      [=](void* const* operands, void*) {
        const float* probabilities = input(operands, 0);
        const Label* labels = labels_of(operands);
        const float* dy = input(operands, 2);
        float* gradient = output(operands, 3);
        const Count k = of.shape.classes;
        parallel_for(of.shape.rows, of.shape.rows * k, [=](Count i) {
          const float* p = probabilities + i * k;
          const float factor = of.ignore(labels[i]) ? 0 : dy[i];
          row_gradient(p, labels[i], k, factor, gradient + i * k);
        });
      });
}

const KernelType kSoftmaxCrossEntropy{"softmax_cross_entropy",
                                      make_softmax_cross_entropy<true>};
const KernelType kSoftmaxCrossEntropyInference{"softmax_cross_entropy_inference",
                                               make_softmax_cross_entropy<false>};
const KernelType kSoftmaxCrossEntropyGradient{"softmax_cross_entropy_gradient",
                                              make_softmax_cross_entropy_gradient};
const KernelType kCrossEntropyRows{"cross_entropy_rows", make_cross_entropy_rows};
const KernelType kCrossEntropyRowsGradient{"cross_entropy_rows_gradient",
                                           make_cross_entropy_rows_gradient};

}  // namespace
}  // namespace memcfg
