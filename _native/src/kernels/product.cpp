#include "kernels/product.hpp"

#include <cstring>
#include <string>
#include <vector>

#include "memcfg/threads.hpp"

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

// Columns of a block of a right operand that oneDNN packs as it likes. Threads share
// blocks, whole ones where the rows are so few that they are not divided.
constexpr Dim kWide = 64;
constexpr Dim kRowsUndivided = 32;
constexpr Dim kBlocksMany = 16;  // from these on half a block matters no more

// Whether blocks half as wide, of as many bytes, may be shared better; how many threads
// there are is not asked, as programs outlive that. Of five blocks one of two threads
// has three: 86 us instead of 72 for 32 x 784 x 300 (2 x Zen 4).
bool wants_narrow_blocks(const Matrix& left, const Matrix& right) {
  const Dim rest = right.columns % kWide;
  const bool as_many_bytes = rest == 0 || rest > kWide / 2;
  return left.rows > 1 && left.rows <= kRowsUndivided && as_many_bytes &&
         right.columns <= (kBlocksMany - 1) * kWide;
}

// Whether an array is in the layout of a tag, which the library may not have.
bool has_layout(const OneDnn& library,
                const MemoryDesc* array,
                const Shape& dims,
                int tag) {
  if (tag == 0) return false;
  const auto same = describe_tagged(library, dims, tag);
  return library.api().memory_desc_equal(array, same.get()) != 0;
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
  const auto attributes = with_post_ops(library, epilogue.post);
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

bool is_in_blocks(const OneDnn& library,
                  const Matrix& left,
                  const Matrix& right,
                  Epilogue epilogue) {
  Matrix result{left.rows, right.columns, right.columns, 1};
  result.batch = left.batch;
  result.batch_stride = left.rows * right.columns;
  const auto layout = describe(library, right);
  const auto made = choose_product(library, left, layout.get(), result, epilogue);
  return has_blocks(library, made.get());
}

bool fuses_post(const OneDnn& library,
                const Matrix& left,
                const MemoryDesc* right,
                const Matrix& result,
                Epilogue epilogue) {
  if (!epilogue.post.sum && !epilogue.post.relu) return true;
  const auto name = [&](Post post) {
    const Epilogue each{epilogue.bias, post};
    const auto made = choose_product(library, left, right, result, each);
    return std::string(implementation(library, made.get()));
  };
  return name(epilogue.post) == name({});
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
  if (epilogue.post.relu) operands.push_back({epilogue.post.slope(), slope.get()});
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
  const Shape dims{right.rows, right.columns};
  const auto any = describe_any(library, dims);
  const auto before = choose_product(library, left, plain.get(), result, epilogue);
  auto chosen = choose_product(library, left, any.get(), result, epilogue);
  const MemoryDesc* packed = layout(library, chosen.get(), query::weights);
  if (wants_narrow_blocks(left, right) && library.narrow_blocks() != 0 &&
      has_layout(library, packed, dims, library.wide_blocks())) {
    const auto narrow = describe_tagged(library, dims, library.narrow_blocks());
    chosen = choose_product(library, left, narrow.get(), result, epilogue);
    packed = layout(library, chosen.get(), query::weights);
  }
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
  const bool sum = epilogue.post.sum;
  const auto packed = packed_layout(library, left, right, epilogue);
  if (!packed) return {};
  const auto place = static_cast<std::size_t>(right_operand);
  const Bytes bytes = sizes.inputs[place];
  sizes.inputs[place] = library.api().memory_desc_get_size(packed.get());
  const Matrix result{left.rows, right.columns, right.columns, 1};
  const auto plain = describe(library, right);
  for (const MemoryDesc* each : {plain.get(), packed.get()}) {
    if (!fuses_post(library, left, each, result, epilogue)) return {};
  }
  Call call = make_product(library, left, packed.get(), result, epilogue);
  const std::size_t operands = 3 + (epilogue.bias ? 1 : 0) + (sum ? 1 : 0);
  std::vector<std::size_t> order(operands, 2);  // the result's, and what is added to
  order[static_cast<std::size_t>(left_operand)] = 0;
  order[place] = 1;
  if (epilogue.bias) order[2] = 3;
  return pack_operand(
      place,
      library,
      {plain.get(), bytes},
      packed.get(),
      std::make_unique<CallKernel>(sizes,
                                   std::move(call),
                                   std::move(order),
                                   sum ? left.rows * right.columns : 0));
}

void Product::run(void* const* operands, void* scratch, RunState* state) const {
  auto& arguments = static_cast<CallStates*>(state)->arguments;
  char* left = static_cast<char*>(operands[left_operand_]);
  const int added = biased_ ? 3 : 2, output = summed_ ? added + 1 : added;
  char* result = static_cast<char*>(operands[output]);
  if (summed_ && !pass_.sum) {
    put_in_place(operands[added], result, rows_ * columns_);
  }
  if (transpose_) {
    char* const transposed = static_cast<char*>(scratch);
    scratch = transposed + transposed_bytes_;
    transpose_->run({left, transposed}, scratch, arguments[2]);
    left = transposed;
  }
  const ThreadCount own(at_most(threads_));
  char* const made = static_cast<char*>(scratch);
  void* const rest = made + made_bytes_;
  for (Dim row = 0; row < rows_; row += block_) {
    const bool whole = row + block_ <= rows_;
    const Call& call = whole ? *whole_ : *rest_;
    Arguments& places = arguments[whole ? 0 : 1];
    void* const right = operands[right_operand_];
    void* const addresses[5] = {left,
                                right,
                                pass_.sum ? made : result,
                                biased_ ? operands[2] : no_slope(),
                                no_slope()};
    call.run(addresses, rest, places);
    if (pass_.sum) {
      const Offset begin = row * columns_;
      add_arrays(reinterpret_cast<const float*>(made),
                 input(operands, added) + begin,
                 memcfg::output(operands, output) + begin,
                 std::min(block_, rows_ - row) * columns_,
                 pass_.relu);
    }
    left += left_bytes_;
    result += result_bytes_;
  }
  if (pass_.relu && !pass_.sum) {
    apply_relu(operands[output], rows_ * columns_, type_);
  }
}

}  // namespace memcfg::onednn
