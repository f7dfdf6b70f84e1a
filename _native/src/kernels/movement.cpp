// transpose, slice, pad, reverse, broadcast_to: one copy between two strided views.
//
// Axes that lie one after the other in both views become one. The last axis of the
// output is the run: of neighbours it is a memcpy, of one element a fill. Where the
// input's neighbours lie along another axis, the copy goes in tiles of both.
#include <algorithm>
#include <cstring>

#include "kernels/axes.hpp"
#include "kernels/bfloat16.hpp"
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
constexpr std::size_t kMostAxes = 32;

// Goes through the blocks of outer axes in the order of the output.
class Walk {
 public:
  // Pre: at most kMostAxes.
  Walk(const std::vector<Axis>& axes, Count block) : axes_(axes) {
    for (std::size_t i = axes.size(); i-- > 0; block /= axes[i].length) {
      place_[i] = block % axes[i].length;
      from += place_[i] * axes[i].from;
      to += place_[i] * axes[i].to;
    }
  }
  void next() {
    for (std::size_t i = axes_.size(); i-- > 0;) {
      const Axis& axis = axes_[i];
      from += axis.from;
      to += axis.to;
      if (++place_[i] < axis.length) return;
      from -= axis.length * axis.from;
      to -= axis.length * axis.to;
      place_[i] = 0;
    }
  }

  Count from = 0, to = 0;

 private:
  const std::vector<Axis>& axes_;
  Count place_[kMostAxes];
};

class StridedCopy {
 public:
  StridedCopy(const SpecReader& reader, const View& view)
      : from_(view.from), to_(view.to) {
    for (const Axis& axis : view.axes) {
      if (axis.length == 1) continue;
      if (!outer_.empty() && outer_.back().from == axis.length * axis.from &&
          outer_.back().to == axis.length * axis.to) {
        outer_.back() = {outer_.back().length * axis.length, axis.from, axis.to};
      } else {
        outer_.push_back(axis);
      }
    }
    if (outer_.size() > kMostAxes) reader.fail("has too many dimensions");
    const auto take = [&](std::size_t place) {
      const Axis axis = outer_[place];
      outer_.erase(outer_.begin() + static_cast<std::ptrdiff_t>(place));
      return axis;
    };
    if (!outer_.empty()) run_ = take(outer_.size() - 1);
    std::size_t place = outer_.size();
    if (run_.from != 0 && run_.from != 1 && run_.to == 1) {
      for (place = 0; place < outer_.size() && outer_[place].from != 1;) ++place;
    }
    transposed_ = place < outer_.size();
    if (!outer_.empty()) rows_ = take(transposed_ ? place : outer_.size() - 1);
    for (const Axis& axis : outer_) blocks_ *= axis.length;
    const Count side = transposed_ ? kSide : kChunk;
    width_ = std::min(run_.length, side);
    height_ =
        std::min(rows_.length, transposed_ ? side : std::max(side / width_, Count{1}));
    across_ = (run_.length + width_ - 1) / width_;
    down_ = (rows_.length + height_ - 1) / height_;
    if (across_ * down_ == 1) group_ = std::max(kChunk / (width_ * height_), Count{1});
  }

  template <class Item>
  void run(const Item* from, Item* to) const {
    const Count tiles = across_ * down_, groups = (blocks_ + group_ - 1) / group_;
    const Count elements = blocks_ * rows_.length * run_.length;
    parallel_for(groups * tiles, elements, [&](Count task) {
      const Count column = task % across_ * width_;
      const Count row = task / across_ % down_ * height_;
      const Count rows = std::min(height_, rows_.length - row);
      const Count columns = std::min(width_, run_.length - column);
      const Item* x = from + from_ + row * rows_.from + column * run_.from;
      Item* y = to + to_ + row * rows_.to + column * run_.to;
      const Count first = task / tiles * group_;
      const Count last = std::min(first + group_, blocks_);
      Walk walk(outer_, first);
      for (Count block = first; block < last; ++block, walk.next()) {
        if (transposed_) {
          transpose(x + walk.from, y + walk.to, rows, columns);
          continue;
        }
        for (Count i = 0; i < rows; ++i) {
          copy_run(x + walk.from + i * rows_.from, y + walk.to + i * rows_.to, columns);
        }
      }
    });
  }

 private:
  // Reads neighbours and writes neighbours, through a tile that stays in the cache.
  template <class Item>
  void transpose(const Item* x, Item* y, Count rows, Count columns) const {
    Item tile[kSide][kSide];
    for (Count j = 0; j < columns; ++j) {
      for (Count i = 0; i < rows; ++i) tile[i][j] = x[j * run_.from + i];
    }
    for (Count i = 0; i < rows; ++i) std::copy_n(tile[i], columns, y + i * rows_.to);
  }

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
  std::vector<Axis> outer_;
  Axis run_{1, 1, 1}, rows_{1, 0, 0};
  bool transposed_ = false;
  Count width_ = 1, height_ = 1;  // of a tile of rows and a part of the run
  Count across_ = 1, down_ = 1;   // tiles of a block
  Count blocks_ = 1, group_ = 1;  // blocks, and how many of one tile are one task
};

// A number as an element of a type, in the first bytes.
std::uint64_t element(const SpecReader& reader,
                      const std::string& dtype,
                      double value) {
  std::uint64_t bits = 0;
  const auto put = [&](auto item) { std::memcpy(&bits, &item, sizeof item); };
  if (dtype == "float32") {
    put(static_cast<float>(value));
  } else if (dtype == kBfloat16) {
    put(rounded(static_cast<float>(value)));
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
  const StridedCopy copy(reader, view);
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

const KernelType kTranspose{"transpose", make_transpose, Floats::bfloat16};
const KernelType kSlice{"slice", make_slice, Floats::bfloat16};
const KernelType kPad{"pad", make_pad, Floats::bfloat16};
const KernelType kReverse{"reverse", make_reverse, Floats::bfloat16};
const KernelType kBroadcast{"broadcast_to", make_broadcast, Floats::bfloat16};

}  // namespace
}  // namespace memcfg
