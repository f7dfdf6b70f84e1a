// Reading a KernelSpec: names, counts, signs and products are checked once, here.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <limits>
#include <stdexcept>
#include <string>
#include <vector>

#include "memcfg/kernel.hpp"

namespace memcfg {

using Count = std::int64_t;  // a number of elements, rows, channels, ...

inline constexpr Bytes kFloat = sizeof(float);
inline constexpr const char* kFloat32 = "float32";
inline constexpr const char* kBfloat16 = "bfloat16";
inline constexpr const char* kInt32 = "int32";
inline constexpr const char* kInt64 = "int64";
inline constexpr const char* kInt8 = "int8";
inline constexpr const char* kUint8 = "uint8";
inline constexpr const char* kAnyDtype = nullptr;

inline Bytes float_bytes(Count count) {
  return static_cast<Bytes>(count) * kFloat;
}

// Every failure is an std::invalid_argument that names the type and what is wrong.
class SpecReader {
 public:
  using Dtypes = std::vector<const char*>;
  // An array seen as rows of its last dimension; one number is a row of one.
  struct Rows {
    Count rows, channels, count;
  };

  // Refuses another number of operands, or other types, than these.
  SpecReader(const KernelSpec& spec, const Dtypes& inputs, const Dtypes& outputs)
      : spec_(spec) {
    check_dtypes("inputs", spec.inputs, inputs);
    check_dtypes("outputs", spec.outputs, outputs);
  }
  explicit SpecReader(const KernelSpec& spec) : spec_(spec) {}

  // Of an operand: its dimensions, of which there are `rank`, each positive.
  const std::vector<Count>& shape(const OperandSpec& operand, std::size_t rank) const;
  Count count(const OperandSpec& operand) const;
  Rows rows(const OperandSpec& operand) const;
  Bytes bytes(const OperandSpec& operand) const;
  // Of an operand that is float32 or bfloat16: whether it is bfloat16.
  bool is_bfloat16(const OperandSpec& operand) const {
    if (operand.dtype != kFloat32 && operand.dtype != kBfloat16) {
      fail("takes float32 and bfloat16, not " + operand.dtype);
    }
    return operand.dtype == kBfloat16;
  }
  // A dimension for oneDNN, whose heuristics count in 32 bits: on some processors they
  // divide by an overflowed zero.
  Count narrow(Count value, const char* name) const;

  // Attributes.
  bool has(const char* name) const { return spec_.attributes.count(name) != 0; }
  Count integer(const char* name, Count least) const;
  double real(const char* name) const;  // a whole number is one, too
  const std::string& text(const char* name) const;
  template <std::size_t size>
  std::array<Count, size> integers(const char* name, Count least) const {
    std::array<Count, size> result;
    const auto& found = list(name, size, least);
    for (std::size_t i = 0; i < size; ++i) result[i] = found[i];
    return result;
  }
  // As many as there are, or `size` of them.
  const std::vector<Count>& integers(const char* name, Count least) const;
  const std::vector<Count>& list(const char* name, std::size_t size, Count least) const;

  // The product, which must be a size in floats that fits an address space.
  Count product(std::initializer_list<Count> factors) const {
    Count result = 1;
    for (const Count factor : factors) result = times(result, factor);
    return result;
  }

  [[noreturn]] void fail(const std::string& words) const {
    throw std::invalid_argument("kernel '" + spec_.type + "' " + words);
  }
  // Pre: the spec names one.
  [[noreturn]] void fail_algorithm() const {
    fail("has no algorithm '" + *spec_.algorithm + "'");
  }

 private:
  Count times(Count left, Count right) const;
  const KernelSpec::Attribute& attribute(const char* name) const;
  void check_dtypes(const char* side,
                    const std::vector<OperandSpec>& operands,
                    const Dtypes& dtypes) const;

  const KernelSpec& spec_;
};

}  // namespace memcfg
