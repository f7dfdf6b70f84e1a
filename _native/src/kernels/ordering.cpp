// order: the indices that sort along the last axis; take_along and put_along: elements
// by their indices along it, and elements added at them. One thread computes a row, in
// the order of the row, so that bits do not depend on the threads.
#include <algorithm>
#include <cstdint>
#include <limits>

#include "kernels/function_kernel.hpp"
#include "kernels/parallel.hpp"

namespace memcfg {
namespace {

using Index = std::int32_t;

Bytes index_bytes(Count count) {
  return static_cast<Bytes>(count) * sizeof(Index);
}

// Whether x comes before y: NaN is the largest number.
bool is_before(float x, float y) {
  return x < y || (y != y && x == x);
}

// Sorts in place: no memory is taken.
void sort_row(const float* x, Count length, bool descending, Index* y) {
  for (Count i = 0; i < length; ++i) y[i] = static_cast<Index>(i);
  std::sort(y, y + length, [=](Index i, Index j) {
    const float a = descending ? x[j] : x[i], b = descending ? x[i] : x[j];
    if (is_before(a, b)) return true;
    return !is_before(b, a) && i < j;
  });
}

KernelPtr make_order(const KernelSpec& spec) {
  const SpecReader reader(spec, {kFloat32}, {kInt32});
  const SpecReader::Rows of = reader.rows(spec.inputs[0]);
  if (of.channels > std::numeric_limits<Index>::max()) reader.fail("has rows too long");
  const bool descending =
      reader.has("descending") && reader.integer("descending", 0) != 0;
  const Kernel::Sizes sizes{{float_bytes(of.count)}, {index_bytes(of.count)}};
  return function_kernel(sizes, 0, [=](void* const* operands, void*) {
    const float* x = input(operands, 0);
    Index* y = static_cast<Index*>(operands[1]);
    parallel_for(of.rows, of.count * 16, [=](Count row) {
      const Count first = row * of.channels;
      sort_row(x + first, of.channels, descending, y + first);
    });
  });
}

// Rows of `length` elements, and `taken` indices for each.
struct Along {
  Along(const SpecReader& reader, const OperandSpec& row, const OperandSpec& indices)
      : rows(reader.rows(row).rows),
        length(reader.rows(row).channels),
        taken(reader.rows(indices).channels) {
    if (reader.rows(indices).rows != rows) reader.fail("needs indices for each row");
  }
  // A place in a row, or -1.
  Count place(Index index) const {
    const Count found = index < 0 ? index + length : index;
    return found >= 0 && found < length ? found : -1;
  }

  Count rows, length, taken;
};

KernelPtr make_take_along(const KernelSpec& spec) {
  const SpecReader reader(spec, {kFloat32, kInt32}, {kFloat32});
  const Along of(reader, spec.inputs[0], spec.inputs[1]);
  const Count all = of.rows * of.taken;
  const Kernel::Sizes sizes{{float_bytes(of.rows * of.length), index_bytes(all)},
                            {float_bytes(all)}};
  return function_kernel(sizes, 0, [=](void* const* operands, void*) {
    const float* x = input(operands, 0);
    const Index* indices = static_cast<const Index*>(operands[1]);
    float* y = output(operands, 2);
    parallel_for(of.rows, all, [=](Count row) {
      for (Count i = row * of.taken; i < (row + 1) * of.taken; ++i) {
        const Count place = of.place(indices[i]);
        y[i] = place < 0 ? std::numeric_limits<float>::quiet_NaN()
                         : x[row * of.length + place];
      }
    });
  });
}

KernelPtr make_put_along(const KernelSpec& spec) {
  const SpecReader reader(spec, {kInt32, kFloat32}, {kFloat32});
  const Along of(reader, spec.outputs[0], spec.inputs[0]);
  const Count all = of.rows * of.taken;
  const Kernel::Sizes sizes{{index_bytes(all), float_bytes(all)},
                            {float_bytes(of.rows * of.length)}};
  return function_kernel(sizes, 0, [=](void* const* operands, void*) {
    const Index* indices = static_cast<const Index*>(operands[0]);
    const float* values = input(operands, 1);
    float* y = output(operands, 2);
    parallel_for(of.rows, all + of.rows * of.length, [=](Count row) {
      float* to = y + row * of.length;
      std::fill_n(to, of.length, 0.0F);
      for (Count i = row * of.taken; i < (row + 1) * of.taken; ++i) {
        const Count place = of.place(indices[i]);
        if (place >= 0) to[place] += values[i];
      }
    });
  });
}

const KernelType kOrder{"order", make_order};
const KernelType kTakeAlong{"take_along", make_take_along};
const KernelType kPutAlong{"put_along", make_put_along};

}  // namespace
}  // namespace memcfg
