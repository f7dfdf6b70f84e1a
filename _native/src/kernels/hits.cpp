// Which rows are right: argmax, hits and correct_count by the first maximum or the
// greatest k, and threshold_counts of how many are above each threshold.
//
// As in NumPy's argmax, a NaN counts as the maximum.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "kernels/function_kernel.hpp"
#include "kernels/parallel.hpp"

namespace memcfg {
namespace {

using Label = std::int32_t;

Count first_maximum(const float* row, Count classes) {
  Count best = 0;
  for (Count k = 1; k < classes; ++k) {
    const bool first_nan = std::isnan(row[k]) && !std::isnan(row[best]);
    if (row[k] > row[best] || first_nan) best = k;
  }
  return best;
}

// Whether fewer than k of the row are greater than its element at the label.
bool among_greatest(const float* row, Count classes, Label label, Count k) {
  if (label < 0 || label >= classes || std::isnan(row[label])) return false;
  Count greater = 0;
  for (Count i = 0; i < classes; ++i) greater += row[i] > row[label];
  return greater < k;
}

Bytes label_bytes(Count rows) {
  return static_cast<Bytes>(rows) * sizeof(Label);
}

const Label* labels_of(void* const* operands, int index) {
  return static_cast<const Label*>(operands[index]);
}

KernelPtr make_argmax(const KernelSpec& spec) {
  const SpecReader reader(spec, {kFloat32}, {kInt32});
  const SpecReader::Rows of = reader.rows(spec.inputs[0]);
  return function_kernel(
      {{float_bytes(of.count)}, {label_bytes(of.rows)}},
      0,
      [=](void* const* operands, void*) {
        const float* x = input(operands, 0);
        auto* y = static_cast<Label*>(operands[1]);
        parallel_for(of.rows, of.count, [=](Count i) {
          y[i] = static_cast<Label>(first_maximum(x + i * of.channels, of.channels));
        });
      });
}

KernelPtr make_hits(const KernelSpec& spec) {
  const SpecReader reader(spec, {kFloat32, kInt32}, {kFloat32});
  const SpecReader::Rows of = reader.rows(spec.inputs[0]);
  const Count k = reader.integer("k", 0);  // 0: the first maximum
  return function_kernel(
      {{float_bytes(of.count), label_bytes(of.rows)}, {float_bytes(of.rows)}},
      0,
      [=](void* const* operands, void*) {
        const float* x = input(operands, 0);
        const Label* labels = labels_of(operands, 1);
        float* y = output(operands, 2);
        parallel_for(of.rows, of.count, [=](Count i) {
          const float* row = x + i * of.channels;
          const bool hit = k == 0 ? first_maximum(row, of.channels) == labels[i]
                                  : among_greatest(row, of.channels, labels[i], k);
          y[i] = hit ? 1.0F : 0.0F;
        });
      });
}

KernelPtr make_correct_count(const KernelSpec& spec) {
  const SpecReader reader(spec, {kFloat32, kInt32}, {kFloat32});
  const SpecReader::Rows of = reader.rows(spec.inputs[0]);
  return function_kernel({{float_bytes(of.count), label_bytes(of.rows)}, {kFloat}},
                         0,
                         [=](void* const* operands, void*) {
                           const float* x = input(operands, 0);
                           const Label* labels = labels_of(operands, 1);
                           Count correct = 0;
                           for (Count i = 0; i < of.rows; ++i) {
                             correct += first_maximum(x + i * of.channels,
                                                      of.channels) == labels[i];
                           }
                           *output(operands, 2) = static_cast<float>(correct);
                         });
}

// With weights, each is of an equal part of the elements. The thresholds are
// nonnegative floats in ascending order, by their bits. Entry 0 of an output is the
// weight of all, entry j + 1 of those above threshold j.
std::vector<float> thresholds_of(const SpecReader& reader) {
  std::vector<float> thresholds;
  for (const Count bits : reader.integers("threshold_bits", 0)) {
    const auto narrow = static_cast<std::uint32_t>(bits);
    float threshold;
    std::memcpy(&threshold, &narrow, sizeof threshold);
    thresholds.push_back(threshold);
  }
  if (!std::is_sorted(thresholds.begin(), thresholds.end())) {
    reader.fail("needs thresholds in ascending order");
  }
  return thresholds;
}

KernelPtr make_threshold_counts(const KernelSpec& spec) {
  const bool weighted = spec.inputs.size() > 2;
  const SpecReader reader =
      weighted ? SpecReader(spec, {kFloat32, kFloat32, kFloat32}, {kFloat32, kFloat32})
               : SpecReader(spec, {kFloat32, kFloat32}, {kFloat32, kFloat32});
  const Count count = reader.count(spec.inputs[0]);
  const Count weights = weighted ? reader.count(spec.inputs[2]) : 1;
  if (count % weights != 0) reader.fail("needs a weight for each of equal parts");
  const Count part = count / weights;
  const std::vector<float> thresholds = thresholds_of(reader);
  const std::size_t places = thresholds.size() + 1;
  const Bytes bytes = float_bytes(count);
  const Bytes counts = places * kFloat;
  Kernel::Sizes sizes{{bytes, bytes}, {counts, counts}};
  if (weighted) sizes.inputs.push_back(float_bytes(weights));
  return function_kernel(
      sizes, 2 * places * sizeof(double), [=](void* const* operands, void* scratch) {
        const float* truth = input(operands, 0);
        const float* x = input(operands, 1);
        const float* weight = weighted ? input(operands, 2) : nullptr;
        auto* const sums = static_cast<double*>(scratch);
        std::fill_n(sums, 2 * places, 0.0);
        for (Count i = 0; i < count; ++i) {  // x is above so many; a NaN above none
          const auto above =
              std::isnan(x[i])
                  ? thresholds.begin()
                  : std::lower_bound(thresholds.begin(), thresholds.end(), x[i]);
          const auto place = static_cast<std::size_t>(above - thresholds.begin());
          sums[(truth[i] != 0 ? 0 : places) + place] +=
              weighted ? double{weight[i / part]} : 1.0;
        }
        for (int side = 0; side < 2; ++side) {
          const double* from = sums + static_cast<std::size_t>(side) * places;
          float* to = output(operands, (weighted ? 3 : 2) + side);
          double total = 0;
          for (std::size_t j = places; j-- > 0;) {
            total += from[j];
            to[j] = static_cast<float>(total);
          }
        }
      });
}

const KernelType kArgmax{"argmax", make_argmax};
const KernelType kHits{"hits", make_hits};
const KernelType kCorrectCount{"correct_count", make_correct_count};
const KernelType kThresholdCounts{"threshold_counts", make_threshold_counts};

}  // namespace
}  // namespace memcfg
