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

constexpr Count kSliceElements = 1
                                 << 16;  // of one operand: part of a second-level cache
constexpr Count kSamplesLeast = 2;

// An operand of which each slice has a part.
struct Part {
  Bytes sample;        // bytes of a sample; 0: every slice has all of it
  Count elements = 0;  // of a sample, if it is bfloat16
  Offset offset = 0;   // of the slice in float32, in scratch
};

class SlicedKernel final : public Kernel {
 public:
  SlicedKernel(const KernelSpec& spec, const MakeFloat32& make, Count samples)
      : Kernel(sizes(spec)), samples_(samples), inputs_(spec.inputs.size()) {
    const SpecReader reader(spec);
    Count most = 1;
    for (const auto* side : {&spec.inputs, &spec.outputs}) {
      for (const OperandSpec& each : *side) {
        Part part{each.shape.empty() ? 0 : reader.bytes(each) / as_bytes(samples)};
        if (each.dtype == kBfloat16) part.elements = reader.count(each) / samples;
        most = std::max(most, part.elements);
        parts_.push_back(part);
      }
    }
    slice_ = std::min(samples, std::max(kSliceElements / most, kSamplesLeast));
    for (Part& part : parts_) {
      part.offset = copies_;
      copies_ += align_up(float_bytes(part.elements * slice_));
    }
    whole_ = make(of(spec, slice_));
    if (samples % slice_ != 0) rest_ = make(of(spec, samples % slice_));
  }

  const char* algorithm() const noexcept override { return whole_->algorithm(); }
  Bytes scratch_bytes() const noexcept override {
    const Bytes rest = rest_ ? rest_->scratch_bytes() : 0;
    return copies_ + std::max(whole_->scratch_bytes(), rest);
  }
  std::unique_ptr<RunState> make_run_state() const override {
    auto made = std::make_unique<States>();
    made->whole = whole_->make_run_state();
    if (rest_) made->rest = rest_->make_run_state();
    return made;
  }

  void run(void* const* operands, void* scratch, RunState* state) const override {
    auto& states = *static_cast<States*>(state);
    char* const base = static_cast<char*>(scratch);
    std::array<void*, kOperandsMost> given;
    for (Count first = 0; first < samples_; first += slice_) {
      const Count length = std::min(slice_, samples_ - first);
      for (std::size_t i = 0; i < parts_.size(); ++i) {
        const Part& part = parts_[i];
        char* const at =
            static_cast<char*>(operands[i]) + as_bytes(first) * part.sample;
        given[i] = part.elements == 0 ? at : base + part.offset;
        if (part.elements == 0 || i >= inputs_) continue;
        const auto* from = reinterpret_cast<const Bfloat16*>(at);
        auto* to = static_cast<float*>(given[i]);
        parallel_chunks(part.elements * length, kChunk, [=](Count begin, Count count) {
          widen(from + begin, count, to + begin);
        });
      }
      const bool whole = length == slice_;
      (whole ? whole_ : rest_)
          ->run(
              given.data(), base + copies_, (whole ? states.whole : states.rest).get());
      for (std::size_t i = inputs_; i < parts_.size(); ++i) {
        const Part& part = parts_[i];
        if (part.elements == 0) continue;
        const auto* from = static_cast<const float*>(given[i]);
        auto* to = static_cast<Bfloat16*>(operands[i]) + first * part.elements;
        parallel_chunks(part.elements * length, kChunk, [=](Count begin, Count count) {
          round(from + begin, count, to + begin);
        });
      }
    }
  }

 private:
  struct States final : RunState {
    std::unique_ptr<RunState> whole, rest;
  };
  static Bytes as_bytes(Count count) { return static_cast<Bytes>(count); }
  static KernelSpec of(const KernelSpec& spec, Count samples) {
    KernelSpec found = widened(spec);
    for (auto* operands : {&found.inputs, &found.outputs}) {
      for (OperandSpec& each : *operands) {
        if (!each.shape.empty()) each.shape[0] = samples;
      }
    }
    return found;
  }

  Count samples_, slice_ = 1;
  std::size_t inputs_;
  std::vector<Part> parts_;
  Bytes copies_ = 0;
  KernelPtr whole_, rest_;
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

KernelPtr widen_samples(const KernelSpec& spec, const MakeFloat32& make) {
  Count samples = 0;
  for (const auto* side : {&spec.inputs, &spec.outputs}) {
    for (const OperandSpec& each : *side) {
      if (each.shape.empty()) continue;
      if (samples == 0) samples = each.shape[0];
      if (each.shape[0] != samples) return nullptr;
    }
  }
  const std::size_t count = spec.inputs.size() + spec.outputs.size();
  if (samples < 1 || count > kOperandsMost || spec.attributes.count("key") != 0) {
    return nullptr;
  }
  return std::make_unique<SlicedKernel>(spec, make, samples);
}

Bytes copies_bytes(const KernelSpec& spec) {
  return Copies(spec).bytes;
}

KernelPtr widen_operands(const KernelSpec& spec, KernelPtr kernel) {
  return std::make_unique<WidenedKernel>(spec, std::move(kernel));
}

}  // namespace memcfg
