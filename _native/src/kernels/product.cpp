#include "kernels/product.hpp"

#include <cstring>
#include <string>
#include <vector>

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

const char* implementation(const OneDnn& library, const PrimitiveDesc* primitive) {
  const char* name = nullptr;
  library.check(
      library.api().primitive_desc_query(primitive, query::implementation, 0, &name),
      "naming a matrix product");
  return name;
}

// Whether a product is one of oneDNN's blocks, which add an element's terms in an order
// that does not depend on the right operand's layout. Its other family copies as it
// goes, and gains nothing from packing.
bool has_blocks(const OneDnn& library, const PrimitiveDesc* primitive) {
  return std::strncmp(implementation(library, primitive), "brg", 3) == 0;
}

}  // namespace

Owned<PrimitiveDesc> choose_product(const OneDnn& library,
                                    const Matrix& left,
                                    const MemoryDesc* right,
                                    const Matrix& result,
                                    Epilogue epilogue) {
  const Api& api = library.api();
  const auto a = describe(library, left), c = describe(library, result);
  const auto bias = describe_bias(library, result);
  const auto attributes = epilogue.relu ? with_relu(library) : user_scratchpad(library);
  PrimitiveDesc* made = nullptr;
  library.check(api.matmul_primitive_desc_create(&made,
                                                 library.engine(),
                                                 a.get(),
                                                 right,
                                                 epilogue.bias ? bias.get() : nullptr,
                                                 c.get(),
                                                 attributes.get()),
                "choosing a matrix product");
  return {made, api.primitive_desc_destroy};
}

bool fuses_relu(const OneDnn& library,
                const Matrix& left,
                const MemoryDesc* right,
                const Matrix& result,
                Epilogue epilogue) {
  const auto name = [&](bool relu) {
    const Epilogue each{epilogue.bias, relu};
    const auto made = choose_product(library, left, right, result, each);
    return std::string(implementation(library, made.get()));
  };
  return name(true) == name(false);
}

void apply_relu(void* y, Count count, int type) {
  parallel_chunks(count, kChunk, [=](Count begin, Count length) {
    if (type == data_type::bf16) {
      relu_in_place(static_cast<Bfloat16*>(y) + begin, length);
    } else {
      relu_in_place(static_cast<float*>(y) + begin, length);
    }
  });
}

Call make_product(const OneDnn& library,
                  const Matrix& left,
                  const MemoryDesc* right,
                  const Matrix& result,
                  Epilogue epilogue) {
  const auto a = describe(library, left), c = describe(library, result);
  const auto bias = describe_bias(library, result);
  const auto made = choose_product(library, left, right, result, epilogue);
  std::vector<Call::Operand> operands{
      {arg::source, a.get()}, {arg::weights, right}, {arg::destination, c.get()}};
  if (epilogue.bias) operands.push_back({arg::bias, bias.get()});
  const Shape ones(result.batch > 1 ? 3 : 2, 1);
  const auto slope = describe(library, ones, ones);
  if (epilogue.relu) operands.push_back({arg::slope_of_post_op(0), slope.get()});
  return Call(library, made.get(), operands);
}

Call make_product(const OneDnn& library,
                  const Matrix& left,
                  const Matrix& right,
                  const Matrix& result,
                  Epilogue epilogue) {
  const auto layout = describe(library, right);
  return make_product(library, left, layout.get(), result, epilogue);
}

Owned<MemoryDesc> packed_layout(const OneDnn& library,
                                const Matrix& left,
                                const Matrix& right,
                                Epilogue epilogue) {
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
  const auto before = choose_product(library, left, plain.get(), result, epilogue);
  const auto chosen = choose_product(library, left, any.get(), result, epilogue);
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
                                    Epilogue epilogue) {
  const auto packed = packed_layout(library, left, right, epilogue);
  if (!packed) return {};
  const auto place = static_cast<std::size_t>(right_operand);
  const Bytes bytes = sizes.inputs[place];
  sizes.inputs[place] = library.api().memory_desc_get_size(packed.get());
  const Matrix result{left.rows, right.columns, right.columns, 1};
  if (epilogue.relu && !fuses_relu(library, left, packed.get(), result, epilogue)) {
    return {};
  }
  Call call = make_product(library, left, packed.get(), result, epilogue);
  std::vector<std::size_t> order(epilogue.bias ? 4 : 3);  // of the call's operands
  order[static_cast<std::size_t>(left_operand)] = 0;
  order[place] = 1;
  if (epilogue.bias) order[2] = 3;
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
