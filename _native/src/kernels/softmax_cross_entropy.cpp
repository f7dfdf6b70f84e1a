// Softmax cross-entropy from logits: loss = mean of -log softmax(logits)[label].
//
// The row's maximum is subtracted first; the mean is taken in double, row after
// row. A label out of range reads nothing and makes the loss NaN.
#include <cmath>
#include <limits>

#include "kernels/function_kernel.hpp"
#include "kernels/parallel.hpp"

namespace memcfg {
namespace {

using Label = std::int32_t;

constexpr Count kRowCost = 16;  // one exponential in elements of a plain loop

struct Shape {
  Count rows, classes, cost;

  explicit Shape(const SpecReader& reader, const OperandSpec& logits) {
    const auto& shape = reader.shape(logits, 2);
    rows = shape[0];
    classes = shape[1];
    cost = reader.product({rows, classes, kRowCost});
  }
  Bytes logit_bytes() const { return float_bytes(rows * classes); }
  Bytes label_bytes() const { return static_cast<Bytes>(rows) * sizeof(Label); }
};

bool in_range(Label label, Count classes) {
  return label >= 0 && label < classes;
}

// The loss of one row; probabilities may be null, or `logits` itself.
double row_loss(const float* logits, Label label, Count classes, float* probabilities) {
  float most = logits[0];
  for (Count k = 1; k < classes; ++k) most = logits[k] > most ? logits[k] : most;
  const double chosen = in_range(label, classes)
                            ? double{logits[label]} - double{most}
                            : std::numeric_limits<double>::quiet_NaN();
  double total = 0;
  for (Count k = 0; k < classes; ++k) {
    const float value = std::exp(logits[k] - most);
    total += value;
    if (probabilities != nullptr) probabilities[k] = value;
  }
  if (probabilities != nullptr) {
    const float factor = static_cast<float>(1 / total);
    for (Count k = 0; k < classes; ++k) probabilities[k] *= factor;
  }
  return std::log(total) - chosen;
}

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
  const Shape shape(reader, spec.inputs[0]);
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
  const Shape shape(reader, spec.inputs[0]);
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
          const float* p = probabilities + i * k;
          float* row = gradient + i * k;
          const Label label = labels[i];
          const float chosen = in_range(label, k) ? p[label] : 0;
          MEMCFG_INDEPENDENT
          for (Count j = 0; j < k; ++j) row[j] = p[j] * factor;
          if (in_range(label, k)) row[label] = (chosen - 1) * factor;
        });
      });
}

const KernelType kSoftmaxCrossEntropy{"softmax_cross_entropy",
                                      make_softmax_cross_entropy<true>};
const KernelType kSoftmaxCrossEntropyInference{"softmax_cross_entropy_inference",
                                               make_softmax_cross_entropy<false>};
const KernelType kSoftmaxCrossEntropyGradient{"softmax_cross_entropy_gradient",
                                              make_softmax_cross_entropy_gradient};

}  // namespace
}  // namespace memcfg
