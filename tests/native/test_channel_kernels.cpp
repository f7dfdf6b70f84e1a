// Kernels over channels and windows against plain loops, without oneDNN.
#include <array>
#include <cmath>
#include <cstdint>
#include <functional>
#include <numeric>
#include <vector>

#include "check.hpp"
#include "operands.hpp"

using namespace operands;

namespace {

// Below, at and above the period of the loops over channels, and several blocks.
const std::vector<std::array<std::int64_t, 2>> kShapes = {
    {1, 1}, {7, 3}, {64, 10}, {5, 63}, {9, 64}, {3, 65}, {2, 700}, {9000, 6}};

}  // namespace

TEST(bias_adds_to_each_channel_also_in_place) {
  for (const auto& [rows, channels] : kShapes) {
    const auto x = noise(size_of(rows * channels)), b = noise(size_of(channels), 2);
    std::vector<float> expected = x;
    for (std::size_t i = 0; i < x.size(); ++i) expected[i] += b[i % b.size()];
    const Block in(x), vector(b), out = floats(x.size());
    const OperandSpec all = f32({rows, channels}), each = f32({channels});
    const KernelSpec spec{"bias", {}, {all, each}, {all}};
    run(spec, {&in, &vector, &out});
    CHECK(out.floats() == expected);
    run(spec, {&in, &vector, &in});
    CHECK(in.floats() == expected);
  }
}

TEST(bias_gradient_sums_each_channel) {
  for (const auto& [rows, channels] : kShapes) {
    const auto dy = noise(size_of(rows * channels));
    std::vector<double> sums(size_of(channels));
    for (std::size_t i = 0; i < dy.size(); ++i) sums[i % sums.size()] += dy[i];
    const Block in(dy), out = floats(sums.size());
    run({"bias_gradient", {}, {f32({rows, channels})}, {f32({channels})}}, {&in, &out});
    for (std::size_t c = 0; c < sums.size(); ++c) {
      CHECK(std::abs(out.floats()[c] - sums[c]) < 1e-3);
    }
  }
}

TEST(batch_normalization_and_its_inference_agree_with_the_formula) {
  for (const auto& [rows, channels] : kShapes) {
    const std::size_t count = size_of(rows * channels), c = size_of(channels);
    const auto x = noise(count), gamma = noise(c, 2), beta = noise(c, 3);
    std::vector<double> mean(c), variance(c);
    const double n = static_cast<double>(rows);
    for (std::size_t i = 0; i < count; ++i) mean[i % c] += x[i] / n;
    for (std::size_t i = 0; i < count; ++i) {
      variance[i % c] += std::pow(x[i] - mean[i % c], 2) / n;
    }
    std::vector<float> expected(count);
    for (std::size_t i = 0; i < count; ++i) {
      const std::size_t k = i % c;
      expected[i] = static_cast<float>(
          (x[i] - mean[k]) * gamma[k] / std::sqrt(variance[k] + 0.1) + beta[k]);
    }
    const Block in(x), scale(gamma), shift(beta), y = floats(count);
    const Block again = floats(count);
    const Block m = floats(c), v = floats(c);
    const OperandSpec all = f32({rows, channels}), each = f32({channels});
    run({"batch_moments", {}, {all}, {each, each}}, {&in, &m, &v});
    CHECK(near(m.floats(), std::vector<float>(mean.begin(), mean.end())));
    CHECK(near(v.floats(), std::vector<float>(variance.begin(), variance.end())));
    KernelSpec spec{"batch_normalization",
                    {{"epsilon", 0.1}},
                    {all, each, each, each, each},
                    {all}};
    run(spec, {&in, &scale, &shift, &m, &v, &y});
    CHECK(near(y.floats(), expected));
    spec.type = "batch_normalization_inference";
    run(spec, {&in, &scale, &shift, &m, &v, &again});
    CHECK(again.floats() == y.floats());
    run(spec, {&in, &scale, &shift, &m, &v, &in});
    CHECK(in.floats() == y.floats());
  }
}

// The loss sum(dy * y), whose derivatives the gradient kernel gives.
static double normalized_loss(const std::vector<float>& x,
                              const std::vector<float>& dy,
                              double gamma) {
  const double n = static_cast<double>(x.size());
  const double mean = std::accumulate(x.begin(), x.end(), 0.0) / n;
  double variance = 0, loss = 0;
  for (const float value : x) variance += std::pow(value - mean, 2) / n;
  for (std::size_t i = 0; i < x.size(); ++i) {
    loss += dy[i] * (x[i] - mean) * gamma / std::sqrt(variance + 0.1);
  }
  return loss;
}

TEST(batch_normalization_gradient_is_the_derivative) {
  auto x = noise(40);
  const auto dy = noise(40, 2);
  const Block in(x), gradient(dy), gamma(std::vector<float>{1.5F});
  const Block mean = floats(1), variance = floats(1), dx = floats(40);
  const Block dgamma = floats(1), dbeta = floats(1);
  const OperandSpec all = f32({40, 1}), each = f32({1});
  run({"batch_moments", {}, {all}, {each, each}}, {&in, &mean, &variance});
  run({"batch_normalization_gradient",
       {{"epsilon", 0.1}},
       {all, all, each, each, each},
       {all, each, each}},
      {&in, &gradient, &gamma, &mean, &variance, &dx, &dgamma, &dbeta});
  for (std::size_t i = 0; i < x.size(); ++i) {
    const float kept = x[i];
    x[i] = kept + 0.01F;
    const double above = normalized_loss(x, dy, 1.5);
    x[i] = kept - 0.01F;
    const double below = normalized_loss(x, dy, 1.5);
    x[i] = kept;
    CHECK(std::abs(dx.floats()[i] - (above - below) / 0.02) < 1e-3);
  }
  CHECK(std::abs(dgamma.floats()[0] - normalized_loss(x, dy, 1)) < 1e-4);
  const double total = std::accumulate(dy.begin(), dy.end(), 0.0);
  CHECK(std::abs(dbeta.floats()[0] - total) < 1e-4);
}

namespace {

struct Pool {
  std::int64_t n, h, w, c, kh, kw, sy, sx, top, bottom, left, right;
  std::int64_t oh() const { return (h + top + bottom - kh) / sy + 1; }
  std::int64_t ow() const { return (w + left + right - kw) / sx + 1; }
  OperandSpec x() const { return f32({n, h, w, c}); }
  OperandSpec y() const { return f32({n, oh(), ow(), c}); }
  OperandSpec places() const { return {y().shape, "uint8"}; }
  KernelSpec spec(const char* type,
                  std::vector<OperandSpec> inputs,
                  std::vector<OperandSpec> outputs) const {
    using Numbers = std::vector<std::int64_t>;
    return {type,
            {{"pool_size", Numbers{kh, kw}},
             {"strides", Numbers{sy, sx}},
             {"padding", Numbers{top, bottom, left, right}}},
            std::move(inputs),
            std::move(outputs)};
  }
  std::size_t inputs() const { return size_of(n * h * w * c); }
  std::size_t outputs() const { return size_of(n * oh() * ow() * c); }

  // visit(output element, input element, place) for every place inside the image.
  void visit(const std::function<void(std::size_t, std::size_t, int)>& body) const {
    for (std::int64_t out = 0; out < n * oh() * ow() * c; ++out) {
      const std::int64_t k = out % c, x = out / c % ow(), y = out / c / ow() % oh();
      for (std::int64_t place = 0; place < kh * kw; ++place) {
        const std::int64_t row = y * sy - top + place / kw;
        const std::int64_t column = x * sx - left + place % kw;
        if (row < 0 || row >= h || column < 0 || column >= w) continue;
        const std::int64_t image = out / c / ow() / oh();
        const std::int64_t at = ((image * h + row) * w + column) * c + k;
        body(size_of(out), size_of(at), static_cast<int>(place));
      }
    }
  }
};

const std::vector<Pool> kPools = {{2, 6, 6, 3, 2, 2, 2, 2, 0, 0, 0, 0},
                                  {1, 7, 5, 4, 3, 2, 1, 2, 1, 2, 0, 1},
                                  {3, 5, 9, 17, 3, 3, 2, 3, 2, 0, 1, 2},
                                  {1, 4, 4, 1, 4, 4, 1, 1, 3, 3, 3, 3},
                                  {1, 8, 8, 6, 1, 1, 3, 3, 0, 0, 0, 0}};

}  // namespace

TEST(max_pool_and_its_gradient) {
  for (const Pool& p : kPools) {
    auto values = noise(p.inputs());
    for (float& value : values) value = std::round(value * 2);  // many ties
    std::vector<float> best(p.outputs(), -kInfinity);
    std::vector<std::uint8_t> where(p.outputs());
    std::vector<std::size_t> from(p.outputs());
    p.visit([&](std::size_t out, std::size_t in, int place) {
      if (values[in] <= best[out]) return;
      best[out] = values[in];
      where[out] = static_cast<std::uint8_t>(place);
      from[out] = in;
    });
    const Block x(values), y = floats(p.outputs()), index(p.outputs());
    run(p.spec("max_pool2d", {p.x()}, {p.y(), p.places()}), {&x, &y, &index});
    CHECK(y.floats() == best);
    CHECK(index.values<std::uint8_t>() == where);
    const Block again = floats(p.outputs());
    run(p.spec("max_pool2d_inference", {p.x()}, {p.y()}), {&x, &again});
    CHECK(again.floats() == best);

    const auto gradient = noise(p.outputs(), 2);
    std::vector<float> expected(p.inputs());
    for (std::size_t i = 0; i < from.size(); ++i) expected[from[i]] += gradient[i];
    const Block dy(gradient), dx = floats(p.inputs());
    run(p.spec("max_pool2d_gradient", {p.places(), p.y()}, {p.x()}),
        {&index, &dy, &dx});
    CHECK(near(dx.floats(), expected));
  }
}

TEST(average_pool_and_its_gradient) {
  for (const Pool& p : kPools) {
    const auto values = noise(p.inputs()), gradient = noise(p.outputs(), 2);
    std::vector<float> counts(p.outputs()), mean(p.outputs()), share(p.inputs());
    p.visit([&](std::size_t out, std::size_t, int) { counts[out] += 1; });
    p.visit([&](std::size_t out, std::size_t in, int) {
      mean[out] += values[in] / counts[out];
      share[in] += gradient[out] / counts[out];
    });
    const Block x(values), dy(gradient), y = floats(p.outputs());
    const Block dx = floats(p.inputs());
    run(p.spec("average_pool2d", {p.x()}, {p.y()}), {&x, &y});
    CHECK(near(y.floats(), mean));
    run(p.spec("average_pool2d_gradient", {p.y()}, {p.x()}), {&dy, &dx});
    CHECK(near(dx.floats(), share));
  }
}

TEST(global_average_pool_and_its_gradient) {
  for (const std::int64_t channels : {1, 6, 70}) {
    const std::size_t c = size_of(channels);
    const auto values = noise(3 * 35 * c), gradient = noise(3 * c, 2);
    std::vector<float> mean(3 * c), share(values.size());
    for (std::size_t i = 0; i < values.size(); ++i) {
      const std::size_t out = i / (35 * c) * c + i % c;
      mean[out] += values[i] / 35;
      share[i] = gradient[out] / 35;
    }
    const Block x(values), dy(gradient), y = floats(3 * c);
    const Block dx = floats(values.size());
    const OperandSpec image = f32({3, 5, 7, channels}), means = f32({3, channels});
    run({"global_average_pool2d", {}, {image}, {means}}, {&x, &y});
    CHECK(near(y.floats(), mean));
    run({"global_average_pool2d_gradient", {}, {means}, {image}}, {&dy, &dx});
    CHECK(near(dx.floats(), share));
  }
}
