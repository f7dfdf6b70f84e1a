#include "kernels/cross_entropy.hpp"

#include <cmath>
#include <limits>

#include "kernels/functions.hpp"
#include "kernels/rows.hpp"

namespace memcfg {
namespace {

bool in_range(Label label, Count classes) {
  return label >= 0 && label < classes;
}

}  // namespace

MEMCFG_VECTORIZED double row_loss(const float* logits,
                                  Label label,
                                  Count classes,
                                  float* probabilities) {
  const float most = greatest(logits, classes);
  const double chosen = in_range(label, classes)
                            ? double{logits[label]} - double{most}
                            : std::numeric_limits<double>::quiet_NaN();
  if (probabilities == nullptr) {
    const double total =
        sum<double>(classes, [=](Count k) { return double{exp_of(logits[k] - most)}; });
    return std::log(total) - chosen;
  }
  MEMCFG_INDEPENDENT
  for (Count k = 0; k < classes; ++k) probabilities[k] = exp_of(logits[k] - most);
  const double total =
      sum<double>(classes, [=](Count k) { return double{probabilities[k]}; });
  const float factor = static_cast<float>(1 / total);
  MEMCFG_INDEPENDENT
  for (Count k = 0; k < classes; ++k) probabilities[k] *= factor;
  return std::log(total) - chosen;
}

MEMCFG_VECTORIZED void row_gradient(
    const float* p, Label label, Count classes, float factor, float* row) {
  const float chosen = in_range(label, classes) ? p[label] : 0;
  MEMCFG_INDEPENDENT
  for (Count k = 0; k < classes; ++k) row[k] = p[k] * factor;
  if (in_range(label, classes)) row[label] = (chosen - 1) * factor;
}

}  // namespace memcfg
