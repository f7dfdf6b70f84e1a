#include "kernels/product.hpp"

namespace memcfg::onednn {

Owned<MemoryDesc> describe(const OneDnn& library, const Matrix& matrix) {
  Shape dims{matrix.rows, matrix.columns};
  Shape strides{matrix.row_stride, matrix.column_stride};
  if (matrix.batch > 1) {
    dims.insert(dims.begin(), matrix.batch);
    strides.insert(strides.begin(), matrix.batch_stride);
  }
  return describe(library, dims, strides, matrix.type);
}

Call make_product(const OneDnn& library,
                  const Matrix& left,
                  const Matrix& right,
                  const Matrix& result,
                  bool biased) {
  const Api& api = library.api();
  const auto a = describe(library, left);
  const auto b = describe(library, right);
  const auto c = describe(library, result);
  const auto bias = describe(library, Matrix{1, result.columns, result.columns, 1});
  PrimitiveDesc* made = nullptr;
  library.check(api.matmul_primitive_desc_create(&made,
                                                 library.engine(),
                                                 a.get(),
                                                 b.get(),
                                                 biased ? bias.get() : nullptr,
                                                 c.get(),
                                                 user_scratchpad(library).get()),
                "choosing a matrix product");
  const Owned<PrimitiveDesc> primitive(made, api.primitive_desc_destroy);
  const Call::Operand x{arg::source, a.get()}, kernel{arg::weights, b.get()};
  const Call::Operand y{arg::destination, c.get()};
  if (biased) return Call(library, made, {x, kernel, y, {arg::bias, bias.get()}});
  return Call(library, made, {x, kernel, y});
}

}  // namespace memcfg::onednn
