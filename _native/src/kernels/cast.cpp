// cast: element by element, from one type to another.
#include <cstdint>
#include <limits>
#include <type_traits>

#include "kernels/bfloat16.hpp"
#include "kernels/function_kernel.hpp"
#include "kernels/parallel.hpp"

namespace memcfg {
namespace {

// A bool as it lies in memory; it is the number 0 or 1.
struct Flag {
  std::uint8_t value;
};

// What C++ leaves undefined, NaN and what is out of range, is the least integer.
template <class To, class From>
MEMCFG_INLINE To converted(From x) {
  if constexpr (std::is_same_v<From, Flag>) {
    return converted<To>(x.value);
  } else if constexpr (std::is_same_v<From, Bfloat16>) {
    return converted<To>(widened(x));
  } else if constexpr (std::is_same_v<To, Bfloat16>) {
    return rounded(static_cast<float>(x));
  } else if constexpr (std::is_same_v<To, Flag>) {
    return Flag{static_cast<std::uint8_t>(x != 0)};
  } else if constexpr (std::is_floating_point_v<From> && std::is_integral_v<To>) {
    using Limits = std::numeric_limits<To>;
    constexpr double least = static_cast<double>(Limits::min());
    // the first number above the range; a power of two, so that it is exact
    constexpr double above = 2.0 * static_cast<double>(Limits::max() / 2 + 1);
    const bool inside = x > least - 1.0 && x < above;
    return inside || double{x} == least ? static_cast<To>(x) : Limits::min();
  } else {
    return static_cast<To>(x);
  }
}

template <class From, class To>
KernelPtr make_converted(Count count) {
  const Bytes from_bytes = static_cast<Bytes>(count) * sizeof(From);
  const Bytes to_bytes = static_cast<Bytes>(count) * sizeof(To);
  return function_kernel(
      {{from_bytes}, {to_bytes}}, 0, [=](void* const* operands, void*) {
        const auto* x = static_cast<const From*>(operands[0]);
        auto* y = static_cast<To*>(operands[1]);
        parallel_chunks(count, kChunk, [=](Count begin, Count length) {
          if constexpr (std::is_same_v<From, float> && std::is_same_v<To, Bfloat16>) {
            round(x + begin, length, y + begin);
            return;
          }
          if constexpr (std::is_same_v<From, Bfloat16> && std::is_same_v<To, float>) {
            widen(x + begin, length, y + begin);
            return;
          }
          for (Count i = begin; i < begin + length; ++i) y[i] = converted<To>(x[i]);
        });
      });
}

// make(an element) for the type of that name.
template <class Make>
KernelPtr of_type(const SpecReader& reader,
                  const std::string& dtype,
                  const Make& make) {
  if (dtype == "float32") return make(float{});
  if (dtype == "float64") return make(double{});
  if (dtype == kBfloat16) return make(Bfloat16{});
  if (dtype == "int32") return make(std::int32_t{});
  if (dtype == "int64") return make(std::int64_t{});
  if (dtype == "int8") return make(std::int8_t{});
  if (dtype == "uint8") return make(std::uint8_t{});
  if (dtype == "bool") return make(Flag{});
  reader.fail("has no operands of type " + dtype);
}

KernelPtr make_cast(const KernelSpec& spec) {
  const SpecReader reader(spec, {kAnyDtype}, {kAnyDtype});
  const Count count = reader.count(spec.inputs[0]);
  return of_type(reader, spec.inputs[0].dtype, [&](auto from) {
    return of_type(reader, spec.outputs[0].dtype, [&](auto to) {
      return make_converted<decltype(from), decltype(to)>(count);
    });
  });
}

const KernelType kCast{"cast", make_cast, Floats::bfloat16};

}  // namespace
}  // namespace memcfg
