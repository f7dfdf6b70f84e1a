// matmul: products of matrices, or of as many as the leading dimensions say. Its
// gradients are products, too.
#include "kernels/product.hpp"

namespace memcfg {
namespace {

using namespace onednn;

// The last two dimensions of an operand, swapped if `transposed`.
Matrix matrix_of(const SpecReader& reader,
                 const OperandSpec& operand,
                 bool transposed) {
  const std::size_t rank = operand.shape.size();
  if (rank < 2) reader.fail("multiplies arrays of two dimensions or more");
  const Dim rows = reader.narrow(operand.shape[rank - 2], "rows");
  const Dim columns = reader.narrow(operand.shape[rank - 1], "columns");
  Matrix found{rows, columns, columns, 1};
  if (transposed) found = {columns, rows, 1, columns};
  found.batch = reader.narrow(reader.count(operand) / (rows * columns), "matrices");
  found.batch_stride = rows * columns;
  found.type = type_of(reader, operand);
  return found;
}

KernelPtr make_matmul(const KernelSpec& spec, const OneDnn& library) {
  const SpecReader reader(spec, {kAnyDtype, kAnyDtype}, {kAnyDtype});
  const bool transpose_a =
      reader.has("transpose_a") && reader.integer("transpose_a", 0);
  const bool transpose_b =
      reader.has("transpose_b") && reader.integer("transpose_b", 0);
  Matrix a = matrix_of(reader, spec.inputs[0], transpose_a);
  Matrix b = matrix_of(reader, spec.inputs[1], transpose_b);
  const Matrix y = matrix_of(reader, spec.outputs[0], false);
  if (a.columns != b.rows || a.rows != y.rows || b.columns != y.columns ||
      a.batch != y.batch || (b.batch != a.batch && (b.batch != 1 || transpose_a))) {
    reader.fail("multiplies matrices that do not fit");
  }
  if (a.type != b.type || a.type != y.type) reader.fail("has operands of one type");
  const Kernel::Sizes sizes{
      {reader.bytes(spec.inputs[0]), reader.bytes(spec.inputs[1])},
      {reader.bytes(spec.outputs[0])}};
  if (a.batch > 1 && b.batch == 1) {
    a.rows = reader.narrow(a.rows * a.batch, "rows");
    a.batch = 1;
  }
  return std::make_unique<Product>(library, sizes, a, b, 0, 1, y.type);
}

const KernelType kMatmul{"matmul", make_matmul, nullptr, Floats::bfloat16};

}  // namespace
}  // namespace memcfg
