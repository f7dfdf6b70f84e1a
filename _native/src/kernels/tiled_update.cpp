#include "kernels/tiled_update.hpp"

#include <array>

namespace memcfg {
namespace {

constexpr std::size_t kOperandsMost = 32;  // of an expression
constexpr std::size_t kProduct = 2;        // inputs that make the gradient

}  // namespace

Kernel::Sizes check_tiled_update(const KernelSpec& spec, Count count) {
  const SpecReader reader(spec);
  if (spec.inputs.size() <= kProduct || spec.outputs.empty()) {
    reader.fail("reads x, dy and what it updates");
  }
  const auto gradient = static_cast<std::size_t>(reader.integer("gradient", 0));
  if (gradient > spec.inputs.size() - kProduct) {
    reader.fail("has no gradient at that place");
  }
  Kernel::Sizes sizes;
  for (std::size_t i = 0; i < spec.inputs.size(); ++i) {
    const OperandSpec& each = spec.inputs[i];
    sizes.inputs.push_back(reader.bytes(each));
    if (i >= kProduct && !each.shape.empty() && reader.count(each) != count) {
      reader.fail("has operands of several sizes");
    }
  }
  for (const OperandSpec& each : spec.outputs) {
    sizes.outputs.push_back(reader.bytes(each));
    if (reader.count(each) != count) reader.fail("has outputs of several sizes");
  }
  return sizes;
}

TiledUpdate::TiledUpdate(const KernelSpec& spec,
                         Count rows,
                         Count columns,
                         Count stride)
    : gradient_(static_cast<std::size_t>(SpecReader(spec).integer("gradient", 0))) {
  const OperandSpec block{{rows, columns}, kFloat32};
  KernelSpec update{"update", spec.attributes};
  update.inputs.assign(spec.inputs.begin() + kProduct, spec.inputs.end());
  update.inputs.insert(update.inputs.begin() + static_cast<std::ptrdiff_t>(gradient_),
                       block);
  for (OperandSpec& each : update.inputs) {
    single_.push_back(each.shape.empty());
    if (!each.shape.empty()) each.shape = block.shape;
  }
  update.outputs = spec.outputs;
  for (OperandSpec& each : update.outputs) {
    single_.push_back(false);
    each.shape = block.shape;
  }
  std::vector<Count> strides(single_.size(), stride);
  strides[gradient_] = columns;
  loop_ = make_row_expression(update, std::move(strides));
}

void TiledUpdate::run(void* const* operands, Count first, void* gradient) const {
  std::array<void*, kOperandsMost> given;
  void* const* next = operands + kProduct;
  for (std::size_t i = 0; i < single_.size(); ++i) {
    if (i == gradient_) {
      given[i] = gradient;
      continue;
    }
    auto* const at = static_cast<float*>(*next++);
    given[i] = at + (single_[i] ? 0 : first);
  }
  loop_(given.data());
}

}  // namespace memcfg
