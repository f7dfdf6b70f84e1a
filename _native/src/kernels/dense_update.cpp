// The update of a matrix whose gradient never exists whole: blocks of its rows are
// computed in scratch, one after the other, and used up by the update's expression.
#include "kernels/product.hpp"
#include "kernels/tiled_update.hpp"

namespace memcfg {
namespace {

using namespace onednn;

constexpr Dim kRowsLeast = 16;

class DenseUpdate final : public Kernel {
 public:
  // x[m, k] and dy[m, n], of one type; the gradient is float32.
  DenseUpdate(const OneDnn& library,
              const KernelSpec& spec,
              const Kernel::Sizes& sizes,
              Dim m,
              Dim k,
              Dim n,
              int type)
      : Kernel(sizes),
        depth_bytes_(static_cast<Bytes>(m) * item_bytes(type)),
        rows_(k),
        columns_(n),
        block_(std::min(
            k, std::clamp(kTileBytes / (n * Dim{kFloat}), kRowsLeast, kRowsMost))) {
    const Matrix from{k, m, 1, k, 1, 0, type}, to{k, m, m, 1, 1, 0, type};
    transpose_.emplace(
        reorder(library, describe(library, from).get(), describe(library, to).get()));
    transposed_bytes_ = align_up(static_cast<Bytes>(k) * depth_bytes_);
    result_bytes_ = align_up(float_bytes(block_ * n));
    whole_.emplace(make_call(library, m, block_, type));
    whole_update_.emplace(spec, block_, n, n);
    if (const Dim rest = k % block_; rest != 0) {
      rest_.emplace(make_call(library, m, rest, type));
      rest_update_.emplace(spec, rest, n, n);
    }
  }

  const char* algorithm() const noexcept override { return "onednn"; }
  Bytes scratch_bytes() const noexcept override {
    Bytes most = whole_->scratch_bytes();
    for (const auto* call : {&rest_, &transpose_}) {
      if (*call) most = std::max(most, (*call)->scratch_bytes());
    }
    return transposed_bytes_ + result_bytes_ + most;
  }

  std::unique_ptr<RunState> make_run_state() const override {
    return std::make_unique<CallStates>(
        std::initializer_list{&whole_, &rest_, &transpose_});
  }

  void run(void* const* operands, void* scratch, RunState* state) const override {
    auto& arguments = static_cast<CallStates*>(state)->arguments;
    char* const transposed = static_cast<char*>(scratch);
    char* const result = transposed + transposed_bytes_;
    char* const rest = result + result_bytes_;
    transpose_->run({operands[0], transposed}, rest, arguments[2]);
    for (Dim row = 0; row < rows_; row += block_) {
      const bool whole = row + block_ <= rows_;
      (whole ? *whole_ : *rest_)
          .run({transposed + static_cast<Bytes>(row) * depth_bytes_,
                operands[1],
                result},
               rest,
               arguments[whole ? 0 : 1]);
      (whole ? *whole_update_ : *rest_update_).run(operands, row * columns_, result);
    }
  }

 private:
  Call make_call(const OneDnn& library, Dim m, Dim rows, int type) {
    return make_product(library,
                        Matrix{rows, m, m, 1, 1, 0, type},
                        Matrix{m, columns_, columns_, 1, 1, 0, type},
                        Matrix{rows, columns_, columns_, 1});
  }

  std::optional<Call> whole_, rest_, transpose_;
  std::optional<TiledUpdate> whole_update_, rest_update_;
  Bytes depth_bytes_, transposed_bytes_ = 0, result_bytes_ = 0;
  Dim rows_, columns_, block_;
};

KernelPtr make_dense_update(const KernelSpec& spec, const OneDnn& library) {
  const SpecReader reader(spec);
  if (spec.inputs.size() < 2) reader.fail("reads x, dy and what it updates");
  const SpecReader::Rows x = reader.rows(spec.inputs[0]),
                         dy = reader.rows(spec.inputs[1]);
  const Dim m = reader.narrow(x.rows, "rows");
  const Dim k = reader.narrow(x.channels, "inputs");
  const Dim n = reader.narrow(dy.channels, "units");
  if (dy.rows != m) reader.fail("has operands of other rows");
  const auto sizes = check_tiled_update(spec, reader.product({k, n}));
  const int type = type_of(reader, spec.inputs[0]);
  if (type != type_of(reader, spec.inputs[1])) reader.fail("has x and dy of one type");
  return std::make_unique<DenseUpdate>(library, spec, sizes, m, k, n, type);
}

const KernelType kDenseUpdate{
    "dense_update", make_dense_update, nullptr, Floats::bfloat16};

}  // namespace
}  // namespace memcfg
