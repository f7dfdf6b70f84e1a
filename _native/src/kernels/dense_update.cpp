// The update of a matrix whose gradient never exists whole: blocks of its rows are
// computed in scratch, one after the other, and used up by the update's expression.
#include <array>

#include "kernels/expression.hpp"
#include "kernels/product.hpp"

namespace memcfg {
namespace {

using namespace onednn;

constexpr Dim kBlockBytes = 2 << 20;  // about what stays in a second-level cache
constexpr Dim kRowsLeast = 16;
constexpr std::size_t kOperandsMost = 32;  // of an expression

class DenseUpdate final : public Kernel {
 public:
  // x[m, k] and dy[m, n], of one type; `gradient` is the gradient's place among the
  // update's inputs, and float32.
  DenseUpdate(const OneDnn& library,
              const KernelSpec& spec,
              const Kernel::Sizes& sizes,
              Dim m,
              Dim k,
              Dim n,
              int type,
              std::size_t gradient)
      : Kernel(sizes),
        outputs_(spec.outputs.size()),
        depth_bytes_(static_cast<Bytes>(m) * item_bytes(type)),
        rows_(k),
        columns_(n),
        block_(std::min(
            k, std::clamp(kBlockBytes / (n * Dim{kFloat}), kRowsLeast, kRowsMost))),
        gradient_(gradient) {
    const Matrix from{k, m, 1, k, 1, 0, type}, to{k, m, m, 1, 1, 0, type};
    transpose_.emplace(
        reorder(library, describe(library, from).get(), describe(library, to).get()));
    transposed_bytes_ = align_up(static_cast<Bytes>(k) * depth_bytes_);
    result_bytes_ = align_up(float_bytes(block_ * n));
    for (std::size_t i = 2; i < spec.inputs.size(); ++i) {
      single_.push_back(spec.inputs[i].shape.empty());
    }
    single_.insert(single_.begin() + static_cast<std::ptrdiff_t>(gradient), false);
    whole_.emplace(make_call(library, m, block_, type));
    whole_update_ = make_update(spec, block_);
    if (const Dim rest = k % block_; rest != 0) {
      rest_.emplace(make_call(library, m, rest, type));
      rest_update_ = make_update(spec, rest);
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
    const Bytes row_bytes = float_bytes(columns_);
    std::array<void*, kOperandsMost> update;
    const std::size_t count = single_.size() + outputs_;
    for (Dim row = 0; row < rows_; row += block_) {
      const bool whole = row + block_ <= rows_;
      const Bytes at = static_cast<Bytes>(row) * row_bytes;
      (whole ? *whole_ : *rest_)
          .run({transposed + static_cast<Bytes>(row) * depth_bytes_,
                operands[1],
                result},
               rest,
               arguments[whole ? 0 : 1]);
      std::size_t next = 2;
      for (std::size_t i = 0; i < count; ++i) {
        if (i == gradient_) {
          update[i] = result;
          continue;
        }
        char* const operand = static_cast<char*>(operands[next++]);
        update[i] = i < single_.size() && single_[i] ? operand : operand + at;
      }
      (whole ? whole_update_ : rest_update_)->run(update.data(), nullptr, nullptr);
    }
  }

 private:
  Call make_call(const OneDnn& library, Dim m, Dim rows, int type) {
    return make_product(library,
                        Matrix{rows, m, m, 1, 1, 0, type},
                        Matrix{m, columns_, columns_, 1, 1, 0, type},
                        Matrix{rows, columns_, columns_, 1});
  }

  // The expression over blocks of so many rows.
  KernelPtr make_update(const KernelSpec& spec, Dim rows) const {
    const OperandSpec block{{rows, columns_}, kFloat32};
    KernelSpec made{"update", {}, {}, {}};
    made.attributes["expression"] = spec.attributes.at("expression");
    made.inputs.assign(spec.inputs.begin() + 2, spec.inputs.end());
    made.inputs.insert(made.inputs.begin() + static_cast<std::ptrdiff_t>(gradient_),
                       block);
    for (OperandSpec& each : made.inputs) {
      if (!each.shape.empty()) each = block;
    }
    made.outputs.assign(outputs_, block);
    return make_expression(made);
  }

  std::optional<Call> whole_, rest_, transpose_;
  KernelPtr whole_update_, rest_update_;
  std::vector<bool> single_;  // which of the update's inputs are one number
  std::size_t outputs_;
  Bytes depth_bytes_, transposed_bytes_ = 0, result_bytes_ = 0;
  Dim rows_, columns_, block_;
  std::size_t gradient_;
};

KernelPtr make_dense_update(const KernelSpec& spec, const OneDnn& library) {
  const SpecReader reader(spec);
  if (spec.inputs.size() < 3 || spec.outputs.empty()) {
    reader.fail("reads x, dy and what it updates");
  }
  const SpecReader::Rows x = reader.rows(spec.inputs[0]),
                         dy = reader.rows(spec.inputs[1]);
  const Dim m = reader.narrow(x.rows, "rows");
  const Dim k = reader.narrow(x.channels, "inputs");
  const Dim n = reader.narrow(dy.channels, "units");
  if (dy.rows != m) reader.fail("has operands of other rows");
  const Count all = reader.product({k, n});
  const auto gradient = static_cast<std::size_t>(reader.integer("gradient", -1));
  if (gradient > spec.inputs.size() - 2) reader.fail("has no gradient at that place");
  Kernel::Sizes sizes;
  for (std::size_t i = 0; i < spec.inputs.size(); ++i) {
    const OperandSpec& each = spec.inputs[i];
    sizes.inputs.push_back(reader.bytes(each));
    if (i > 1 && !each.shape.empty() && reader.count(each) != all) {
      reader.fail("has operands of several sizes");
    }
  }
  const int type = type_of(reader, spec.inputs[0]);
  if (type != type_of(reader, spec.inputs[1])) reader.fail("has x and dy of one type");
  for (const OperandSpec& each : spec.outputs) {
    sizes.outputs.push_back(reader.bytes(each));
    if (reader.count(each) != all) reader.fail("has outputs of several sizes");
  }
  return std::make_unique<DenseUpdate>(library, spec, sizes, m, k, n, type, gradient);
}

const KernelType kDenseUpdate{
    "dense_update", make_dense_update, nullptr, Floats::bfloat16};

}  // namespace
}  // namespace memcfg
