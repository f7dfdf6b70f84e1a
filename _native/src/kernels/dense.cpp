// dense and its gradients: one matrix product each, on oneDNN. A transposed operand is
// one with swapped strides; where the product is large, it is transposed in scratch.
#include <optional>

#include "kernels/function_kernel.hpp"
#include "kernels/primitive.hpp"

namespace memcfg {
namespace {

using namespace onednn;

// A matrix in an operand: element (row, column) at row * row_stride + column *
// column_stride, in floats.
struct Matrix {
  Dim rows, columns, row_stride, column_stride;
};

// Rows of the result that one product computes when the result is large both ways.
// oneDNN's matrix product takes megabytes of its own memory (not the caller's) where
// 1 / rows + 1 / columns < 0.0038 (AVX2) or 0.002 (AVX-512); at 256 rows it never
// does, and is as fast.
constexpr Dim kRowsMost = 256;

Call make_product(const OneDnn& library,
                  const Matrix& left,
                  const Matrix& right,
                  Dim rows) {
  const Api& api = library.api();
  const auto a =
      describe(library, {rows, left.columns}, {left.row_stride, left.column_stride});
  const auto b = describe(
      library, {right.rows, right.columns}, {right.row_stride, right.column_stride});
  const auto c = describe(library, {rows, right.columns}, {right.columns, 1});
  PrimitiveDesc* made = nullptr;
  library.check(api.matmul_primitive_desc_create(&made,
                                                 library.engine(),
                                                 a.get(),
                                                 b.get(),
                                                 nullptr,
                                                 c.get(),
                                                 user_scratchpad(library).get()),
                "choosing a matrix product");
  const Owned<PrimitiveDesc> primitive(made, api.primitive_desc_destroy);
  return Call(
      library,
      made,
      {{arg::source, a.get()}, {arg::weights, b.get()}, {arg::destination, c.get()}});
}

// result = operands[left] x operands[right], in blocks of rows.
class Product final : public Kernel {
 public:
  Product(const OneDnn& library,
          const Kernel::Sizes& sizes,
          Matrix left,
          const Matrix& right,
          int left_operand,
          int right_operand)
      : Kernel(sizes),
        left_operand_(left_operand),
        right_operand_(right_operand),
        rows_(left.rows) {
    const bool large = left.rows > kRowsMost && right.columns > kRowsMost;
    block_ = large ? kRowsMost : left.rows;
    if (large && left.column_stride != 1) left = transpose(library, left);
    left_bytes_ = block_ * left.row_stride * Dim{kFloat};
    result_bytes_ = block_ * right.columns * Dim{kFloat};
    whole_.emplace(make_product(library, left, right, block_));
    const Dim rest = left.rows % block_;
    if (rest != 0) rest_.emplace(make_product(library, left, right, rest));
  }

  const char* algorithm() const noexcept override { return "onednn"; }
  Bytes scratch_bytes() const noexcept override {
    Bytes most = whole_->scratch_bytes();
    for (const auto* call : {&rest_, &transpose_}) {
      if (*call) most = std::max(most, (*call)->scratch_bytes());
    }
    return transposed_bytes_ + most;
  }

  std::unique_ptr<RunState> make_run_state() const override {
    return std::make_unique<CallStates>(
        std::initializer_list{&whole_, &rest_, &transpose_});
  }

  void run(void* const* operands, void* scratch, RunState* state) const override {
    auto& arguments = static_cast<CallStates*>(state)->arguments;
    char* left = static_cast<char*>(operands[left_operand_]);
    char* result = static_cast<char*>(operands[2]);
    if (transpose_) {
      char* const transposed = static_cast<char*>(scratch);
      scratch = transposed + transposed_bytes_;
      transpose_->run({left, transposed}, scratch, arguments[2]);
      left = transposed;
    }
    for (Dim row = 0; row < rows_; row += block_) {
      const bool whole = row + block_ <= rows_;
      const Call& call = whole ? *whole_ : *rest_;
      call.run(
          {left, operands[right_operand_], result}, scratch, arguments[whole ? 0 : 1]);
      left += left_bytes_;
      result += result_bytes_;
    }
  }

 private:
  // Prepares the copy in scratch whose rows are contiguous; returns its strides.
  Matrix transpose(const OneDnn& library, const Matrix& left) {
    const Matrix copy{left.rows, left.columns, left.columns, 1};
    const auto from = describe(
        library, {left.rows, left.columns}, {left.row_stride, left.column_stride});
    const auto to = describe(library, {copy.rows, copy.columns}, {copy.row_stride, 1});
    transpose_.emplace(reorder(library, from.get(), to.get()));
    transposed_bytes_ = align_up(float_bytes(copy.rows * copy.columns));
    return copy;
  }

  std::optional<Call> whole_, rest_, transpose_;
  Bytes transposed_bytes_ = 0;
  int left_operand_, right_operand_;
  Dim rows_;
  Dim block_ = 0, left_bytes_ = 0, result_bytes_ = 0;
};

struct Extents {
  Dim m, k, n;

  // x[m, k], y[m, n], whichever of them is an output.
  Extents(const SpecReader& reader, const OperandSpec& x, const OperandSpec& y) {
    m = reader.narrow(reader.rows(x).rows, "rows");
    k = reader.narrow(reader.rows(x).channels, "inputs");
    n = reader.narrow(reader.rows(y).channels, "units");
    if (reader.rows(y).rows != m) reader.fail("has an output of other rows");
    reader.product({k, n});
  }
  Bytes x_bytes() const { return float_bytes(m * k); }
  Bytes kernel_bytes() const { return float_bytes(k * n); }
  Bytes y_bytes() const { return float_bytes(m * n); }
};

// y[M, N] = x[M, K] kernel[K, N]
KernelPtr make_dense(const KernelSpec& spec, const OneDnn& library) {
  const SpecReader reader(spec, {kFloat32, kFloat32}, {kFloat32});
  const Extents s(reader, spec.inputs[0], spec.outputs[0]);
  const Matrix x{s.m, s.k, s.k, 1}, kernel{s.k, s.n, s.n, 1};
  const Kernel::Sizes sizes{{s.x_bytes(), s.kernel_bytes()}, {s.y_bytes()}};
  return std::make_unique<Product>(library, sizes, x, kernel, 0, 1);
}

// dkernel[K, N] = x[M, K]^T dy[M, N]
KernelPtr make_dense_gradient_kernel(const KernelSpec& spec, const OneDnn& library) {
  const SpecReader reader(spec, {kFloat32, kFloat32}, {kFloat32});
  const Extents s(reader, spec.inputs[0], spec.inputs[1]);
  const Matrix x{s.k, s.m, 1, s.k}, dy{s.m, s.n, s.n, 1};
  const Kernel::Sizes sizes{{s.x_bytes(), s.y_bytes()}, {s.kernel_bytes()}};
  return std::make_unique<Product>(library, sizes, x, dy, 0, 1);
}

// dx[M, K] = dy[M, N] kernel[K, N]^T
KernelPtr make_dense_gradient_input(const KernelSpec& spec, const OneDnn& library) {
  const SpecReader reader(spec, {kFloat32, kFloat32}, {kFloat32});
  const Extents s(reader, spec.outputs[0], spec.inputs[1]);
  const Matrix dy{s.m, s.n, s.n, 1}, kernel{s.n, s.k, 1, s.n};
  const Kernel::Sizes sizes{{s.kernel_bytes(), s.y_bytes()}, {s.x_bytes()}};
  return std::make_unique<Product>(library, sizes, dy, kernel, 1, 0);
}

const KernelType kDense{"dense", make_dense};
const KernelType kDenseGradientKernel{"dense_gradient_kernel",
                                      make_dense_gradient_kernel};
const KernelType kDenseGradientInput{"dense_gradient_input", make_dense_gradient_input};

}  // namespace
}  // namespace memcfg
