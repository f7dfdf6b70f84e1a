// reduce_sum, reduce_mean, reduce_max along any axes, and the gradient of the last.
//
// Axes that lie side by side and are all kept, or all reduced, are one. What is left
// ends in blocks of contiguous [rows, columns] whose rows are reduced; columns is 1
// where the last axis is. Sums are taken in double. Work is cut by shapes alone.
#include <cmath>
#include <limits>

#include "kernels/axes.hpp"
#include "kernels/columns.hpp"
#include "kernels/function_kernel.hpp"
#include "kernels/functions.hpp"

namespace memcfg {
namespace {

constexpr Count kTile = 512;      // columns of one accumulator
constexpr Count kEnough = 16;     // tasks; with as many, no block is cut
constexpr Count kLeastRows = 32;  // of a piece: bounds scratch to 1/16 of the array

struct Sum {
  using Value = double;
  static constexpr Value kFirst = 0;
  static MEMCFG_INLINE Value join(Value a, Value b) { return a + b; }
};
struct Maximum {  // a NaN wins, as in NumPy
  using Value = float;
  static constexpr Value kFirst = -std::numeric_limits<float>::infinity();
  static MEMCFG_INLINE Value join(Value a, Value b) { return maximum_of(a, b); }
};

// acc[j] joins the elements of column j; rows are `stride` apart.
template <class Join, class Value = typename Join::Value>
MEMCFG_INLINE void join_rows(
    const float* x, Count rows, Count stride, Count columns, Value* acc) {
  Count i = 0;
  for (; i + 4 <= rows; i += 4) {
    const float *a = x + i * stride, *b = a + stride, *c = b + stride, *d = c + stride;
    MEMCFG_INDEPENDENT
    for (Count j = 0; j < columns; ++j) {
      acc[j] = Join::join(acc[j],
                          Join::join(Join::join(Value{a[j]}, Value{b[j]}),
                                     Join::join(Value{c[j]}, Value{d[j]})));
    }
  }
  for (; i < rows; ++i) {
    MEMCFG_INDEPENDENT
    for (Count j = 0; j < columns; ++j) {
      acc[j] = Join::join(acc[j], Value{x[i * stride + j]});
    }
  }
}

// Few columns are joined as periods, which are rows that fill vectors.
template <class Join, class Value = typename Join::Value>
MEMCFG_INLINE void join_block(
    const float* x, Count rows, Count stride, Count columns, Value* acc) {
  const Count width = period(columns), all = rows * columns;
  if (stride >= kPeriod || all < 2 * width) {
    join_rows<Join>(x, rows, stride, columns, acc);
    return;
  }
  Value wide[kPeriodMost];
  std::fill_n(wide, width, Join::kFirst);
  const Count periods = all / width;
  join_rows<Join>(x, periods, width, width, wide);
  const float* rest = x + periods * width;
  join_rows<Join>(rest, 1, width, all - periods * width, wide);
  for (Count j = 0; j < width; ++j) {
    acc[j % columns] = Join::join(acc[j % columns], wide[j]);
  }
}

MEMCFG_VECTORIZED void sum_block(
    const float* x, Count rows, Count stride, Count columns, double* acc) {
  join_block<Sum>(x, rows, stride, columns, acc);
}
MEMCFG_VECTORIZED void maximum_block(
    const float* x, Count rows, Count stride, Count columns, float* acc) {
  join_block<Maximum>(x, rows, stride, columns, acc);
}

// Which elements are reduced to which.
class Reduction {
 public:
  Reduction(const SpecReader& reader, const OperandSpec& operand) {
    count = reader.count(operand);
    const std::size_t rank = operand.shape.size();
    std::vector<bool> reduced(rank, false);
    for (Count axis : reader.integers("axes", -static_cast<Count>(rank))) {
      if (axis < 0) axis += static_cast<Count>(rank);
      const auto place = static_cast<std::size_t>(axis);
      if (place >= rank) reader.fail("has no axis " + std::to_string(axis));
      reduced[place] = true;
    }
    std::size_t i = rank;
    const auto take = [&](bool which) {  // the lengths of equal axes from the end
      Count length = 1;
      for (; i > 0 && (reduced[i - 1] == which || operand.shape[i - 1] == 1); --i) {
        length *= operand.shape[i - 1];
      }
      return length;
    };
    columns = take(false);
    rows = take(true);
    for (Count stride = columns * rows; i > 0;) {
      const bool which = reduced[i - 1];
      const Count length = take(which);
      (which ? others : kept).prepend(length, stride);
      stride *= length;
    }
    tile = columns < kPeriod ? columns : std::min(columns, kTile);
    tiles = (columns + tile - 1) / tile;
  }

  Count results() const noexcept { return kept.count() * columns; }
  Count each() const noexcept { return rows * others.count(); }  // of one result

  // body(first element, columns, first result) for every tile.
  template <class Body>
  void for_tiles(const Body& body) const {
    parallel_for(kept.count() * tiles, count, [&](Count task) {
      const Count group = task / tiles, first = task % tiles * tile;
      body(kept.offset(group) + first,
           std::min(tile, columns - first),
           group * columns + first);
    });
  }

  Count count, rows, columns, tile, tiles;  // elements, or how many there are
  Axes kept, others;                        // the axes before those of a block
};

template <class Value>
using JoinBlock = void (*)(const float*, Count, Count, Count, Value*);

// One reduction in pieces of rows, whose results are joined in their order.
template <class Join, class Finish, class Value = typename Join::Value>
KernelPtr make_reduction(const KernelSpec& spec,
                         JoinBlock<Value> block,
                         Finish finish) {
  const SpecReader reader(spec, {kFloat32}, {kFloat32});
  const Reduction of(reader, spec.inputs[0]);
  const Count each = of.each(), tasks = of.kept.count() * of.tiles;
  const Count least = std::max(kBlock / of.columns, kLeastRows);  // rows of a piece
  const Count most = tasks < kEnough ? kBlocksMost : 1;
  const Count pieces = std::clamp(each / least, Count{1}, most);
  const Count length = (each + pieces - 1) / pieces;
  const auto scale = finish(static_cast<double>(each));
  const Bytes scratch_bytes =
      pieces == 1 ? 0 : static_cast<Bytes>(pieces * of.results()) * sizeof(Value);
  return function_kernel(
      {{float_bytes(of.count)}, {float_bytes(of.results())}},
      scratch_bytes,
      [=](void* const* operands, void* scratch) {
        const float* x = input(operands, 0);
        float* y = output(operands, 1);
        auto* const parts = static_cast<Value*>(scratch);
        const auto join =
            [&](Count begin, Count end, Count from, Count columns, Value* acc) {
              std::fill_n(acc, columns, Join::kFirst);
              while (begin < end) {  // rows, of one block after the other
                const Count row = begin % of.rows;
                const Count some = std::min(of.rows - row, end - begin);
                const Count start =
                    of.others.offset(begin / of.rows) + row * of.columns;
                block(x + from + start, some, of.columns, columns, acc);
                begin += some;
              }
            };
        if (pieces == 1) {
          of.for_tiles([&](Count from, Count columns, Count to) {
            Value acc[kTile];
            join(0, each, from, columns, acc);
            for (Count j = 0; j < columns; ++j) {
              y[to + j] = static_cast<float>(acc[j] * scale);
            }
          });
          return;
        }
        parallel_for(tasks * pieces, of.count, [&](Count task) {
          const Count piece = task % pieces, place = task / pieces;
          const Count group = place / of.tiles, first = place % of.tiles * of.tile;
          const Count begin = std::min(piece * length, each);
          join(begin,
               std::min(begin + length, each),
               of.kept.offset(group) + first,
               std::min(of.tile, of.columns - first),
               parts + piece * of.results() + group * of.columns + first);
        });
        for (Count i = 0; i < of.results(); ++i) {
          Value total = Join::kFirst;
          for (Count piece = 0; piece < pieces; ++piece) {
            total = Join::join(total, parts[piece * of.results() + i]);
          }
          y[i] = static_cast<float>(total * scale);
        }
      });
}

KernelPtr make_sum(const KernelSpec& spec) {
  return make_reduction<Sum>(spec, sum_block, [](double) { return 1.0; });
}
KernelPtr make_mean(const KernelSpec& spec) {
  return make_reduction<Sum>(spec, sum_block, [](double count) { return 1 / count; });
}
KernelPtr make_maximum(const KernelSpec& spec) {
  return make_reduction<Maximum>(spec, maximum_block, [](double) { return 1.0F; });
}

// dx = dy / how many there are, where x is the maximum.
KernelPtr make_maximum_gradient(const KernelSpec& spec) {
  const SpecReader reader(spec, {kFloat32, kFloat32, kFloat32}, {kFloat32});
  const Reduction of(reader, spec.inputs[0]);
  const Bytes all = float_bytes(of.count), one = float_bytes(of.results());
  return function_kernel(
      {{all, one, one}, {all}}, 0, [=](void* const* operands, void*) {
        const float* x = input(operands, 0);
        const float* y = input(operands, 1);
        const float* dy = input(operands, 2);
        float* dx = output(operands, 3);
        of.for_tiles([&](Count from, Count columns, Count to) {
          const auto for_rows = [&](const auto& body) {
            for (Count other = 0; other < of.others.count(); ++other) {
              const Count start = from + of.others.offset(other);
              for (Count row = 0; row < of.rows; ++row) body(start + row * of.columns);
            }
          };
          float share[kTile] = {};
          for_rows([&](Count i) {
            for (Count j = 0; j < columns; ++j)
              share[j] += x[i + j] == y[to + j] ? 1 : 0;
          });
          for (Count j = 0; j < columns; ++j) share[j] = dy[to + j] / share[j];
          for_rows([&](Count i) {
            for (Count j = 0; j < columns; ++j) {
              dx[i + j] = x[i + j] == y[to + j] ? share[j] : 0;
            }
          });
        });
      });
}

const KernelType kReduceSum{"reduce_sum", make_sum};
const KernelType kReduceMean{"reduce_mean", make_mean};
const KernelType kReduceMax{"reduce_max", make_maximum};
const KernelType kReduceMaxGradient{"reduce_max_gradient", make_maximum_gradient};

}  // namespace
}  // namespace memcfg
