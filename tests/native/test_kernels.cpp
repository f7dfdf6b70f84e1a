// Kernels over single elements and rows against plain loops, without oneDNN, and what
// is refused.
#include <array>
#include <cmath>
#include <cstdint>
#include <limits>
#include <stdexcept>
#include <vector>

#include "check.hpp"
#include "memcfg/onednn.hpp"
#include "memcfg/philox.hpp"
#include "operands.hpp"

using namespace operands;

TEST(relu_and_its_gradient) {
  for (const std::size_t count : {1UL, 63UL, 20000UL}) {
    auto x = noise(count);
    x[0] = kNan;
    const auto g = noise(count, 2);
    const Block in(x), dy(g), y = floats(count), dx = floats(count);
    const std::int64_t n = static_cast<std::int64_t>(count);
    run({"relu", {n}, {}}, {&in, &y});
    run({"relu_gradient", {n}, {}}, {&y, &dy, &dx});
    CHECK(std::isnan(y.floats()[0]));
    CHECK(dx.floats()[0] == 0);
    for (std::size_t i = 1; i < count; ++i) {
      CHECK(y.floats()[i] == (x[i] > 0 ? x[i] : 0));
      CHECK(dx.floats()[i] == (x[i] > 0 ? g[i] : 0));
      if (count > 100) i += 97;  // copies of the whole for each look: a sample
    }
  }
}

TEST(add_and_copy) {
  const auto a = noise(20001), b = noise(20001, 2);
  std::vector<float> expected = a;
  for (std::size_t i = 0; i < a.size(); ++i) expected[i] += b[i];
  const Block left(a), right(b), sum = floats(a.size()), same = floats(a.size());
  run({"add", {20001}, {}}, {&left, &right, &sum});
  CHECK(sum.floats() == expected);
  run({"flatten", {80004}, {}}, {&sum, &same});
  CHECK(same.floats() == expected);
  run({"reshape", {80004}, {}}, {&same, &same});
  CHECK(same.floats() == expected);
}

TEST(softmax_cross_entropy_its_gradient_and_the_count) {
  const std::vector<float> logits = {0, 1, 1, 100, 0, -100};
  const std::vector<std::int32_t> labels = {1, 2};
  const Block in(logits), classes(labels), loss = floats(1), p = floats(6);
  run({"softmax_cross_entropy", {2, 3}, {}}, {&in, &classes, &loss, &p});
  const float e = std::exp(1.0F), sum = 1 + 2 * e;
  CHECK(near(p.floats(), {1 / sum, e / sum, e / sum, 1, 0, 0}));
  CHECK(near(loss.floats(), {(std::log(sum) - 1 + 200) / 2}));
  const Block inference = floats(1), count = floats(1), gradient = floats(6);
  run({"softmax_cross_entropy_inference", {2, 3}, {}}, {&in, &classes, &inference});
  CHECK(inference.floats() == loss.floats());
  run({"softmax_cross_entropy_gradient", {2, 3}, {}}, {&p, &classes, &gradient});
  CHECK(near(gradient.floats(),
             {0.5F / sum, (e / sum - 1) / 2, e / sum / 2, 0.5F, 0, -0.5F}));
  run({"correct_count", {2, 3}, {}}, {&in, &classes, &count});
  CHECK(count.floats() == std::vector<float>{1});  // the first maximum of row 0
  run({"softmax_cross_entropy", {2, 3}, {}}, {&in, &classes, &loss, &in});
  CHECK(in.floats() == p.floats());
}

TEST(a_label_out_of_range_reads_nothing_and_makes_the_loss_nan) {
  constexpr std::int32_t kFar = std::numeric_limits<std::int32_t>::max();
  for (const std::int32_t label : {-1, 3, kFar, -kFar - 1}) {
    const Block in(noise(3)), classes(std::vector<std::int32_t>{label});
    const Block loss = floats(1), p = floats(3), gradient = floats(3);
    run({"softmax_cross_entropy", {1, 3}, {}}, {&in, &classes, &loss, &p});
    CHECK(std::isnan(loss.floats()[0]));
    run({"softmax_cross_entropy_gradient", {1, 3}, {}}, {&p, &classes, &gradient});
    CHECK(gradient.floats() == p.floats());
  }
}

TEST(philox_gives_random123s_known_answers) {
  struct Row {
    std::array<std::uint32_t, 4> counter;
    std::uint64_t key;
    std::array<std::uint32_t, 4> words;
  };
  const std::vector<Row> rows = {
      {{0, 0, 0, 0}, 0, {0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}},
      {{~0U, ~0U, ~0U, ~0U}, ~0ULL, {0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}},
      {{0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344},
       0x299f31d0a4093822,
       {0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}}};
  for (const Row& row : rows) {
    memcfg::philox::Words words{};
    const std::size_t lane = memcfg::philox::kLanes - 1;
    for (std::size_t w = 0; w < 4; ++w) words.word[w][lane] = row.counter[w];
    memcfg::philox::generate(words, row.key);
    for (std::size_t w = 0; w < 4; ++w) CHECK(words.word[w][lane] == row.words[w]);
  }
}

TEST(dropout_drops_alike_on_every_call_and_prefix) {
  const auto values = noise(20003);
  const Block x(values), step(std::vector<std::int64_t>{7}), y = floats(20003);
  run({"dropout", {20003, 99}, {0.25}}, {&x, &step, &y});
  std::size_t dropped = 0;
  const auto whole = y.floats();
  for (std::size_t i = 0; i < whole.size(); ++i) {
    CHECK(whole[i] == 0 || whole[i] == values[i] * static_cast<float>(1 / 0.75));
    dropped += whole[i] == 0;
  }
  CHECK(dropped > 4700 && dropped < 5300);
  const Block few(std::vector<float>(values.begin(), values.begin() + 37));
  const Block part = floats(37);
  run({"dropout", {37, 99}, {0.25}}, {&few, &step, &part});
  CHECK(part.floats() == std::vector<float>(whole.begin(), whole.begin() + 37));
  run({"dropout", {20003, 99}, {0.25}}, {&x, &step, &x});
  CHECK(x.floats() == whole);
  const Block none = floats(20003);
  run({"dropout", {20003, 99}, {1.0}}, {&x, &step, &none});
  CHECK(none.floats() == std::vector<float>(20003));
}

TEST(updates_follow_their_formulas_in_place) {
  const Block w(std::vector<float>{1}), g(std::vector<float>{0.5F});
  const Block v(std::vector<float>{0.25F}), rate(std::vector<float>{0.1F});
  run({"sgd", {1}, {}}, {&w, &g, &rate, &w});
  CHECK(near(w.floats(), {0.95F}));
  run({"sgd_momentum", {1, 0}, {0.9}}, {&w, &g, &v, &rate, &w, &v});
  CHECK(near(v.floats(), {0.175F}));
  CHECK(near(w.floats(), {1.125F}));
  run({"sgd_momentum", {1, 1}, {0.9}}, {&w, &g, &v, &rate, &w, &v});
  CHECK(near(v.floats(), {0.1075F}));
  CHECK(near(w.floats(), {1.17175F}));
  run({"moving_average", {1}, {0.9}}, {&w, &g, &w});
  CHECK(near(w.floats(), {1.104575F}));
}

TEST(adam_moves_by_the_rate_at_first) {
  const std::size_t count = 20001;
  const auto gradients = noise(count);
  const std::vector<float> zeros(count);
  const Block w(zeros), g(gradients), m(zeros), v(zeros);
  const Block rate(std::vector<float>{0.1F}), step(std::vector<std::int64_t>{0});
  run({"adam", {static_cast<std::int64_t>(count)}, {0.9, 0.999, 0.0}},
      {&w, &g, &m, &v, &rate, &step, &w, &m, &v});
  std::vector<float> expected(count);
  for (std::size_t i = 0; i < count; ++i) {
    expected[i] = gradients[i] > 0 ? -0.1F : 0.1F;
  }
  CHECK(near(w.floats(), expected));
}

TEST(unknown_types_and_malformed_numbers_are_refused) {
  const auto make = [](const KernelSpec& spec) {
    return memcfg::make_kernel(spec, nullptr);
  };
  using Bad = std::invalid_argument;
  CHECK_THROWS(Bad, make({"nothing", {}, {}}));
  CHECK_THROWS(Bad, make({"dense", {1, 2, 3}, {}}));  // needs oneDNN
  CHECK_THROWS(Bad, make({"relu", {}, {}}));
  CHECK_THROWS(Bad, make({"relu", {1, 2}, {}}));
  CHECK_THROWS(Bad, make({"relu", {0}, {}}));
  CHECK_THROWS(Bad, make({"relu", {-5}, {}}));
  CHECK_THROWS(Bad, make({"bias", {std::int64_t{1} << 40, std::int64_t{1} << 40}, {}}));
  CHECK_THROWS(Bad, make({"dropout", {4, -1}, {0.5}}));
  CHECK_THROWS(Bad, make({"dropout", {4, 1}, {1.5}}));
  CHECK_THROWS(Bad, make({"dropout", {4, 1}, {std::nan("")}}));
  const std::vector<std::int64_t> pool = {1, 6, 6, 3, 3, 3, 2, 2, 2, 2, 0, 0, 0, 0};
  make({"max_pool2d", pool, {}});
  auto wrong = pool;
  wrong[10] = wrong[11] = 2;  // a window in the padding alone
  wrong[4] = 5;
  CHECK_THROWS(Bad, make({"max_pool2d", wrong, {}}));
  wrong = pool;
  wrong[4] += 1;  // an output row too many
  CHECK_THROWS(Bad, make({"average_pool2d", wrong, {}}));
  // 289 places: one byte cannot tell them apart
  wrong = {1, 17, 17, 1, 1, 1, 17, 17, 1, 1, 0, 0, 0, 0};
  CHECK_THROWS(Bad, make({"max_pool2d", wrong, {}}));
  make({"max_pool2d_inference", wrong, {}});
}

TEST(a_file_that_is_not_onednn_is_refused) {
  CHECK_THROWS(std::runtime_error, memcfg::OneDnn("/nowhere/libdnnl.so.3"));
  CHECK_THROWS(std::runtime_error, memcfg::OneDnn("libc.so.6"));
}
