#include "kernels/micro_batches.hpp"

#include <algorithm>

#include "kernels/parallel.hpp"

namespace memcfg {
namespace {

OperandSpec& operand(KernelSpec& spec, std::size_t number) {
  const std::size_t inputs = spec.inputs.size();
  return number < inputs ? spec.inputs[number] : spec.outputs[number - inputs];
}
const OperandSpec& operand(const KernelSpec& spec, std::size_t number) {
  const std::size_t inputs = spec.inputs.size();
  return number < inputs ? spec.inputs[number] : spec.outputs[number - inputs];
}

// Whether parts of so many images are equal, and their operands aligned.
bool divides(const KernelSpec& spec,
             const std::vector<std::size_t>& batched,
             Count images) {
  const SpecReader reader(spec);
  return std::all_of(batched.begin(), batched.end(), [&](std::size_t number) {
    const OperandSpec& each = operand(spec, number);
    const Count all = each.shape.at(0);
    if (images < 1 || images >= all || all % images != 0) return false;
    return reader.bytes(each) / static_cast<Bytes>(all / images) % kAlignment == 0;
  });
}

MicroBatches make_parts(const KernelSpec& spec,
                        const std::vector<std::size_t>& batched,
                        const std::string& algorithm,
                        Count images) {
  const std::size_t output = spec.inputs.size();
  const bool sums = std::find(batched.begin(), batched.end(), output) == batched.end();
  const Count all = operand(spec, batched.front()).shape.at(0);
  return {algorithm, images, all / images, batched, sums};
}

MEMCFG_VECTORIZED void add(const float* from, Count count, float* to) {
  MEMCFG_INDEPENDENT
  for (Count i = 0; i < count; ++i) to[i] += from[i];
}

class MicroBatchKernel final : public Kernel {
 public:
  MicroBatchKernel(const Sizes& sizes,
                   const MicroBatches& of,
                   KernelPtr kernel,
                   Bytes sum_bytes)
      : Kernel(sizes),
        name_(of.name(kernel->algorithm())),
        kernel_(std::move(kernel)),
        parts_(of.parts),
        sum_bytes_(sum_bytes),
        steps_(operands().size()) {
    for (const std::size_t number : of.batched) {
      steps_[number] = operands()[number].size / static_cast<Bytes>(parts_);
    }
  }

  const char* algorithm() const noexcept override { return name_.c_str(); }
  Bytes scratch_bytes() const noexcept override {
    return sum_bytes_ + kernel_->scratch_bytes();
  }
  std::unique_ptr<RunState> make_run_state() const override {
    auto made = std::make_unique<State>();
    made->part = kernel_->make_run_state();
    made->operands.resize(steps_.size());
    return made;
  }

  void run(void* const* operands, void* scratch, RunState* state) const override {
    auto& own = *static_cast<State*>(state);
    void* const rest = static_cast<char*>(scratch) + sum_bytes_;
    const std::size_t output = steps_.size() - 1;
    for (Count part = 0; part < parts_; ++part) {
      for (std::size_t i = 0; i < steps_.size(); ++i) {
        own.operands[i] =
            static_cast<char*>(operands[i]) + static_cast<Bytes>(part) * steps_[i];
      }
      const bool adds = sum_bytes_ != 0 && part != 0;
      if (adds) own.operands[output] = scratch;
      kernel_->run(own.operands.data(), rest, own.part.get());
      if (adds) sum(scratch, operands[output]);
    }
  }

 private:
  struct State final : RunState {
    std::unique_ptr<RunState> part;
    std::vector<void*> operands;
  };

  void sum(const void* from, void* to) const {
    const auto count = static_cast<Count>(operands().back().size / kFloat);
    parallel_chunks(count, kChunk, [=](Count begin, Count length) {
      add(static_cast<const float*>(from) + begin,
          length,
          static_cast<float*>(to) + begin);
    });
  }

  std::string name_;
  KernelPtr kernel_;
  Count parts_;
  Bytes sum_bytes_;           // 0: the output is divided
  std::vector<Bytes> steps_;  // from a part of an operand to the next; 0: not divided
};

}  // namespace

std::optional<MicroBatches> MicroBatches::of(const KernelSpec& spec,
                                             const std::vector<std::size_t>& batched) {
  if (!spec.algorithm) return std::nullopt;
  const std::string& name = *spec.algorithm;
  const std::size_t slash = name.find('/');
  if (slash == std::string::npos) return std::nullopt;
  const std::string digits = name.substr(slash + 1);
  const bool number = !digits.empty() && digits.size() < 10 && digits[0] != '0' &&
                      digits.find_first_not_of("0123456789") == std::string::npos;
  const Count images = number ? std::stol(digits) : 0;
  if (!divides(spec, batched, images)) SpecReader(spec).fail_algorithm();
  return make_parts(spec, batched, name.substr(0, slash), images);
}

std::vector<MicroBatches> MicroBatches::list(const KernelSpec& spec,
                                             const std::vector<std::size_t>& batched) {
  std::vector<MicroBatches> found;
  Count images = operand(spec, batched.front()).shape.at(0);
  for (Count factor = 2; images > 1;) {
    if (factor * factor > images) factor = images;
    if (images % factor != 0) {
      ++factor;
      continue;
    }
    images /= factor;
    if (divides(spec, batched, images)) {
      found.push_back(make_parts(spec, batched, "", images));
    }
  }
  return found;
}

KernelSpec MicroBatches::part(const KernelSpec& spec) const {
  KernelSpec found = spec;
  for (const std::size_t number : batched) operand(found, number).shape[0] = images;
  found.algorithm = algorithm;
  return found;
}

std::string MicroBatches::name(const std::string& base) const {
  return base + "/" + std::to_string(images);
}

Bytes MicroBatches::sum_bytes(const KernelSpec& spec) const {
  return sums ? align_up(SpecReader(spec).bytes(spec.outputs.front())) : 0;
}

KernelPtr MicroBatches::make(const KernelSpec& spec, KernelPtr kernel) const {
  const SpecReader reader(spec);
  Kernel::Sizes sizes;
  for (const auto& each : spec.inputs) sizes.inputs.push_back(reader.bytes(each));
  for (const auto& each : spec.outputs) sizes.outputs.push_back(reader.bytes(each));
  return std::make_unique<MicroBatchKernel>(
      sizes, *this, std::move(kernel), sum_bytes(spec));
}

}  // namespace memcfg
