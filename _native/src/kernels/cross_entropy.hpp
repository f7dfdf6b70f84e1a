// One row of a softmax cross-entropy: its loss and its gradient.
#pragma once

#include "kernels/parallel.hpp"

namespace memcfg {

using Label = std::int32_t;

// The loss of one row; probabilities may be null, or `logits` itself. The greatest is
// subtracted first; exponentials are added up in double. A label out of range reads
// nothing and makes the loss NaN.
double row_loss(const float* logits, Label label, Count classes, float* probabilities);

// (p - onehot(label)) * factor; `row` may be p.
void row_gradient(const float* p, Label label, Count classes, float factor, float* row);

}  // namespace memcfg
