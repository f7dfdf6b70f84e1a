#include "memcfg/kernel.hpp"

#include <stdexcept>

#include "kernels/expression.hpp"
#include "kernels/function_kernel.hpp"
#include "kernels/widened.hpp"
#include "memcfg/forks.hpp"
#include "memcfg/threads.hpp"

namespace memcfg {
namespace {

// Whether its own kernel takes what operands are bfloat16.
bool is_native(const KernelSpec& spec, const KernelType* type, const OneDnn* library) {
  if (!has_bfloat16(spec) || type == nullptr) return true;
  if (!type->takes_bfloat16()) return false;
  return !type->on_library() || library == nullptr || library->has_bfloat16();
}

// What a kernel derives of its op's shapes must be what they say; of an operand that is
// packed they do not.
void check_operands(const KernelSpec& spec,
                    const Kernel& kernel,
                    std::optional<std::size_t> packed = std::nullopt) {
  const SpecReader reader(spec);
  std::vector<Kernel::Operand> found;
  for (const auto& each : spec.inputs) found.push_back({reader.bytes(each), false});
  for (const auto& each : spec.outputs) found.push_back({reader.bytes(each), true});
  const auto& declared = kernel.operands();
  if (packed) found.at(*packed).size = declared.at(*packed).size;
  bool same = found.size() == declared.size();
  for (std::size_t i = 0; same && i < found.size(); ++i) {
    same = found[i].size == declared[i].size && found[i].written == declared[i].written;
  }
  if (same) return;
  std::string words = "has operands of";
  for (const auto& each : declared) words += " " + std::to_string(each.size);
  words += " bytes, got";
  for (const auto& each : found) words += " " + std::to_string(each.size);
  reader.fail(words);
}

KernelPtr make(const KernelSpec& spec, const OneDnn* library) {
  const KernelType* type = KernelType::find(spec.type);
  if (!is_native(spec, type, library)) {
    const auto of_float32 = [library](const KernelSpec& each) {
      KernelPtr inner = make(each, library);
      check_operands(each, *inner);
      return inner;
    };
    KernelPtr found = type->is_of_samples() ? widen_samples(spec, of_float32) : nullptr;
    return found ? std::move(found) : widen_operands(spec, of_float32(widened(spec)));
  }
  if (type == nullptr && spec.attributes.count("expression") != 0) {
    return make_expression(spec);
  }
  if (type == nullptr) {
    throw std::invalid_argument("there is no kernel of type '" + spec.type + "'");
  }
  if (!type->on_library()) return type->make(spec);
  if (library == nullptr) {
    throw std::invalid_argument("kernel '" + spec.type + "' needs oneDNN");
  }
  const NoFork inside;  // its caches have locks that a child would find held
  return type->make(spec, *library);
}

}  // namespace

bool has_kernel(const std::string& type) noexcept {
  return KernelType::find(type) != nullptr;
}

bool needs_library(const std::string& type) noexcept {
  const KernelType* const found = KernelType::find(type);
  return found != nullptr && found->on_library();
}

std::unique_ptr<Kernel> make_kernel(const KernelSpec& spec, const OneDnn* library) {
  const ThreadCount count(spec.threads);
  KernelPtr kernel = make(spec, library);
  check_operands(spec, *kernel);
  if (spec.algorithm && *spec.algorithm != kernel->algorithm()) {
    SpecReader(spec).fail_algorithm();
  }
  return kernel;
}

std::optional<Packing> make_packing(const KernelSpec& spec, const OneDnn* library) {
  const KernelType* type = KernelType::find(spec.type);
  if (type == nullptr || !type->has_pack() || library == nullptr) return std::nullopt;
  const ThreadCount count(spec.threads);
  const NoFork inside;
  auto found = type->pack(spec, *library);
  if (found) check_operands(spec, *found->kernel, found->operands.front());
  return found;
}

std::vector<Algorithm> list_algorithms(const KernelSpec& spec, const OneDnn* library) {
  const KernelType* type = KernelType::find(spec.type);
  if (type != nullptr && type->has_list() && library != nullptr) {
    const ThreadCount count(spec.threads);
    const bool native = is_native(spec, type, library);
    const NoFork inside;
    auto found = type->list(native ? spec : widened(spec), *library);
    if (!native) {
      for (Algorithm& each : found) each.scratch_bytes += copies_bytes(spec);
    }
    return found;
  }
  const KernelPtr only = make_kernel(spec, library);
  return {{only->algorithm(), only->scratch_bytes()}};
}

}  // namespace memcfg
