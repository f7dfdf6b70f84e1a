// transpose, slice, pad, reverse, broadcast_to: one copy between two strided views.
//
// Axes that lie one after the other in both views become one. The last axis of the
// output is the run: of neighbours it is a memcpy, of one element a fill. Where the
// input's neighbours lie along another axis, the copy goes in tiles of both.
#include <algorithm>
#include <cstring>

#include "kernels/axes.hpp"
#include "kernels/function_kernel.hpp"
#include "kernels/parallel.hpp"

namespace memcfg {
namespace {

struct Axis {
  Count length, from, to;  // strides, in elements
};

// What is copied: element `from + sum(index * axis.from)` to the same of `to`.
struct View {
  std::vector<Axis> axes;
  Count from = 0, to = 0;
};

constexpr Count kSide = 32;  // of a tile where the copy is a transposition

class StridedCopy {
 public:
  explicit StridedCopy(const View& view) : from_(view.from), to_(view.to) {
    std::vector<Axis> axes;
    for (const Axis& axis : view.axes) {
      if (axis.length == 1) continue;
      if (!axes.empty() && axes.back().from == axis.length * axis.from &&
          axes.back().to == axis.length * axis.to) {
        axes.back() = {axes.back().length * axis.length, axis.from, axis.to};
      } else {
        axes.push_back(axis);
      }
    }
    const auto take = [&](std::size_t place) {
      const Axis axis = axes[place];
      axes.erase(axes.begin() + static_cast<std::ptrdiff_t>(place));
      return axis;
    };
    if (!axes.empty()) run_ = take(axes.size() - 1);
    std::size_t place = axes.size();
    if (run_.from != 0 && run_.from != 1) {
      for (place = 0; place < axes.size() && axes[place].from != 1;) ++place;
    }
    const bool transposed = place < axes.size();
    if (!axes.empty()) rows_ = take(transposed ? place : axes.size() - 1);
    for (auto axis = axes.rbegin(); axis != axes.rend(); ++axis) {
      outer_from_.prepend(axis->length, axis->from);
      outer_to_.prepend(axis->length, axis->to);
    }
    const Count side = transposed ? kSide : kChunk;
    width_ = std::min(run_.length, side);
    height_ =
        std::min(rows_.length, transposed ? side : std::max(side / width_, Count{1}));
  }

  template <class Item>
  void run(const Item* from, Item* to) const {
    const Count across = (run_.length + width_ - 1) / width_;
    const Count down = (rows_.length + height_ - 1) / height_;
    const Count outer = outer_from_.count();
    parallel_for(
        outer * down * across, outer * rows_.length * run_.length, [&](Count task) {
          const Count column = task % across * width_;
          const Count row = task / across % down * height_;
          const Count block = task / across / down;
          const Count rows = std::min(height_, rows_.length - row);
          const Count columns = std::min(width_, run_.length - column);
          const Item* x = from + from_ + outer_from_.offset(block) + row * rows_.from +
                          column * run_.from;
          Item* y =
              to + to_ + outer_to_.offset(block) + row * rows_.to + column * run_.to;
          for (Count i = 0; i < rows; ++i) {
            copy_run(x + i * rows_.from, y + i * rows_.to, columns);
          }
        });
  }

 private:
  template <class Item>
  void copy_run(const Item* x, Item* y, Count count) const {
    if (run_.from == 1 && run_.to == 1) {
      std::memcpy(y, x, static_cast<std::size_t>(count) * sizeof(Item));
    } else if (run_.from == 0 && run_.to == 1) {
      std::fill_n(y, count, *x);
    } else if (run_.to == 1) {
      for (Count j = 0; j < count; ++j) y[j] = x[j * run_.from];
    } else {
      for (Count j = 0; j < count; ++j) y[j * run_.to] = x[j * run_.from];
    }
  }

  Count from_, to_;
  Axis run_{1, 1, 1}, rows_{1, 0, 0};
  Count width_ = 1, height_ = 1;
  Axes outer_from_, outer_to_;
};

// A number as an element of a type, in the first bytes.
std::uint64_t element(const SpecReader& reader,
                      const std::string& dtype,
                      double value) {
  std::uint64_t bits = 0;
  const auto put = [&](auto item) { std::memcpy(&bits, &item, sizeof item); };
  if (dtype == "float32") {
    put(static_cast<float>(value));
  } else if (dtype == "float64") {
    put(value);
  } else if (dtype == "int32") {
    put(static_cast<std::int32_t>(value));
  } else if (dtype == "int64") {
    put(static_cast<std::int64_t>(value));
  } else if (dtype == "uint8" || dtype == "bool") {
    put(static_cast<std::uint8_t>(value));
  } else {
    reader.fail("has no operands of type " + dtype);
  }
  return bits;
}

template <class Item>
KernelPtr make_typed(const Kernel::Sizes& sizes,
                     const StridedCopy& copy,
                     bool fills,
                     std::uint64_t bits) {
  Item value;
  std::memcpy(&value, &bits, sizeof value);
  const Count count = static_cast<Count>(sizes.outputs[0] / sizeof(Item));
  return function_kernel(sizes, 0, [=](void* const* operands, void*) {
    auto* const to = static_cast<Item*>(operands[1]);
    if (fills) {
      parallel_chunks(count, kChunk, [=](Count begin, Count length) {
        std::fill_n(to + begin, length, value);
      });
    }
    copy.run(static_cast<const Item*>(operands[0]), to);
  });
}

// `fills`: the output has elements that are not copies but `bits`.
KernelPtr make_copy(const KernelSpec& spec,
                    const SpecReader& reader,
                    const View& view,
                    bool fills = false,
                    std::uint64_t bits = 0) {
  if (spec.inputs[0].dtype != spec.outputs[0].dtype) reader.fail("keeps the type");
  const Kernel::Sizes sizes{{reader.bytes(spec.inputs[0])},
                            {reader.bytes(spec.outputs[0])}};
  const StridedCopy copy(view);
  const Bytes item = sizes.inputs[0] / static_cast<Bytes>(reader.count(spec.inputs[0]));
  if (item == 1) return make_typed<std::uint8_t>(sizes, copy, fills, bits);
  if (item == 2) return make_typed<std::uint16_t>(sizes, copy, fills, bits);
  if (item == 4) return make_typed<std::uint32_t>(sizes, copy, fills, bits);
  return make_typed<std::uint64_t>(sizes, copy, fills, bits);
}

// An input and an output with their contiguous strides.
struct Pair {
  explicit Pair(const KernelSpec& spec)
      : reader(spec, {kAnyDtype}, {kAnyDtype}),
        x(spec.inputs[0].shape),
        y(spec.outputs[0].shape),
        from(strides_of(x)),
        to(strides_of(y)) {
    reader.count(spec.inputs[0]);
    reader.count(spec.outputs[0]);
  }
  void same_rank() const {
    if (x.size() != y.size()) reader.fail("keeps the number of dimensions");
  }
  std::vector<Count> list(const char* name, Count least) const {
    return reader.list(name, x.size(), least);
  }
  // How far apart elements are taken, or put; one by one when left out.
  std::vector<Count> steps(const char* name) const {
    return reader.has(name) ? list(name, 1) : std::vector<Count>(x.size(), 1);
  }

  SpecReader reader;
  const std::vector<Count>&x, &y;
  std::vector<Count> from, to;
};

KernelPtr make_transpose(const KernelSpec& spec) {
  const Pair pair(spec);
  pair.same_rank();
  const auto axes = pair.list("axes", 0);
  std::vector<bool> taken(axes.size(), false);
  View view;
  for (std::size_t i = 0; i < axes.size(); ++i) {
    const auto axis = static_cast<std::size_t>(axes[i]);
    if (axis >= axes.size() || taken[axis] || pair.x[axis] != pair.y[i]) {
      pair.reader.fail("needs axes that are a permutation of the input's");
    }
    taken[axis] = true;
    view.axes.push_back({pair.y[i], pair.from[axis], pair.to[i]});
  }
  return make_copy(spec, pair.reader, view);
}

KernelPtr make_slice(const KernelSpec& spec) {
  const Pair pair(spec);
  pair.same_rank();
  const auto begin = pair.list("begin", 0), steps = pair.steps("strides");
  View view;
  for (std::size_t i = 0; i < begin.size(); ++i) {
    if (begin[i] + (pair.y[i] - 1) * steps[i] >= pair.x[i]) {
      pair.reader.fail("needs a slice that lies in the input");
    }
    view.axes.push_back({pair.y[i], pair.from[i] * steps[i], pair.to[i]});
    view.from += begin[i] * pair.from[i];
  }
  return make_copy(spec, pair.reader, view);
}

KernelPtr make_pad(const KernelSpec& spec) {
  const Pair pair(spec);
  pair.same_rank();
  const auto before = pair.list("before", 0), steps = pair.steps("strides");
  View view;
  for (std::size_t i = 0; i < before.size(); ++i) {
    if (before[i] + (pair.x[i] - 1) * steps[i] >= pair.y[i]) {
      pair.reader.fail("needs an output that holds the input");
    }
    view.axes.push_back({pair.x[i], pair.from[i], pair.to[i] * steps[i]});
    view.to += before[i] * pair.to[i];
  }
  const std::uint64_t bits =
      element(pair.reader, spec.outputs[0].dtype, pair.reader.real("value"));
  return make_copy(spec, pair.reader, view, pair.x != pair.y, bits);
}

KernelPtr make_reverse(const KernelSpec& spec) {
  const Pair pair(spec);
  if (pair.x != pair.y) pair.reader.fail("keeps the shape");
  const auto rank = static_cast<Count>(pair.x.size());
  std::vector<Count> signs(pair.x.size(), 1);
  for (Count axis : pair.reader.integers("axes", -rank)) {
    if (axis >= rank) pair.reader.fail("has no axis " + std::to_string(axis));
    signs[static_cast<std::size_t>(axis < 0 ? axis + rank : axis)] = -1;
  }
  View view;
  for (std::size_t i = 0; i < signs.size(); ++i) {
    view.axes.push_back({pair.x[i], signs[i] * pair.from[i], pair.to[i]});
    if (signs[i] < 0) view.from += (pair.x[i] - 1) * pair.from[i];
  }
  return make_copy(spec, pair.reader, view);
}

KernelPtr make_broadcast(const KernelSpec& spec) {
  const Pair pair(spec);
  if (pair.x.size() > pair.y.size()) pair.reader.fail("drops no dimension");
  const std::size_t more = pair.y.size() - pair.x.size();
  View view;
  for (std::size_t i = 0; i < pair.y.size(); ++i) {
    const Count length = i < more ? 1 : pair.x[i - more];
    if (length != 1 && length != pair.y[i]) {
      pair.reader.fail("needs lengths that are equal or 1");
    }
    view.axes.push_back({pair.y[i], length == 1 ? 0 : pair.from[i - more], pair.to[i]});
  }
  return make_copy(spec, pair.reader, view);
}

const KernelType kTranspose{"transpose", make_transpose};
const KernelType kSlice{"slice", make_slice};
const KernelType kPad{"pad", make_pad};
const KernelType kReverse{"reverse", make_reverse};
const KernelType kBroadcast{"broadcast_to", make_broadcast};

}  // namespace
}  // namespace memcfg
