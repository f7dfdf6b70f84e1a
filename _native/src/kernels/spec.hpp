// Reading a KernelSpec: counts, signs and products are checked once, here.
#pragma once

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <limits>
#include <stdexcept>
#include <string>

#include "memcfg/kernel.hpp"

namespace memcfg {

using Count = std::int64_t;  // a number of elements, rows, channels, ...

inline constexpr Bytes kFloat = sizeof(float);

// Hands out the numbers of a spec in order. Every failure is an
// std::invalid_argument that names the type and the number.
class SpecReader {
 public:
  SpecReader(const KernelSpec& spec, std::size_t integers, std::size_t reals)
      : spec_(spec) {
    if (spec.integers.size() != integers || spec.reals.size() != reals) {
      fail("takes " + std::to_string(integers) + " integers and " +
           std::to_string(reals) + " reals, got " +
           std::to_string(spec.integers.size()) + " and " +
           std::to_string(spec.reals.size()));
    }
  }

  Count natural(const char* name) { return next(name, 0); }
  // A number of elements, so that its bytes can be counted.
  Count positive(const char* name) { return product({next(name, 1)}); }
  // A dimension for oneDNN, whose heuristics count in 32 bits: on some processors they
  // divide by an overflowed zero.
  Count narrow(const char* name) {
    const Count value = positive(name);
    if (value > std::numeric_limits<std::int32_t>::max()) {
      fail(std::string("needs ") + name + " < 2^31, got " + std::to_string(value));
    }
    return value;
  }
  double real() { return spec_.reals[next_real_++]; }

  // The product, which must be a size in floats that fits an address space.
  Count product(std::initializer_list<Count> factors) const {
    Count result = 1;
    for (const Count factor : factors) {
      if (factor != 0 && result > kMost / factor) fail("has too large a shape");
      result *= factor;
    }
    return result;
  }

  [[noreturn]] void fail(const std::string& words) const {
    throw std::invalid_argument("kernel '" + spec_.type + "' " + words);
  }

 private:
  static constexpr Count kMost = Count{1} << 60;

  Count next(const char* name, Count least) {
    const Count value = spec_.integers[next_integer_++];
    if (value < least) {
      fail(std::string("needs ") + name + " >= " + std::to_string(least) + ", got " +
           std::to_string(value));
    }
    return value;
  }

  const KernelSpec& spec_;
  std::size_t next_integer_ = 0;
  std::size_t next_real_ = 0;
};

inline Bytes float_bytes(Count count) {
  return static_cast<Bytes>(count) * kFloat;
}

}  // namespace memcfg
