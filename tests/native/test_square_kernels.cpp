// Norms and factored moments against plain loops.
#include <cmath>
#include <cstdint>
#include <stdexcept>
#include <vector>

#include "check.hpp"
#include "operands.hpp"

using namespace operands;

TEST(the_norm_of_several_arrays) {
  for (const std::size_t count : {1UL, 15UL, 33UL, 20001UL}) {
    const auto x = noise(count), z = noise(7, 2);
    const Block a(x), b(z), y = floats(1);
    const std::int64_t n = static_cast<std::int64_t>(count);
    run({"norm", {}, {f32({n}), f32({7})}, {f32()}}, {&a, &b, &y});
    double total = 0;
    for (const float each : x) total += double{each} * double{each};
    for (const float each : z) total += double{each} * double{each};
    const double norm = std::sqrt(total);
    CHECK(std::abs(y.floats()[0] - norm) < 1e-5 * norm);
  }
}

TEST(factored_moments_and_what_is_divided_by_their_roots) {
  const std::int64_t matrices = 2, rows = 5, columns = 259;
  const std::size_t count = 2 * 5 * 259;
  const auto g = noise(count);
  const Block x(g), r = floats(10), c = floats(2 * 259), unit = floats(count);
  const OperandSpec all = f32({matrices, rows, columns});
  const OperandSpec by_row = f32({matrices, rows}),
                    by_column = f32({matrices, columns});
  const double epsilon = 0.25;
  run({"factored_means", {{"epsilon", epsilon}}, {all}, {by_row, by_column}},
      {&x, &r, &c});
  for (std::size_t i : {0UL, 9UL}) {
    double total = 0;
    for (std::size_t j = 0; j < 259; ++j)
      total += double{g[i * 259 + j]} * g[i * 259 + j];
    CHECK(std::abs(r.floats()[i] - (total / 259 + epsilon)) < 1e-5);
  }
  for (std::size_t j : {0UL, 255UL, 256UL, 258UL}) {
    double total = 0;
    for (std::size_t i = 5; i < 10; ++i)
      total += double{g[i * 259 + j]} * g[i * 259 + j];
    CHECK(std::abs(c.floats()[259 + j] - (total / 5 + epsilon)) < 1e-5);
  }
  run({"over_factored_root", {}, {all, by_row, by_column}, {all}}, {&x, &r, &c, &unit});
  const auto means = r.floats();
  double mean = 0;
  for (std::size_t i = 5; i < 10; ++i) mean += means[i] / 5.0;
  const double square = means[9] / mean * c.floats()[2 * 259 - 1];
  CHECK(std::abs(unit.floats()[count - 1] - g[count - 1] / std::sqrt(square)) < 1e-5);
  run({"over_factored_root", {}, {all, by_row, by_column}, {all}}, {&x, &r, &c, &x});
  CHECK(x.floats() == unit.floats());
}

TEST(operands_that_do_not_fit_are_refused) {
  using Bad = std::invalid_argument;
  const auto make = [](const KernelSpec& spec) {
    return memcfg::make_kernel(spec, nullptr);
  };
  CHECK_THROWS(Bad, make({"norm", {}, {f32({4})}, {f32({2})}}));
  CHECK_THROWS(Bad, make({"norm", {}, {{{4}, "int32"}}, {f32()}}));
  CHECK_THROWS(Bad, make({"factored_means", {}, {f32({4})}, {f32(), f32({4})}}));
}
