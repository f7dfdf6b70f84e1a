// gather: rows of a table; scatter_add, its gradient: rows added to those of a table;
// one_hot. An index out of range reads and adds nothing.
#include <cstring>
#include <limits>

#include "kernels/function_kernel.hpp"
#include "kernels/parallel.hpp"
#include "memcfg/threads.hpp"

namespace memcfg {
namespace {

using Index = std::int32_t;

const Index* indices_of(const void* operand) {
  return static_cast<const Index*>(operand);
}

// A table and the rows that are read from it, or added to it.
struct Table {
  Table(const SpecReader& reader, const OperandSpec& table, const OperandSpec& indices)
      : count(reader.count(indices)) {
    if (table.shape.empty()) reader.fail("needs a table of rows");
    rows = table.shape[0];
    columns = reader.count(table) / rows;
    reader.product({count, columns});
  }
  Bytes table_bytes() const { return float_bytes(rows * columns); }
  Bytes index_bytes() const { return static_cast<Bytes>(count) * sizeof(Index); }
  Bytes row_bytes() const { return float_bytes(count * columns); }

  Count rows, columns, count;
};

KernelPtr make_gather(const KernelSpec& spec) {
  const SpecReader reader(spec, {kFloat32, kInt32}, {kFloat32});
  const Table of(reader, spec.inputs[0], spec.inputs[1]);
  const Kernel::Sizes sizes{{of.table_bytes(), of.index_bytes()}, {of.row_bytes()}};
  const Count some = std::max(kChunk / of.columns, Count{1});
  return function_kernel(sizes, 0, [=](void* const* operands, void*) {
    const float* table = input(operands, 0);
    const Index* indices = indices_of(operands[1]);
    float* y = output(operands, 2);
    parallel_for((of.count + some - 1) / some, of.count * of.columns, [=](Count piece) {
      const Count end = std::min((piece + 1) * some, of.count);
      for (Count i = piece * some; i < end; ++i) {
        float* row = y + i * of.columns;
        const Count index = indices[i];
        if (index >= 0 && index < of.rows) {
          std::memcpy(row, table + index * of.columns, float_bytes(of.columns));
        } else {
          std::fill_n(row, of.columns, std::numeric_limits<float>::quiet_NaN());
        }
      }
    });
  });
}

// Each part of the table reads all indices and adds, in their order, what is its own:
// the bits do not depend on how many parts there are, one a thread.
MEMCFG_VECTORIZED void add_rows(const Table& of,
                                const Index* indices,
                                const float* dy,
                                Count first,
                                Count last,
                                float* table) {
  std::fill_n(table + first * of.columns, (last - first) * of.columns, 0.0F);
  for (Count i = 0; i < of.count; ++i) {
    const Count index = indices[i];
    if (index < first || index >= last) continue;
    const float* from = dy + i * of.columns;
    float* to = table + index * of.columns;
    MEMCFG_INDEPENDENT
    for (Count j = 0; j < of.columns; ++j) to[j] += from[j];
  }
}

KernelPtr make_scatter_add(const KernelSpec& spec) {
  const SpecReader reader(spec, {kInt32, kFloat32}, {kFloat32});
  const Table of(reader, spec.outputs[0], spec.inputs[0]);
  const Kernel::Sizes sizes{{of.index_bytes(), of.row_bytes()}, {of.table_bytes()}};
  const Count work = reader.product({of.count + of.rows, of.columns});
  return function_kernel(sizes, 0, [=](void* const* operands, void*) {
    const Index* indices = indices_of(operands[0]);
    const float* dy = input(operands, 1);
    float* table = output(operands, 2);
    const Count threads = work < kParallelElements ? 1 : max_threads();
    const Count parts = std::min(threads, of.rows);
    parallel_for(parts, work, [=](Count part) {
      const Count first = part * of.rows / parts;
      add_rows(of, indices, dy, first, (part + 1) * of.rows / parts, table);
    });
  });
}

KernelPtr make_one_hot(const KernelSpec& spec) {
  const SpecReader reader(spec, {kInt32}, {kFloat32});
  const Count count = reader.count(spec.inputs[0]);
  const Count depth = reader.integer("depth", 1);
  const Count all = reader.product({count, depth});
  const Bytes index_bytes = static_cast<Bytes>(count) * sizeof(Index);
  return function_kernel(
      {{index_bytes}, {float_bytes(all)}}, 0, [=](void* const* operands, void*) {
        const Index* indices = indices_of(operands[0]);
        float* y = output(operands, 1);
        parallel_for(count, all, [=](Count i) {
          float* row = y + i * depth;
          std::fill_n(row, depth, 0.0F);
          if (indices[i] >= 0 && indices[i] < depth) row[indices[i]] = 1;
        });
      });
}

const KernelType kGather{"gather", make_gather};
const KernelType kScatterAdd{"scatter_add", make_scatter_add};
const KernelType kOneHot{"one_hot", make_one_hot};

}  // namespace
}  // namespace memcfg
