// Arithmetic, bits and divisors of int32, element by element, and the float next to
// another.
#include <cmath>
#include <cstdint>
#include <numeric>

#include "kernels/function_kernel.hpp"
#include "kernels/parallel.hpp"

namespace memcfg {
namespace {

using Index = std::int32_t;
using Bits = std::uint32_t;

constexpr Index kBits = 32;

bool is_shift(Index by) {
  return by >= 0 && by < kBits;
}

Index and_of(Index a, Index b) {
  return a & b;
}
Index or_of(Index a, Index b) {
  return a | b;
}
Index xor_of(Index a, Index b) {
  return a ^ b;
}
Index left_of(Index a, Index b) {
  return is_shift(b) ? static_cast<Index>(static_cast<Bits>(a) << b) : 0;
}
Index right_of(Index a, Index b) {
  return a >> (is_shift(b) ? b : kBits - 1);
}
// In 64 bits, of which the lower ones are kept: -2^31 has a magnitude.
Index divisor_of(Index a, Index b) {
  return static_cast<Index>(std::gcd(std::int64_t{a}, std::int64_t{b}));
}
Index multiple_of(Index a, Index b) {
  return static_cast<Index>(std::lcm(std::int64_t{a}, std::int64_t{b}));
}
// Results of arithmetic are their lower 32 bits.
Index low_bits(std::int64_t value) {
  return static_cast<Index>(static_cast<Bits>(static_cast<std::uint64_t>(value)));
}
Index second_of(Index, Index b) {
  return b;
}
Index sum_of(Index a, Index b) {
  return low_bits(std::int64_t{a} + b);
}
Index difference_of(Index a, Index b) {
  return low_bits(std::int64_t{a} - b);
}
Index product_of(Index a, Index b) {
  return low_bits(std::int64_t{a} * b);
}
Index larger_of(Index a, Index b) {
  return a < b ? b : a;
}
Index smaller_of(Index a, Index b) {
  return b < a ? b : a;
}
// Division by 0 gives 0. In 64 bits, in which -2^31 has a negative.
Index truncated_of(Index a, Index b) {
  return b == 0 ? 0 : static_cast<Index>(std::int64_t{a} % b);
}
Index remainder_of(Index a, Index b) {
  const Index rest = truncated_of(a, b);
  return rest != 0 && (rest < 0) != (b < 0) ? rest + b : rest;
}
Index quotient_of(Index a, Index b) {
  return b == 0 ? 0 : low_bits((std::int64_t{a} - remainder_of(a, b)) / b);
}
Index power_of(Index a, Index b) {
  if (b < 0) return a == 1 || (a == -1 && b % 2 == 0) ? 1 : a == -1 ? -1 : 0;
  Bits result = 1, base = static_cast<Bits>(a);
  for (; b > 0; b >>= 1, base *= base) {
    if ((b & 1) != 0) result *= base;
  }
  return static_cast<Index>(result);
}
Index less_of(Index a, Index b) {
  return a < b ? 1 : 0;
}
Index less_equal_of(Index a, Index b) {
  return a <= b ? 1 : 0;
}
Index equal_of(Index a, Index b) {
  return a == b ? 1 : 0;
}
Index not_equal_of(Index a, Index b) {
  return a != b ? 1 : 0;
}
float next_of(float a, float b) {
  return std::nextafter(a, b);
}

template <class T, T (*function)(T, T)>
KernelPtr make(const KernelSpec& spec) {
  const char* dtype = std::is_same_v<T, float> ? kFloat32 : kInt32;
  const SpecReader reader(spec, {dtype, dtype}, {dtype});
  const Count count = reader.count(spec.inputs[0]);
  if (reader.count(spec.inputs[1]) != count) reader.fail("needs operands of one size");
  const Bytes bytes = static_cast<Bytes>(count) * sizeof(T);
  return function_kernel(
      {{bytes, bytes}, {bytes}}, 0, [=](void* const* operands, void*) {
        const T* a = input_as<T>(operands, 0);
        const T* b = input_as<T>(operands, 1);
        T* y = output_as<T>(operands, 2);
        parallel_chunks(count, kChunk, [=](Count begin, Count length) {
          MEMCFG_INDEPENDENT
          for (Count i = begin; i < begin + length; ++i) y[i] = function(a[i], b[i]);
        });
      });
}

const KernelType kAnd{"bitwise_and", make<Index, and_of>};
const KernelType kOr{"bitwise_or", make<Index, or_of>};
const KernelType kXor{"bitwise_xor", make<Index, xor_of>};
const KernelType kLeft{"left_shift", make<Index, left_of>};
const KernelType kRight{"right_shift", make<Index, right_of>};
const KernelType kDivisor{"greatest_common_divisor", make<Index, divisor_of>};
const KernelType kMultiple{"least_common_multiple", make<Index, multiple_of>};
const KernelType kSum{"integer_add", make<Index, sum_of>};
const KernelType kDifference{"integer_subtract", make<Index, difference_of>};
const KernelType kProduct{"integer_multiply", make<Index, product_of>};
const KernelType kLarger{"integer_maximum", make<Index, larger_of>};
const KernelType kSmaller{"integer_minimum", make<Index, smaller_of>};
const KernelType kQuotient{"integer_floor_divide", make<Index, quotient_of>};
const KernelType kRemainder{"integer_remainder", make<Index, remainder_of>};
const KernelType kTruncated{"integer_truncated_remainder", make<Index, truncated_of>};
const KernelType kPower{"integer_power_of", make<Index, power_of>};
const KernelType kAssign{"integer_assign", make<Index, second_of>};
const KernelType kLess{"integer_less", make<Index, less_of>};
const KernelType kLessEqual{"integer_less_equal", make<Index, less_equal_of>};
const KernelType kEqual{"integer_equal", make<Index, equal_of>};
const KernelType kNotEqual{"integer_not_equal", make<Index, not_equal_of>};
const KernelType kNext{"next_after", make<float, next_of>};

}  // namespace
}  // namespace memcfg
