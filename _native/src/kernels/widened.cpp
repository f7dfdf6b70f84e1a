#include "kernels/widened.hpp"

#include <algorithm>
#include <array>

#include "kernels/bfloat16.hpp"
#include "memcfg/types.hpp"

namespace memcfg {
namespace {

constexpr std::size_t kOperandsMost = 64;

struct Copy {
  std::size_t operand;
  Count count;
  Offset offset;  // in scratch
};

struct Copies {
  std::vector<Copy> read, written;
  Bytes bytes = 0;

  explicit Copies(const KernelSpec& spec) {
    const SpecReader reader(spec);
    const auto add = [&](const std::vector<OperandSpec>& operands,
                         std::size_t first,
                         std::vector<Copy>& to) {
      for (std::size_t i = 0; i < operands.size(); ++i) {
        if (operands[i].dtype != kBfloat16) continue;
        const Count count = reader.count(operands[i]);
        to.push_back({first + i, count, bytes});
        bytes += align_up(float_bytes(count));
      }
    };
    add(spec.inputs, 0, read);
    add(spec.outputs, spec.inputs.size(), written);
    if (spec.inputs.size() + spec.outputs.size() > kOperandsMost) {
      reader.fail("takes at most 64 operands of bfloat16");
    }
  }
};

Kernel::Sizes sizes(const KernelSpec& spec) {
  const SpecReader reader(spec);
  Kernel::Sizes found;
  for (const auto& each : spec.inputs) found.inputs.push_back(reader.bytes(each));
  for (const auto& each : spec.outputs) found.outputs.push_back(reader.bytes(each));
  return found;
}

class WidenedKernel final : public Kernel {
 public:
  WidenedKernel(const KernelSpec& spec, KernelPtr kernel)
      : Kernel(sizes(spec)), copies_(spec), kernel_(std::move(kernel)) {}

  const char* algorithm() const noexcept override { return kernel_->algorithm(); }
  Bytes scratch_bytes() const noexcept override {
    return copies_.bytes + kernel_->scratch_bytes();
  }
  std::unique_ptr<RunState> make_run_state() const override {
    return kernel_->make_run_state();
  }

  void run(void* const* operands, void* scratch, RunState* state) const override {
    std::array<void*, kOperandsMost> given;
    std::copy_n(operands, this->operands().size(), given.begin());
    char* const base = static_cast<char*>(scratch);
    for (const auto* side : {&copies_.read, &copies_.written}) {
      for (const Copy& copy : *side) given[copy.operand] = base + copy.offset;
    }
    for (const Copy& copy : copies_.read) {
      const auto* from = static_cast<const Bfloat16*>(operands[copy.operand]);
      auto* to = static_cast<float*>(given[copy.operand]);
      parallel_chunks(copy.count, kChunk, [=](Count begin, Count length) {
        widen(from + begin, length, to + begin);
      });
    }
    kernel_->run(given.data(), base + copies_.bytes, state);
    for (const Copy& copy : copies_.written) {
      const auto* from = static_cast<const float*>(given[copy.operand]);
      auto* to = static_cast<Bfloat16*>(operands[copy.operand]);
      parallel_chunks(copy.count, kChunk, [=](Count begin, Count length) {
        round(from + begin, length, to + begin);
      });
    }
  }

 private:
  Copies copies_;
  KernelPtr kernel_;
};

}  // namespace

bool has_bfloat16(const KernelSpec& spec) {
  const auto is = [](const OperandSpec& each) { return each.dtype == kBfloat16; };
  return std::any_of(spec.inputs.begin(), spec.inputs.end(), is) ||
         std::any_of(spec.outputs.begin(), spec.outputs.end(), is);
}

KernelSpec widened(const KernelSpec& spec) {
  KernelSpec found = spec;
  for (auto* operands : {&found.inputs, &found.outputs}) {
    for (OperandSpec& each : *operands) {
      if (each.dtype == kBfloat16) each.dtype = kFloat32;
    }
  }
  return found;
}

Bytes copies_bytes(const KernelSpec& spec) {
  return Copies(spec).bytes;
}

KernelPtr widen_operands(const KernelSpec& spec, KernelPtr kernel) {
  return std::make_unique<WidenedKernel>(spec, std::move(kernel));
}

}  // namespace memcfg
