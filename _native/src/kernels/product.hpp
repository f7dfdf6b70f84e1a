// A matrix product, or one for each of a batch, on oneDNN. A transposed operand is one
// with swapped strides; where the product is large, it is transposed in scratch.
#pragma once

#include <algorithm>
#include <optional>
#include <utility>

#include "kernels/function_kernel.hpp"
#include "kernels/functions.hpp"
#include "kernels/parallel.hpp"
#include "kernels/primitive.hpp"

namespace memcfg::onednn {

// Matrices in an operand: element (i, row, column) at i * batch_stride + row *
// row_stride + column * column_stride, in elements.
struct Matrix {
  Dim rows, columns, row_stride, column_stride;
  Dim batch = 1, batch_stride = 0;
  int type = data_type::f32;

  Bytes bytes(Dim elements) const {
    return static_cast<Bytes>(elements) * item_bytes(type);
  }
};

// Rows of the result that one product computes when the result is large both ways.
// oneDNN's matrix product takes megabytes of its own memory (not the caller's) where
// 1 / rows + 1 / columns < 0.0038 (AVX2) or 0.002 (AVX-512); at 256 rows it never
// does, and is as fast.
inline constexpr Dim kRowsMost = 256;

Owned<MemoryDesc> describe(const OneDnn& library, const Matrix& matrix);

// What is done to a result on the way: a bias of its columns is added, then what is in
// its place, and a ReLU.
struct Epilogue {
  bool bias = false;
  Post post = {};
};

// What the library would use.
Owned<PrimitiveDesc> choose_product(const OneDnn& library,
                                    const Matrix& left,
                                    const MemoryDesc* right,
                                    const Matrix& result,
                                    Epilogue epilogue = {});

// Operands: left, right, result, and the bias and the slope of the ReLU if they are
// there.
Call make_product(const OneDnn& library,
                  const Matrix& left,
                  const Matrix& right,
                  const Matrix& result,
                  Epilogue epilogue = {});

Call make_product(const OneDnn& library,
                  const Matrix& left,
                  const MemoryDesc* right,
                  const Matrix& result,
                  Epilogue epilogue = {});

// Whether a product with post-ops is of the implementation that it is without: else
// they are better a pass.
bool fuses_post(const OneDnn& library,
                const Matrix& left,
                const MemoryDesc* right,
                const Matrix& result,
                Epilogue epilogue);

// Whether oneDNN multiplies block by block, with sums that neither the number of
// columns nor threads change. Its other family divides the steps of sums among threads
// that columns and rows do not keep busy.
bool is_in_blocks(const OneDnn& library,
                  const Matrix& left,
                  const Matrix& right,
                  Epilogue epilogue = {});

// The layout in which a right operand is packed once for many products; null unless
// they are faster then, and add in the same order.
Owned<MemoryDesc> packed_layout(const OneDnn& library,
                                const Matrix& left,
                                const Matrix& right,
                                Epilogue epilogue = {});

// A product of few rows whose right operand, `right_operand` of the op, is given
// packed; null where that gains nothing. `sizes` are those of the op.
std::optional<Packing> pack_product(const OneDnn& library,
                                    Kernel::Sizes sizes,
                                    const Matrix& left,
                                    const Matrix& right,
                                    int left_operand,
                                    int right_operand,
                                    Epilogue epilogue);

// y = relu(y)
template <class T>
MEMCFG_VECTORIZED void relu_in_place(T* y, Count count) {
  MEMCFG_INDEPENDENT
  for (Count i = 0; i < count; ++i) y[i] = stored_as<T>(Relu::of(as_float(y[i])));
}
// That of all elements of a result, on several threads.
void apply_relu(void* y, Count count, int type);

// Whether a sum of so many rows is made at once.
inline bool is_block(Dim rows, Dim columns) {
  return rows < kRowsMost || float_bytes(rows * columns) <= kBlockBytes;
}

// result = operands[left] x operands[right], in blocks of rows; and the bias
// operands[2] is added to each row, if there is one. What else is added is the input
// after these: where it is, if the result takes at most `kBlockBytes`, which may be its
// place; else to each block of rows, which are made in scratch. It runs on at most
// `threads`; 0: on all.
class Product final : public Kernel {
 public:
  Product(const OneDnn& library,
          const Kernel::Sizes& sizes,
          Matrix left,
          const Matrix& right,
          int left_operand,
          int right_operand,
          int result_type = data_type::f32,
          Epilogue epilogue = {},
          int threads = 0)
      : Kernel(sizes),
        threads_(threads),
        left_operand_(left_operand),
        right_operand_(right_operand),
        biased_(epilogue.bias),
        summed_(epilogue.post.sum),
        rows_(left.rows),
        columns_(right.columns),
        type_(result_type) {
    const bool large = left.rows > kRowsMost && right.columns > kRowsMost;
    block_ = large ? kRowsMost : left.rows;
    const Bytes row = float_bytes(columns_);  // of a sum
    const bool in_blocks = summed_ && !is_block(left.rows, columns_);
    if (in_blocks && !large) {
      block_ = std::max<Dim>(static_cast<Dim>(kBlockBytes / row), 1);
    }
    if (large && left.column_stride != 1) left = transpose(library, left);
    Matrix result{left.rows, right.columns, right.columns, 1};
    result.batch = left.batch;
    result.batch_stride = left.rows * right.columns;
    result.type = result_type;
    left_bytes_ = left.bytes(block_ * left.row_stride);
    result_bytes_ = result.bytes(block_ * right.columns);
    const Dim rest = left.rows % block_;
    left.rows = result.rows = block_;
    const auto layout = describe(library, right);
    if (in_blocks || !fuses_post(library, left, layout.get(), result, epilogue)) {
      pass_ = std::exchange(epilogue.post, {});
      if (pass_.sum) made_bytes_ = align_up(result_bytes_);
    }
    whole_.emplace(make_product(library, left, right, result, epilogue));
    left.rows = result.rows = rest;
    if (rest != 0) rest_.emplace(make_product(library, left, right, result, epilogue));
  }

  const char* algorithm() const noexcept override { return "onednn"; }
  Bytes scratch_bytes() const noexcept override {
    Bytes most = whole_->scratch_bytes();
    for (const auto* call : {&rest_, &transpose_}) {
      if (*call) most = std::max(most, (*call)->scratch_bytes());
    }
    return transposed_bytes_ + made_bytes_ + most;
  }

  std::unique_ptr<RunState> make_run_state() const override {
    return std::make_unique<CallStates>(
        std::initializer_list{&whole_, &rest_, &transpose_});
  }

  void run(void* const* operands, void* scratch, RunState* state) const override;

 private:
  // Prepares the copy in scratch whose rows are contiguous; returns its strides.
  Matrix transpose(const OneDnn& library, const Matrix& left) {
    Matrix copy = left;
    copy.row_stride = left.columns;
    copy.column_stride = 1;
    copy.batch_stride = left.rows * left.columns;
    const auto from = describe(library, left), to = describe(library, copy);
    transpose_.emplace(reorder(library, from.get(), to.get()));
    transposed_bytes_ = align_up(copy.bytes(copy.batch * copy.batch_stride));
    return copy;
  }

  std::optional<Call> whole_, rest_, transpose_;
  Bytes transposed_bytes_ = 0;
  int threads_;
  int left_operand_, right_operand_;
  bool biased_, summed_;
  Dim rows_, columns_;
  int type_;
  Post pass_;             // what no post-op does
  Bytes made_bytes_ = 0;  // of a block that is made in scratch
  Dim block_ = 0;
  Bytes left_bytes_ = 0, result_bytes_ = 0;
};

}  // namespace memcfg::onednn
