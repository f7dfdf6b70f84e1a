#include "kernels/product.hpp"

#include <cstring>

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

namespace {

// A product's bias, of each of the result's columns.
Owned<MemoryDesc> describe_bias(const OneDnn& library, const Matrix& result) {
  return describe(library, Matrix{1, result.columns, result.columns, 1});
}

Owned<PrimitiveDesc> choose_product(const OneDnn& library,
                                    const Matrix& left,
                                    const MemoryDesc* right,
                                    const Matrix& result,
                                    bool biased) {
  const Api& api = library.api();
  const auto a = describe(library, left), c = describe(library, result);
  const auto bias = describe_bias(library, result);
  PrimitiveDesc* made = nullptr;
  library.check(api.matmul_primitive_desc_create(&made,
                                                 library.engine(),
                                                 a.get(),
                                                 right,
                                                 biased ? bias.get() : nullptr,
                                                 c.get(),
                                                 user_scratchpad(library).get()),
                "choosing a matrix product");
  return {made, api.primitive_desc_destroy};
}

// Whether a product is one of oneDNN's blocks, which add an element's terms in an order
// that does not depend on the right operand's layout. Its other family copies as it
// goes, and gains nothing from packing.
bool has_blocks(const OneDnn& library, const PrimitiveDesc* primitive) {
  const char* name = nullptr;
  library.check(
      library.api().primitive_desc_query(primitive, query::implementation, 0, &name),
      "naming a matrix product");
  return std::strncmp(name, "brg", 3) == 0;
}

}  // namespace

Call make_product(const OneDnn& library,
                  const Matrix& left,
                  const MemoryDesc* right,
                  const Matrix& result,
                  bool biased) {
  const auto a = describe(library, left), c = describe(library, result);
  const auto bias = describe_bias(library, result);
  const auto made = choose_product(library, left, right, result, biased);
  const Call::Operand x{arg::source, a.get()}, kernel{arg::weights, right};
  const Call::Operand y{arg::destination, c.get()};
  if (biased) return Call(library, made.get(), {x, kernel, y, {arg::bias, bias.get()}});
  return Call(library, made.get(), {x, kernel, y});
}

Call make_product(const OneDnn& library,
                  const Matrix& left,
                  const Matrix& right,
                  const Matrix& result,
                  bool biased) {
  const auto layout = describe(library, right);
  return make_product(library, left, layout.get(), result, biased);
}

Owned<MemoryDesc> packed_layout(const OneDnn& library,
                                const Matrix& left,
                                const Matrix& right,
                                bool biased) {
  const Api& api = library.api();
  Owned<MemoryDesc> none(nullptr, api.memory_desc_destroy);
  const Bytes bytes = float_bytes(right.rows * right.columns);
  // From 256 rows on nothing is gained: what is packed is read from memory as often.
  if (left.rows >= kRowsMost || left.batch != 1 || right.batch != 1 ||
      bytes < kPackedLeast || right.type != data_type::f32) {
    return none;
  }
  const Matrix result{left.rows, right.columns, right.columns, 1};
  const auto plain = describe(library, right);
  const auto any = describe_any(library, {right.rows, right.columns});
  const auto before = choose_product(library, left, plain.get(), result, biased);
  const auto chosen = choose_product(library, left, any.get(), result, biased);
  const MemoryDesc* packed = layout(library, chosen.get(), query::weights);
  if (api.memory_desc_equal(plain.get(), packed) != 0 ||
      !has_blocks(library, before.get()) || !has_blocks(library, chosen.get()) ||
      !is_dense(bytes, api.memory_desc_get_size(packed))) {
    return none;
  }
  MemoryDesc* found = nullptr;
  library.check(api.memory_desc_clone(&found, packed), "describing an array");
  return {found, api.memory_desc_destroy};
}

std::optional<Packing> pack_product(const OneDnn& library,
                                    Kernel::Sizes sizes,
                                    const Matrix& left,
                                    const Matrix& right,
                                    int left_operand,
                                    int right_operand,
                                    bool biased) {
  const auto packed = packed_layout(library, left, right, biased);
  if (!packed) return {};
  const auto place = static_cast<std::size_t>(right_operand);
  const Bytes bytes = sizes.inputs[place];
  sizes.inputs[place] = library.api().memory_desc_get_size(packed.get());
  const Matrix result{left.rows, right.columns, right.columns, 1};
  Call call = make_product(library, left, packed.get(), result, biased);
  std::vector<std::size_t> order(biased ? 4 : 3);  // of the call's operands
  order[static_cast<std::size_t>(left_operand)] = 0;
  order[place] = 1;
  if (biased) order[2] = 3;
  order.back() = 2;
  const auto plain = describe(library, right);
  return pack_operand(
      place,
      library,
      {plain.get(), bytes},
      packed.get(),
      std::make_unique<CallKernel>(sizes, std::move(call), std::move(order)));
}

}  // namespace memcfg::onednn
