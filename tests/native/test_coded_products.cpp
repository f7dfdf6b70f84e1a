// Products by codes against plain loops; damaged codes stay inside.
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <random>
#include <stdexcept>
#include <vector>

#include "check.hpp"
#include "codecs/codebook.hpp"
#include "operands.hpp"

using namespace operands;
using memcfg::Codebook;

namespace {

constexpr std::int64_t kRows = 37, kUnits = 50, kColumns = 16;

// A matrix of sections of columns, as codes one after another; the last is raw.
struct Coded {
  std::vector<float> matrix;
  std::vector<std::byte> codes;
  std::vector<std::int64_t> ends;
};

Coded coded(unsigned seed) {
  std::mt19937 random(seed);
  Coded made;
  made.matrix.resize(kRows * kUnits);
  for (std::int64_t first = 0; first < kUnits; first += kColumns) {
    const std::int64_t own = std::min(kColumns, kUnits - first);
    const bool raw = first + own == kUnits;
    std::vector<float> part(static_cast<std::size_t>(kRows * own));
    for (std::int64_t i = 0; i < kRows * own; ++i) {
      const auto drawn = static_cast<float>(random() % 1000);
      const bool kept = raw || random() % 5 == 0;
      const float value = !kept ? 0.0F : raw ? drawn : 1 + std::fmod(drawn, 7.0F);
      part[static_cast<std::size_t>(i)] = value;
      made.matrix[static_cast<std::size_t>(i / own * kUnits + first + i % own)] = value;
    }
    const Codebook codec("codebook", Codebook::kBest, true);
    const std::size_t size = part.size() * sizeof(float), before = made.codes.size();
    made.codes.resize(before + codec.bound(size));
    made.codes.resize(before +
                      codec.encode(reinterpret_cast<const std::byte*>(part.data()),
                                   size,
                                   made.codes.data() + before,
                                   codec.bound(size)));
    made.ends.push_back(static_cast<std::int64_t>(made.codes.size()));
  }
  return made;
}

KernelSpec spec_of(const Coded& of, std::int64_t samples) {
  const auto size = static_cast<std::int64_t>(of.codes.size());
  return {"coded_dense",
          {{"ends", of.ends}, {"columns", kColumns}},
          {f32({samples, kRows}), {{size}, "uint8"}},
          {f32({samples, kUnits})}};
}

}  // namespace

TEST(products_by_codes_are_those_of_the_matrix) {
  const Coded of = coded(1);
  for (const std::int64_t samples : {1, 2, 9, 33}) {
    const auto x = noise(static_cast<std::size_t>(samples * kRows));
    const Block a(x), b(of.codes),
        y = floats(static_cast<std::size_t>(samples * kUnits));
    run(spec_of(of, samples), {&a, &b, &y});
    const auto found = y.floats();
    for (std::int64_t i = 0; i < samples; ++i) {
      for (std::int64_t j = 0; j < kUnits; ++j) {
        double sum = 0, most = 1;
        for (std::int64_t k = 0; k < kRows; ++k) {
          const double term = double{x[static_cast<std::size_t>(i * kRows + k)]} *
                              of.matrix[static_cast<std::size_t>(k * kUnits + j)];
          sum += term;
          most += std::abs(term);
        }
        const double own = found[static_cast<std::size_t>(i * kUnits + j)];
        CHECK(std::abs(own - sum) < 1e-6 * most);
      }
    }
  }
}

TEST(damaged_codes_stay_inside) {
  const Coded of = coded(2);
  std::mt19937 random(3);
  int refused = 0;
  for (int round = 0; round < 400; ++round) {
    const std::int64_t samples = round % 2 == 0 ? 1 : 3;
    std::vector<std::byte> codes = of.codes;
    for (unsigned i = random() % 4 + 1; i > 0; --i) {
      const std::size_t section = random() % of.ends.size();
      const auto begin =
          section == 0 ? 0 : static_cast<std::size_t>(of.ends[section - 1]);
      const std::size_t place =
          random() % 2 == 0 ? begin + random() % 60 : random() % codes.size();
      codes[place] = static_cast<std::byte>(random());
    }
    const Block a(noise(static_cast<std::size_t>(samples * kRows))), b(codes),
        y = floats(static_cast<std::size_t>(samples * kUnits));
    try {
      run(spec_of(of, samples), {&a, &b, &y});
    } catch (const std::invalid_argument&) {
      ++refused;
    }
  }
  CHECK(refused > 100);
}

TEST(sections_that_do_not_fit_are_refused) {
  const Coded of = coded(4);
  const auto refused = [&](const char* name, memcfg::KernelSpec::Attribute value) {
    KernelSpec spec = spec_of(of, 1);
    spec.set(name, std::move(value));
    CHECK_THROWS(std::invalid_argument, memcfg::make_kernel(spec, nullptr));
  };
  refused("columns", std::int64_t{10});
  refused("ends", std::vector<std::int64_t>{10, 5, 20, 30});
  auto ends = of.ends;
  ++ends.back();
  refused("ends", ends);
}
