// dequantize: integers of 8 or 4 bits times the scale of their column, in each group of
// rows.
#include "kernels/function_kernel.hpp"
#include "kernels/nibbles.hpp"

namespace memcfg {
namespace {

MEMCFG_VECTORIZED void scale_bytes(const std::int8_t* from,
                                   const float* scales,
                                   Count count,
                                   float* to) {
  MEMCFG_INDEPENDENT
  for (Count i = 0; i < count; ++i) to[i] = static_cast<float>(from[i]) * scales[i];
}
MEMCFG_VECTORIZED void scale_low(const std::uint8_t* from,
                                 const float* scales,
                                 Count count,
                                 float* to) {
  MEMCFG_INDEPENDENT
  for (Count i = 0; i < count; ++i) {
    to[i] = static_cast<float>(low_of(from[i])) * scales[i];
  }
}
MEMCFG_VECTORIZED void scale_high(const std::uint8_t* from,
                                  const float* scales,
                                  Count count,
                                  float* to) {
  MEMCFG_INDEPENDENT
  for (Count i = 0; i < count; ++i) {
    to[i] = static_cast<float>(high_of(from[i])) * scales[i];
  }
}

KernelPtr make_dequantize(const KernelSpec& spec) {
  const SpecReader reader(spec, {kAnyDtype, kFloat32}, {kFloat32});
  const auto [rows, n, count] = reader.rows(spec.outputs[0]);
  const bool halves = spec.inputs[0].dtype == kUint8;
  if (!halves && spec.inputs[0].dtype != kInt8) reader.fail("takes int8 and uint8");
  const Groups of{rows, n, reader.integer("group", 1)};
  const Count held = halves ? nibble_rows(rows) : rows;
  if (reader.count(spec.inputs[0]) != held * n) reader.fail("has codes of other rows");
  if (reader.count(spec.inputs[1]) != of.count() * n) {
    reader.fail("has scales of other groups");
  }
  return function_kernel(
      {{static_cast<Bytes>(held * n), float_bytes(of.count() * n)},
       {float_bytes(count)}},
      0,
      [=](void* const* operands, void*) {
        const auto* const codes = input_as<std::uint8_t>(operands, 0);
        const float* const scales = input(operands, 1);
        float* const y = output(operands, 2);
        parallel_for(of.rows, count, [=](Count row) {
          const float* const own = scales + row / of.group * of.n;
          float* const to = y + row * of.n;
          if (!halves) {
            const auto* const from = reinterpret_cast<const std::int8_t*>(codes);
            scale_bytes(from + row * of.n, own, of.n, to);
          } else {
            const auto scale = row % 2 == 0 ? scale_low : scale_high;
            scale(codes + row / 2 * of.n, own, of.n, to);
          }
        });
      });
}

const KernelType kDequantize{"dequantize", make_dequantize};

}  // namespace
}  // namespace memcfg
