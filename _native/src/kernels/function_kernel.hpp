// What most kernels are made of, and how a type of kernel makes itself known.
#pragma once

#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "kernels/functions.hpp"
#include "kernels/spec.hpp"
#include "memcfg/kernel.hpp"
#include "memcfg/onednn.hpp"

namespace memcfg {

using KernelPtr = std::unique_ptr<Kernel>;

// What operands a type of kernel takes beside float32. Others run on bfloat16 through
// copies in float32 (`kernels/widened.hpp`): of a few samples at a time, if the type
// says that a result's sample is one of the operands' at the same place of the first
// axis.
enum class Floats { float32, samples, bfloat16 };

// A type of kernel. One is a constant beside the function that makes its kernels: that
// it is there makes the type known, from when the program is loaded. Nothing else may
// happen while programs are loaded than that these find each other.
class KernelType : private NoCopy {
 public:
  using Make = KernelPtr (*)(const KernelSpec&);
  using MakeOnLibrary = KernelPtr (*)(const KernelSpec&, const OneDnn&);
  using List = std::vector<Algorithm> (*)(const KernelSpec&, const OneDnn&);
  using Pack = std::optional<Packing> (*)(const KernelSpec&, const OneDnn&);

  KernelType(const char* name, Make make, Floats floats = Floats::float32) noexcept
      : name_(name),
        make_(make),
        floats_(floats),
        next_(std::exchange(first(), this)) {}
  // `list` tells the algorithms; null for a type that has one. `pack` makes what
  // `make_packing` returns; null for a type that packs nothing.
  KernelType(const char* name,
             MakeOnLibrary make,
             List list = nullptr,
             Floats floats = Floats::float32,
             Pack pack = nullptr) noexcept
      : name_(name),
        make_on_library_(make),
        list_(list),
        pack_(pack),
        floats_(floats),
        next_(std::exchange(first(), this)) {}

  // Null for a name that no type has.
  static const KernelType* find(const std::string& name) noexcept {
    const KernelType* type = first();
    while (type != nullptr && name != type->name_) type = type->next_;
    return type;
  }

  bool on_library() const noexcept { return make_on_library_ != nullptr; }
  KernelPtr make(const KernelSpec& spec) const { return make_(spec); }
  KernelPtr make(const KernelSpec& spec, const OneDnn& library) const {
    return make_on_library_(spec, library);
  }
  bool takes_bfloat16() const noexcept { return floats_ == Floats::bfloat16; }
  bool is_of_samples() const noexcept { return floats_ == Floats::samples; }
  bool has_list() const noexcept { return list_ != nullptr; }
  std::vector<Algorithm> list(const KernelSpec& spec, const OneDnn& library) const {
    return list_(spec, library);
  }
  bool has_pack() const noexcept { return pack_ != nullptr; }
  std::optional<Packing> pack(const KernelSpec& spec, const OneDnn& library) const {
    return pack_(spec, library);
  }

 private:
  static const KernelType*& first() noexcept {
    static const KernelType* type = nullptr;
    return type;
  }

  const char* name_;
  Make make_ = nullptr;
  MakeOnLibrary make_on_library_ = nullptr;
  List list_ = nullptr;
  Pack pack_ = nullptr;
  Floats floats_ = Floats::float32;
  const KernelType* next_;
};

// A kernel that is one callable: body(operands, scratch).
template <class Body>
class FunctionKernel final : public Kernel {
 public:
  FunctionKernel(const Sizes& sizes, Bytes scratch_bytes, Body body)
      : Kernel(sizes), scratch_bytes_(scratch_bytes), body_(std::move(body)) {}
  Bytes scratch_bytes() const noexcept override { return scratch_bytes_; }
  void run(void* const* operands, void* scratch, RunState*) const override {
    body_(operands, scratch);
  }

 private:
  Bytes scratch_bytes_;
  Body body_;
};

template <class Body>
KernelPtr function_kernel(const Kernel::Sizes& sizes, Bytes scratch_bytes, Body body) {
  return std::make_unique<FunctionKernel<Body>>(sizes, scratch_bytes, std::move(body));
}

// An operand as an array. Pre: the op declares that type for it.
inline const float* input(void* const* operands, int index) {
  return static_cast<const float*>(operands[index]);
}
inline float* output(void* const* operands, int index) {
  return static_cast<float*>(operands[index]);
}
// The dtype of an element type, and make(an element) for that of the first input.
template <class T>
inline constexpr const char* kName = std::is_same_v<T, float> ? kFloat32 : kBfloat16;

template <class Make>
KernelPtr of_floats(const KernelSpec& spec, const Make& make, std::size_t place = 0) {
  const SpecReader reader(spec);
  if (spec.inputs.size() <= place) reader.fail("reads more");
  if (reader.is_bfloat16(spec.inputs[place])) return make(Bfloat16{});
  return make(float{});
}

template <class T>
const T* input_as(void* const* operands, int index) {
  return static_cast<const T*>(operands[index]);
}
template <class T>
T* output_as(void* const* operands, int index) {
  return static_cast<T*>(operands[index]);
}

}  // namespace memcfg
