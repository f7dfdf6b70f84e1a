// Kernels of 8- and 4-bit integers against plain loops, by each set of instructions
// that oneDNN can be told to keep to: with VNNI, with AVX-512 or AVX2 without it, and
// where it lists nothing. MEMCFG_ONEDNN_LIBRARY names the library; without it, only
// what needs none is tested.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "check.hpp"
#include "children.hpp"
#include "kernels/nibbles.hpp"
#include "kernels/rounded.hpp"
#include "memcfg/onednn.hpp"
#include "operands.hpp"

using namespace operands;
using children::child_does;

namespace {

using Integers = std::vector<std::int8_t>;

// Numbers from -most to most that look random; `kLargest`: the ends alone.
enum class Kind { kRandom, kLargest, kPositive };

Integers integers(std::int64_t count, int most, Kind kind) {
  Integers found;
  for (const float each : noise(size_of(count), 7)) {
    const float end = each < -0.8F ? -1.0F : 1.0F;
    const float value = kind == Kind::kLargest ? end : each;
    found.push_back(static_cast<std::int8_t>(std::lround(value * float(most))));
  }
  return found;
}

std::vector<float> numbers(std::int64_t count, Kind kind) {
  std::vector<float> found = noise(size_of(count), 3);
  for (float& each : found) {
    if (kind == Kind::kLargest) each = each < -0.8F ? -2.0F : 2.0F;
    if (kind == Kind::kPositive) each = std::abs(each);
  }
  return found;
}

std::vector<float> scales(std::int64_t count) {
  std::vector<float> found = noise(size_of(count), 5);
  for (float& each : found) each = 0.01F + 0.005F * each;
  return found;
}

// Rows of integers, with what stands for one of each row.
struct Rounded {
  std::vector<std::int32_t> values;
  std::vector<float> scales;
};

Rounded rounded(const std::vector<float>& x, std::int64_t row) {
  Rounded made;
  for (auto from = x.begin(); from != x.end(); from += row) {
    float most = 0;
    for (auto each = from; each != from + row; ++each) {
      most = std::max(most, std::abs(*each));
    }
    made.scales.push_back(most / 127.0F);
    const float factor = 127.0F / most;
    for (auto each = from; each != from + row; ++each) {
      made.values.push_back(static_cast<std::int32_t>(std::nearbyint(*each * factor)));
    }
  }
  return made;
}

void check_same(const Block& y, const std::vector<float>& wanted) {
  CHECK(y.floats() == wanted);
}

void check_dense_int8(const memcfg::OneDnn& library,
                      std::int64_t m,
                      std::int64_t k,
                      std::int64_t n,
                      Kind kind) {
  const auto x = numbers(m * k, kind), own = scales(n);
  const Integers kernel = integers(k * n, 127, kind);
  const Rounded left = rounded(x, k);
  std::vector<float> wanted;
  for (std::int64_t i = 0; i < m; ++i) {
    for (std::int64_t j = 0; j < n; ++j) {
      std::int32_t sum = 0;
      for (std::int64_t t = 0; t < k; ++t) {
        sum += left.values[size_of(i * k + t)] * kernel[size_of(t * n + j)];
      }
      wanted.push_back(static_cast<float>(sum) * left.scales[size_of(i)] *
                       own[size_of(j)]);
    }
  }
  const KernelSpec spec{
      "dense_int8", {}, {f32({m, k}), {{k, n}, "int8"}, f32({n})}, {f32({m, n})}};
  const Block a(x), b(kernel), c(own), y = floats(size_of(m * n));
  run(*memcfg::make_kernel(spec, &library), {&a, &b, &c, &y});
  check_same(y, wanted);
}

// Two rows of integers of 4 bits in a row of bytes, the first in the low bits.
std::vector<std::uint8_t> packed(const Integers& from, std::int64_t n) {
  const auto rows = static_cast<std::int64_t>(from.size()) / n;
  std::vector<std::uint8_t> made(size_of((rows + 1) / 2 * n));
  for (std::int64_t i = 0; i < rows; ++i) {
    for (std::int64_t j = 0; j < n; ++j) {
      const unsigned code = static_cast<unsigned>(from[size_of(i * n + j)]) & 15U;
      auto& to = made[size_of(i / 2 * n + j)];
      to = static_cast<std::uint8_t>(to | code << (i % 2 == 0 ? 0 : 4));
    }
  }
  return made;
}

void check_dense_int4(const memcfg::OneDnn& library,
                      std::int64_t m,
                      std::int64_t k,
                      std::int64_t n,
                      std::int64_t group,
                      Kind kind) {
  const std::int64_t groups = (k + group - 1) / group;
  const auto x = numbers(m * k, kind), own = scales(groups * n);
  const Integers kernel = integers(k * n, 7, kind);
  const Rounded left = rounded(x, k);
  std::vector<float> wanted;
  for (std::int64_t i = 0; i < m; ++i) {
    for (std::int64_t j = 0; j < n; ++j) {
      float total = 0;
      for (std::int64_t g = 0; g < groups; ++g) {
        std::int32_t sum = 0;
        for (std::int64_t t = g * group; t < std::min(k, (g + 1) * group); ++t) {
          sum += left.values[size_of(i * k + t)] * kernel[size_of(t * n + j)];
        }
        const float made = static_cast<float>(sum) * own[size_of(g * n + j)];
        total = total + made;
      }
      wanted.push_back(total * left.scales[size_of(i)]);
    }
  }
  const auto codes = packed(kernel, n);
  const KernelSpec spec{"dense_int4",
                        {{"inputs", k}, {"group", group}},
                        {f32({m, k}), {{(k + 1) / 2, n}, "uint8"}, f32({groups, n})},
                        {f32({m, n})}};
  const Block a(x), b(codes), c(own), y = floats(size_of(m * n));
  run(*memcfg::make_kernel(spec, &library), {&a, &b, &c, &y});
  check_same(y, wanted);
}

// A convolution over square images, with the same padding on all sides.
struct Window {
  std::int64_t images, side, channels, kernel, filters, stride, padding, dilation,
      groups;

  std::int64_t out() const {
    return (side + 2 * padding - (kernel - 1) * dilation - 1) / stride + 1;
  }
  std::int64_t inputs() const { return channels / groups; }
  std::int64_t image() const { return side * side * channels; }
  std::int64_t weights() const { return kernel * kernel * inputs() * filters; }
  std::int64_t results() const { return images * out() * out() * filters; }
  KernelSpec spec() const {
    const std::vector<std::int64_t> around(4, padding), steps(2, stride);
    return {"conv2d_int8",
            {{"strides", steps},
             {"padding", around},
             {"dilation", std::vector<std::int64_t>(2, dilation)},
             {"groups", groups}},
            {f32({images, side, side, channels}),
             {{kernel, kernel, inputs(), filters}, "int8"},
             f32({filters})},
            {f32({images, out(), out(), filters})}};
  }
};

std::vector<float> convolved(const Window& w,
                             const Rounded& x,
                             const Integers& kernel,
                             const std::vector<float>& own) {
  std::vector<float> made;
  for (std::int64_t at = 0; at < w.results(); ++at) {
    const std::int64_t filter = at % w.filters, pixel = at / w.filters;
    const std::int64_t column = pixel % w.out(), row = pixel / w.out() % w.out();
    const std::int64_t image = pixel / w.out() / w.out();
    const std::int64_t first = filter / (w.filters / w.groups) * w.inputs();
    std::int32_t sum = 0;
    for (std::int64_t i = 0; i < w.kernel * w.kernel * w.inputs(); ++i) {
      const std::int64_t channel = i % w.inputs(), tap = i / w.inputs();
      const std::int64_t h = row * w.stride - w.padding + tap / w.kernel * w.dilation;
      const std::int64_t v =
          column * w.stride - w.padding + tap % w.kernel * w.dilation;
      if (h < 0 || h >= w.side || v < 0 || v >= w.side) continue;
      const std::int64_t place =
          ((image * w.side + h) * w.side + v) * w.channels + first + channel;
      sum += x.values[size_of(place)] * kernel[size_of(i * w.filters + filter)];
    }
    made.push_back(static_cast<float>(sum) * x.scales[size_of(image)] *
                   own[size_of(filter)]);
  }
  return made;
}

void check_convolution(const memcfg::OneDnn& library, const Window& w, Kind kind) {
  const auto x = numbers(w.images * w.image(), kind), own = scales(w.filters);
  const Integers kernel = integers(w.weights(), 127, kind);
  const Block a(x), b(kernel), c(own), y = floats(size_of(w.results()));
  run(*memcfg::make_kernel(w.spec(), &library), {&a, &b, &c, &y});
  check_same(y, convolved(w, rounded(x, w.image()), kernel, own));
}

// images, side, channels, kernel, filters, stride, padding, dilation, groups
constexpr Window kWindows[] = {
    {2, 7, 3, 3, 9, 1, 1, 1, 1},
    {3, 6, 1, 5, 20, 1, 0, 1, 1},
    {2, 9, 8, 3, 16, 2, 1, 1, 2},
    {1, 9, 5, 2, 3, 1, 0, 3, 1},
    {3, 8, 6, 3, 6, 1, 1, 1, 6},
    {2, 5, 16, 1, 40, 1, 0, 1, 1},
    {2, 6, 32, 3, 24, 1, 1, 1, 1},
    {1, 17, 4, 3, 12, 1, 1, 1, 1},  // of too many pixels to gather
    {2, 16, 8, 3, 16, 1, 1, 2, 1},
};

constexpr Kind kKinds[] = {Kind::kRandom, Kind::kLargest, Kind::kPositive};

// Work with the library in a child, which is told of the instructions before it loads
// it. One thread: the library's own threads would be foreign to the sanitizers.
void with_instructions(const char* most,
                       const std::function<void(const memcfg::OneDnn&)>& work) {
  const char* const path = std::getenv("MEMCFG_ONEDNN_LIBRARY");
  if (path == nullptr || *path == 0) {
    std::printf("skipped: MEMCFG_ONEDNN_LIBRARY names no library\n");
    return;
  }
  const bool right = child_does([&] {
    setenv("ONEDNN_MAX_CPU_ISA", most, 1);
    setenv("OMP_NUM_THREADS", "1", 1);
    work(memcfg::OneDnn(path));
  });
  if (!right) std::printf("with the instructions %s\n", most);
  CHECK(right);
}

constexpr const char* kInstructions[] = {"ALL", "AVX512_CORE", "AVX2", "SSE41"};

}  // namespace

TEST(products_by_8_bits_are_those_of_a_loop) {
  for (const char* const most : kInstructions) {
    with_instructions(most, [](const memcfg::OneDnn& library) {
      for (const Kind kind : kKinds) {
        for (const std::int64_t m : {1, 4, 5, 33}) {
          check_dense_int8(library, m, 67, 35, kind);
        }
      }
      check_dense_int8(library, 2, 3, 1030, Kind::kRandom);  // of two blocks of columns
      check_dense_int8(library, 300, 5, 7, Kind::kRandom);   // of two blocks of rows
    });
  }
}

TEST(products_by_4_bits_are_those_of_a_loop) {
  for (const char* const most : kInstructions) {
    with_instructions(most, [](const memcfg::OneDnn& library) {
      for (const Kind kind : kKinds) {
        for (const std::int64_t m : {2, 9}) {
          check_dense_int4(library, m, 67, 35, 67, kind);
          check_dense_int4(library, m, 67, 35, 13, kind);  // begins in the high bits
          check_dense_int4(library, m, 66, 70, 64, kind);
        }
      }
      check_dense_int4(library, 3, 5, 520, 5, Kind::kRandom);
      check_dense_int4(library, 300, 5, 7, 2, Kind::kRandom);
    });
  }
}

TEST(convolutions_by_8_bits_are_those_of_a_loop) {
  for (const char* const most : kInstructions) {
    with_instructions(most, [](const memcfg::OneDnn& library) {
      for (const Kind kind : kKinds) {
        for (const Window& each : kWindows) check_convolution(library, each, kind);
      }
    });
  }
}

TEST(threads_share_a_kernel) {
  with_instructions("ALL", [](const memcfg::OneDnn& library) {
    const Window& w = kWindows[0];
    const auto made = memcfg::make_kernel(w.spec(), &library);
    const auto x = numbers(w.images * w.image(), Kind::kRandom);
    const auto own = scales(w.filters);
    const Integers kernel = integers(w.weights(), 127, Kind::kRandom);
    const auto wanted = convolved(w, rounded(x, w.image()), kernel, own);
    const Block a(x), b(kernel), c(own);
    bool same[2] = {false, false};
    const auto work = [&](bool& to) {
      const Block y = floats(size_of(w.results()));
      for (int i = 0; i < 20; ++i) run(*made, {&a, &b, &c, &y});
      to = y.floats() == wanted;
    };
    std::thread first(work, std::ref(same[0])), second(work, std::ref(same[1]));
    first.join();
    second.join();
    CHECK(same[0] && same[1]);
  });
}

TEST(sums_of_few_rows_and_of_windows_are_those_of_a_loop) {
  constexpr std::int64_t kColumns = 13, kUnits = 20, kStride = 11;
  for (const std::int64_t k : {1, 2, 9}) {
    const Integers x = integers(3 * kStride, 127, Kind::kLargest);
    const Integers kernel = integers(k * kUnits, 127, Kind::kLargest);
    std::vector<std::int32_t> wanted(3 * kUnits, 5);
    for (std::int64_t i = 0; i < 3 * kColumns * k; ++i) {
      const std::int64_t row = i / k / kColumns, column = i / k % kColumns, t = i % k;
      wanted[size_of(row * kUnits + column)] +=
          x[size_of(row * kStride + t)] * kernel[size_of(t * kUnits + column)];
    }
    const Block a(x), b(kernel), sums(std::vector<std::int32_t>(3 * kUnits, 5));
    memcfg::add_integer_products(static_cast<const std::int8_t*>(a.data()),
                                 kStride,
                                 static_cast<const std::int8_t*>(b.data()),
                                 3,
                                 k,
                                 kUnits,
                                 kColumns,
                                 static_cast<std::int32_t*>(sums.data()),
                                 kUnits);
    CHECK(sums.values<std::int32_t>() == wanted);
  }
}

TEST(numbers_are_rounded_to_the_nearest_integers) {
  const std::vector<float> x{0.5F, -2.0F, 1.0F, 0.0F, -0.004F, 2.0F, 1.4F};
  const Rounded wanted = rounded(x, 7);
  const memcfg::Extremes found = memcfg::extremes_of(x.data(), 7);
  CHECK(found.negative);
  const memcfg::Rounding by = found.rounding();
  CHECK(by.scale == wanted.scales[0]);
  using memcfg::Magnitudes;
  for (const auto which :
       {Magnitudes::of_all, Magnitudes::of_positive, Magnitudes::of_negative}) {
    const Block to(Integers(7, 99));
    memcfg::round_to_integers(
        x.data(), 7, by.factor, which, static_cast<std::int8_t*>(to.data()));
    for (std::size_t i = 0; i < 7; ++i) {
      std::int32_t value = wanted.values[i];
      if (which == Magnitudes::of_positive) value = std::max(value, 0);
      if (which == Magnitudes::of_negative) value = std::max(-value, 0);
      CHECK(to.values<std::int8_t>()[i] == value);
    }
  }
}

TEST(what_has_no_scale_is_zero_or_nan) {
  for (const float each : {0.0F, 1e-45F}) {
    const memcfg::Rounding found = memcfg::extremes_of(&each, 1).rounding();
    CHECK(found.factor == 0 && found.scale == 0);
  }
  for (const float each : {kNan, kInfinity, -kInfinity}) {
    const memcfg::Rounding found = memcfg::extremes_of(&each, 1).rounding();
    CHECK(found.factor == 0 && std::isnan(found.scale));
    const Block to(Integers(1, 99));
    memcfg::round_to_integers(&each,
                              1,
                              found.factor,
                              memcfg::Magnitudes::of_all,
                              static_cast<std::int8_t*>(to.data()));
    CHECK(to.values<std::int8_t>()[0] == 0);
  }
}

TEST(integers_times_their_scales) {
  constexpr std::int64_t kRows = 9, kUnits = 21;
  for (const bool halves : {false, true}) {
    for (const std::int64_t group : {1, 4, 9}) {
      const std::int64_t groups = (kRows + group - 1) / group;
      const Integers kernel = integers(kRows * kUnits, halves ? 7 : 127, Kind::kRandom);
      const auto own = scales(groups * kUnits);
      std::vector<float> wanted;
      for (std::int64_t i = 0; i < kRows * kUnits; ++i) {
        const std::int64_t scale = i / kUnits / group * kUnits + i % kUnits;
        wanted.push_back(static_cast<float>(kernel[size_of(i)]) * own[size_of(scale)]);
      }
      const std::int64_t held = halves ? memcfg::nibble_rows(kRows) : kRows;
      const KernelSpec spec{
          "dequantize",
          {{"group", group}},
          {{{held, kUnits}, halves ? "uint8" : "int8"}, f32({groups, kUnits})},
          {f32({kRows, kUnits})}};
      const Block bytes = halves ? Block(packed(kernel, kUnits)) : Block(kernel);
      const Block b(own), y = floats(kRows * kUnits);
      run(spec, {&bytes, &b, &y});
      check_same(y, wanted);
    }
  }
}
