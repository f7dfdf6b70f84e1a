// Attention without a matrix of scores, against plain loops that have one.
#include <cmath>
#include <cstdint>
#include <stdexcept>
#include <vector>

#include "check.hpp"
#include "operands.hpp"

using namespace operands;

namespace {

constexpr std::size_t kBatch = 2, kQueries = 67, kKeys = 70, kHeads = 2;
constexpr std::size_t kDepth = 5, kWidth = 18;
const char* const kName = "scaled_dot_product_attention";

std::int64_t length(std::size_t of) {
  return static_cast<std::int64_t>(of);
}

OperandSpec steps(std::size_t count, std::size_t features) {
  return f32({length(kBatch), length(count), length(kHeads), length(features)});
}

std::size_t at(std::size_t all, std::size_t b, std::size_t i, std::size_t h) {
  return (b * all + i) * kHeads + h;
}

struct Case {
  bool causal;
  std::vector<float> q = noise(kBatch * kQueries * kHeads * kDepth, 1);
  std::vector<float> k = noise(kBatch * kKeys * kHeads * kDepth, 2);
  std::vector<float> v = noise(kBatch * kKeys * kHeads * kWidth, 3);
  std::vector<float> dy = noise(kBatch * kQueries * kHeads * kWidth, 4);
  std::vector<float> mask = std::vector<float>(kBatch * kKeys, 1.0F);
  std::vector<double> y = std::vector<double>(dy.size());
  std::vector<double> dq = std::vector<double>(q.size());
  std::vector<double> dk = std::vector<double>(k.size());
  std::vector<double> dv = std::vector<double>(v.size());

  explicit Case(bool is_causal) : causal(is_causal) {
    for (std::size_t i = 3; i < mask.size(); i += 4) mask[i] = 0;
    for (std::size_t b = 0; b < kBatch; ++b) {
      for (std::size_t h = 0; h < kHeads; ++h) {
        for (std::size_t i = 0; i < kQueries; ++i) row(b, h, i);
      }
    }
  }

  void row(std::size_t b, std::size_t h, std::size_t i) {
    std::vector<double> weights(kKeys), slopes(kKeys);
    double total = 0, mean = 0;
    const std::size_t own = at(kQueries, b, i, h);
    for (std::size_t j = 0; j < kKeys; ++j) {
      if ((causal && j > i) || mask[b * kKeys + j] == 0) continue;
      double score = 0;
      for (std::size_t d = 0; d < kDepth; ++d) {
        score += double{q[own * kDepth + d]} * k[at(kKeys, b, j, h) * kDepth + d];
      }
      total += weights[j] = std::exp(score * 0.5);
    }
    for (std::size_t j = 0; j < kKeys; ++j) {
      weights[j] /= total;
      for (std::size_t c = 0; c < kWidth; ++c) {
        const double value = v[at(kKeys, b, j, h) * kWidth + c];
        y[own * kWidth + c] += weights[j] * value;
        slopes[j] += dy[own * kWidth + c] * value;
        dv[at(kKeys, b, j, h) * kWidth + c] += weights[j] * dy[own * kWidth + c];
      }
      mean += weights[j] * slopes[j];
    }
    for (std::size_t j = 0; j < kKeys; ++j) {
      const double slope = weights[j] * (slopes[j] - mean) * 0.5;
      for (std::size_t d = 0; d < kDepth; ++d) {
        const std::size_t key = at(kKeys, b, j, h) * kDepth + d;
        dq[own * kDepth + d] += slope * k[key];
        dk[key] += slope * q[own * kDepth + d];
      }
    }
  }
};

void check_near(const Block& found, const std::vector<double>& wanted) {
  const auto values = found.floats();
  CHECK(values.size() == wanted.size());
  for (std::size_t i = 0; i < wanted.size(); ++i) {
    CHECK(std::abs(values[i] - wanted[i]) < 1e-4);
  }
}

}  // namespace

TEST(attention_and_its_gradient) {
  for (const bool causal : {false, true}) {
    const Case of(causal);
    const Block q(of.q), k(of.k), v(of.v), dy(of.dy), mask(of.mask);
    const std::size_t rows = kBatch * kHeads * kQueries;
    const Block y = floats(of.y.size()), most = floats(rows), total = floats(rows);
    const OperandSpec wide = steps(kQueries, kDepth), keys = steps(kKeys, kDepth);
    const OperandSpec values = steps(kKeys, kWidth), out = steps(kQueries, kWidth);
    const OperandSpec row = f32({length(kBatch), length(kHeads), length(kQueries)});
    const OperandSpec kept = f32({length(kBatch), 1, length(kKeys)});
    KernelSpec spec{kName, {}, {wide, keys, values, kept}, {out, row, row}};
    spec.set("scale", 0.5);
    spec.set("causal", std::int64_t{causal});
    run(spec, {&q, &k, &v, &mask, &y, &most, &total});
    check_near(y, of.y);
    KernelSpec back{std::string(kName) + "_gradient",
                    spec.attributes,
                    {wide, keys, values, out, row, row, out, kept},
                    {wide, keys, values}};
    const Block dq = floats(of.dq.size()), dk = floats(of.dk.size());
    const Block dv = floats(of.dv.size());
    run(back, {&q, &k, &v, &y, &most, &total, &dy, &mask, &dq, &dk, &dv});
    check_near(dq, of.dq);
    check_near(dk, of.dk);
    check_near(dv, of.dv);
  }
}

TEST(weights_that_are_dropped_or_kept_as_by_dropout) {
  const std::int64_t queries = 67, keys = 70, all = 2 * queries * keys;
  const Block q(noise(2 * 67 * 3, 1)), k(noise(2 * 70 * 3, 2));
  const Block step(std::vector<std::int64_t>{5});
  std::vector<float> unit(2 * 70 * 70);  // values of a key: 1 in its place
  for (std::size_t i = 0; i < 2 * 70; ++i) unit[i * 70 + i % 70] = 1;
  const Block v(unit), ones(std::vector<float>(2 * 67 * 70, 1.0F));
  const OperandSpec row = f32({2, queries}), out = f32({2, queries, keys});
  const OperandSpec number{{}, "int64"};
  for (const double rate : {0.0, 0.5}) {
    const Block y = floats(2 * 67 * 70), kept = floats(2 * 67 * 70);
    const Block most = floats(2 * 67), total = floats(2 * 67);
    KernelSpec spec{
        kName,
        {},
        {f32({2, queries, 3}), f32({2, keys, 3}), f32({2, keys, keys}), number},
        {out, row, row}};
    spec.set("scale", 1.0);
    spec.set("rate", rate);
    spec.set("key", std::int64_t{77});
    run(spec, {&q, &k, &v, &step, &y, &most, &total});
    KernelSpec alone{"dropout", {}, {f32({all}), number}, {f32({all})}};
    alone.set("rate", rate);
    alone.set("key", std::int64_t{77});
    run(alone, {&ones, &step, &kept});
    const auto weights = y.floats(), factors = kept.floats();
    for (std::size_t i = 0; i < weights.size(); ++i) {
      CHECK((weights[i] == 0) == (factors[i] == 0));
    }
  }
}

TEST(attention_of_operands_that_do_not_fit) {
  using Bad = std::invalid_argument;
  const auto make = [](std::vector<OperandSpec> inputs) {
    KernelSpec spec{kName, {}, inputs, {f32({1, 2, 3}), f32({1, 2}), f32({1, 2})}};
    spec.set("scale", 1.0);
    return memcfg::make_kernel(spec, nullptr);
  };
  const OperandSpec q = f32({1, 2, 3}), k = f32({1, 5, 3});
  CHECK(make({q, k, k})->scratch_bytes() > 0);
  CHECK_THROWS(Bad, make({}));
  CHECK_THROWS(Bad, make({q, k}));
  CHECK_THROWS(Bad, make({q, k, q}));
  CHECK_THROWS(Bad, make({q, k, k, f32({1, 3, 5})}));
  CHECK_THROWS(Bad, make({q, k, f32({1, 5, 1, 3})}));
}
