// correct_count: how many rows have their first maximum at the label. As in NumPy's
// argmax, a NaN counts as the maximum.
#include <cmath>

#include "kernels/function_kernel.hpp"

namespace memcfg {
namespace {

Count first_maximum(const float* row, Count classes) {
  Count best = 0;
  for (Count k = 1; k < classes; ++k) {
    const bool first_nan = std::isnan(row[k]) && !std::isnan(row[best]);
    if (row[k] > row[best] || first_nan) best = k;
  }
  return best;
}

KernelPtr make_correct_count(const KernelSpec& spec) {
  const SpecReader reader(spec, {kFloat32, kInt32}, {kFloat32});
  const auto [rows, classes, count] = reader.rows(spec.inputs[0]);
  const Bytes logit_bytes = float_bytes(count);
  const Bytes label_bytes = static_cast<Bytes>(rows) * sizeof(std::int32_t);
  return function_kernel(
      {{logit_bytes, label_bytes}, {kFloat}},
      0,
      [rows = rows, classes = classes](void* const* operands, void*) {
        const float* logits = input(operands, 0);
        const auto* labels = static_cast<const std::int32_t*>(operands[1]);
        Count correct = 0;
        for (Count i = 0; i < rows; ++i) {
          correct += first_maximum(logits + i * classes, classes) == labels[i];
        }
        *output(operands, 2) = static_cast<float>(correct);
      });
}

const KernelType kCorrectCount{"correct_count", make_correct_count};

}  // namespace
}  // namespace memcfg
