// Kernels over single elements and rows against plain loops, without oneDNN, and what
// is refused.
#include <array>
#include <cmath>
#include <cstdint>
#include <limits>
#include <locale>
#include <map>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "check.hpp"
#include "memcfg/onednn.hpp"
#include "memcfg/philox.hpp"
#include "operands.hpp"

using namespace operands;

namespace {

// An element-wise op, as memcfg/ops writes its expression.
KernelSpec expression(const char* text,
                      std::vector<OperandSpec> inputs,
                      std::vector<OperandSpec> outputs,
                      std::map<std::string, KernelSpec::Attribute> attributes = {}) {
  attributes["expression"] = std::string(text);
  return {"own", std::move(attributes), std::move(inputs), std::move(outputs)};
}

const char* const kAdd = "operand 0; operand 1; add 0 1; output 2";
const char* const kRelu = "operand 0; constant 0; less 0 1; select 2 1 0; output 3";
const char* const kReluGradient =
    "constant 0; operand 0; less 0 1; operand 1; select 2 3 0; output 4";
const char* const kSgd =
    "operand 0; scalar 2; operand 1; multiply 1 2; subtract 0 3; output 4";
const char* const kMomentum =
    "operand 0; attribute momentum; operand 2; multiply 1 2; scalar 3; operand 1; "
    "multiply 4 5; subtract 3 6; add 0 7; output 8 7";

// Of a locale in which nothing is a space.
struct NoSpaces : std::ctype<char> {
  NoSpaces() : std::ctype<char>(table()) {}

  static const mask* table() {
    static const mask nothing[table_size] = {};
    return nothing;
  }
};

}  // namespace

TEST(relu_and_its_gradient) {
  for (const std::size_t count : {1UL, 63UL, 20000UL}) {
    auto x = noise(count);
    x[0] = kNan;
    const auto g = noise(count, 2);
    const Block in(x), dy(g), y = floats(count), dx = floats(count);
    const std::int64_t n = static_cast<std::int64_t>(count);
    run(expression(kRelu, {f32({n})}, {f32({n})}), {&in, &y});
    run(expression(kReluGradient, {f32({n}), f32({n})}, {f32({n})}), {&y, &dy, &dx});
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
  const OperandSpec x = f32({20001}), row = f32({1, 20001});
  run(expression(kAdd, {x, x}, {x}), {&left, &right, &sum});
  CHECK(sum.floats() == expected);
  run({"flatten", {}, {x}, {row}}, {&sum, &same});
  CHECK(same.floats() == expected);
  run({"reshape", {}, {row}, {x}}, {&same, &same});
  CHECK(same.floats() == expected);
}

TEST(softmax_cross_entropy_its_gradient_and_the_count) {
  const std::vector<float> logits = {0, 1, 1, 100, 0, -100};
  const std::vector<std::int32_t> labels = {1, 2};
  const Block in(logits), classes(labels), loss = floats(1), p = floats(6);
  const OperandSpec x = f32({2, 3}), rows{{2}, "int32"};
  run({"softmax_cross_entropy", {}, {x, rows}, {f32(), x}}, {&in, &classes, &loss, &p});
  const float e = std::exp(1.0F), sum = 1 + 2 * e;
  CHECK(near(p.floats(), {1 / sum, e / sum, e / sum, 1, 0, 0}));
  CHECK(near(loss.floats(), {(std::log(sum) - 1 + 200) / 2}));
  const Block inference = floats(1), count = floats(1), gradient = floats(6);
  run({"softmax_cross_entropy_inference", {}, {x, rows}, {f32()}},
      {&in, &classes, &inference});
  CHECK(inference.floats() == loss.floats());
  run({"softmax_cross_entropy_gradient", {}, {x, rows}, {x}},
      {&p, &classes, &gradient});
  CHECK(near(gradient.floats(),
             {0.5F / sum, (e / sum - 1) / 2, e / sum / 2, 0.5F, 0, -0.5F}));
  run({"correct_count", {}, {x, rows}, {f32()}}, {&in, &classes, &count});
  CHECK(count.floats() == std::vector<float>{1});  // the first maximum of row 0
  run({"softmax_cross_entropy", {}, {x, rows}, {f32(), x}},
      {&in, &classes, &loss, &in});
  CHECK(in.floats() == p.floats());
}

TEST(a_label_out_of_range_reads_nothing_and_makes_the_loss_nan) {
  constexpr std::int32_t kFar = std::numeric_limits<std::int32_t>::max();
  for (const std::int32_t label : {-1, 3, kFar, -kFar - 1}) {
    const Block in(noise(3)), classes(std::vector<std::int32_t>{label});
    const Block loss = floats(1), p = floats(3), gradient = floats(3);
    const OperandSpec x = f32({1, 3}), rows{{1}, "int32"};
    run({"softmax_cross_entropy", {}, {x, rows}, {f32(), x}},
        {&in, &classes, &loss, &p});
    CHECK(std::isnan(loss.floats()[0]));
    run({"softmax_cross_entropy_gradient", {}, {x, rows}, {x}},
        {&p, &classes, &gradient});
    CHECK(gradient.floats() == p.floats());
  }
}

TEST(losses_of_rows_hits_and_counts) {
  const std::vector<float> logits = {0, 1, 1, 100, 0, -100};
  const std::vector<std::int32_t> labels = {2, 0};
  const Block in(logits), classes(labels), losses = floats(2), p = floats(6);
  const OperandSpec x = f32({2, 3}), rows{{2}, "int32"}, of = f32({2});
  KernelSpec spec{"cross_entropy_rows", {}, {x, rows}, {of, x}};
  run(spec, {&in, &classes, &losses, &p});
  const float e = std::exp(1.0F), sum = 1 + 2 * e;
  CHECK(near(losses.floats(), {std::log(sum) - 1, 0}));
  spec.set("ignored", std::int64_t{2});
  run(spec, {&in, &classes, &losses, &p});
  CHECK(losses.floats()[0] == 0);
  const Block dy(std::vector<float>{2, 3}), gradient = floats(6);
  spec = {"cross_entropy_rows_gradient", {}, {x, rows, of}, {x}};
  run(spec, {&p, &classes, &dy, &gradient});
  CHECK(near(gradient.floats(), {2 / sum, 2 * e / sum, 2 * e / sum - 2, 0, 0, 0}));

  const Block found(std::vector<std::int32_t>(2)), hits = floats(2);
  run({"argmax", {}, {x}, {rows}}, {&in, &found});
  spec = {"hits", {}, {x, rows}, {of}};
  for (const std::int64_t k : {0, 1}) {  // the first maximum, and any of them
    spec.set("k", k);
    run(spec, {&in, &classes, &hits});
    CHECK(hits.floats() == (std::vector<float>{k == 0 ? 0.0F : 1.0F, 1}));
  }
  const Block truth(std::vector<float>{1, 0}), above(std::vector<float>{0.5F, 0.25F});
  const Block ones = floats(2), zeros = floats(2);
  spec = {"threshold_counts", {}, {of, of, of}, {of, of}};
  spec.set("threshold_bits", std::vector<std::int64_t>{0x3e800000});  // a quarter
  run(spec, {&truth, &above, &dy, &ones, &zeros});
  CHECK(ones.floats() == (std::vector<float>{2, 2}));
  CHECK(zeros.floats() == (std::vector<float>{3, 0}));
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

static KernelSpec dropout(std::int64_t count, double rate) {
  const OperandSpec x = f32({count}), step{{}, "int64"};
  return {"dropout", {{"rate", rate}, {"key", std::int64_t{99}}}, {x, step}, {x}};
}

TEST(dropout_drops_alike_on_every_call_and_prefix) {
  const auto values = noise(20003);
  const Block x(values), step(std::vector<std::int64_t>{7}), y = floats(20003);
  run(dropout(20003, 0.25), {&x, &step, &y});
  std::size_t dropped = 0;
  const auto whole = y.floats();
  for (std::size_t i = 0; i < whole.size(); ++i) {
    CHECK(whole[i] == 0 || whole[i] == values[i] * static_cast<float>(1 / 0.75));
    dropped += whole[i] == 0;
  }
  CHECK(dropped > 4700 && dropped < 5300);
  const Block few(std::vector<float>(values.begin(), values.begin() + 37));
  const Block part = floats(37);
  run(dropout(37, 0.25), {&few, &step, &part});
  CHECK(part.floats() == std::vector<float>(whole.begin(), whole.begin() + 37));
  run(dropout(20003, 0.25), {&x, &step, &x});
  CHECK(x.floats() == whole);
  const Block none = floats(20003);
  run(dropout(20003, 1.0), {&x, &step, &none});
  CHECK(none.floats() == std::vector<float>(20003));
}

TEST(updates_follow_their_formulas_in_place) {
  const Block w(std::vector<float>{1}), g(std::vector<float>{0.5F});
  const Block v(std::vector<float>{0.25F}), rate(std::vector<float>{0.1F});
  const OperandSpec x = f32({1});
  run(expression(kSgd, {x, x, f32()}, {x}), {&w, &g, &rate, &w});
  CHECK(near(w.floats(), {0.95F}));
  run(expression(kMomentum, {x, x, x, f32()}, {x, x}, {{"momentum", 0.9}}),
      {&w, &g, &v, &rate, &w, &v});
  CHECK(near(v.floats(), {0.175F}));
  CHECK(near(w.floats(), {1.125F}));
}

TEST(functions_of_one_number_and_of_elements) {
  const auto values = noise(20001);
  const Block x(values), step(std::vector<std::int64_t>{3}), y = floats(20001);
  const OperandSpec all = f32({20001}), whole{{}, "int64"};
  const char* const kText =
      "operand 0; exp 0; log 1; tanh 2; erf 3; absolute 4; sqrt 5; negate 6; scalar 1; "
      "attribute by; power 9 8; rounded 10; maximum 7 11; minimum 12 0; less_equal 13 "
      "0; "
      "select 14 13 0; equal 15 0; select 16 0 15; divide 17 11; output 18";
  run(expression(kText, {all, whole}, {all}, {{"by", 0.5}}), {&x, &step, &y});
  for (std::size_t i = 0; i < values.size(); i += 97) {
    const float root = -std::sqrt(std::abs(std::erf(std::tanh(values[i]))));
    const float wanted = std::min(std::max(root, 0.125F), values[i]) / 0.125F;
    CHECK(std::abs(y.floats()[i] - wanted) < 1e-2F);
  }
  run(expression(kText, {all, whole}, {all}, {{"by", 0.5}}), {&x, &step, &x});
  CHECK(x.floats() == y.floats());
}

TEST(expressions_are_read_alike_in_every_locale) {
  const std::locale odd(std::locale::classic(), new NoSpaces);
  const std::locale before = std::locale::global(odd);
  const Block x(std::vector<float>{-1, 2}), y = floats(2);
  std::string told;
  try {
    run(expression(kRelu, {f32({2})}, {f32({2})}), {&x, &y});
  } catch (const std::invalid_argument& error) {
    told = error.what();
  }
  std::locale::global(before);
  CHECK(told.empty());
  CHECK((y.floats() == std::vector<float>{0, 2}));
}

TEST(texts_that_are_no_expression_are_refused) {
  const OperandSpec x = f32({4});
  const auto make = [&](const std::string& text) {
    return memcfg::make_kernel(expression(text.c_str(), {x}, {x}), nullptr);
  };
  make("  operand  0 ;negate 0;  output 1  ");
  make("constant 18446744073709551615; operand 0; output 1;");
  for (const char* text : {
           "operand 0 0; output 0",
           "operand 0 negate; output 0",
           "operand; output 0",
           "operand zero; output 0",
           "operand 0x0; output 0",
           "operand 0.0; output 0",
           "operand -0; output 0",
           "operand +0; output 0",
           "operand 1; output 0",
           "operand 0; output 1",
           "operand 0; output 0 zero",
           "operand 0; output 0; operand 0",
           "operand 0; output 0; ",
           "operand 0; output",
           "operand 0; add 0; output",
           "operand 0; add 0 1; output 1",
           "operand 0; Add 0 0; output 1",
           "operand 0;; output 0",
           "operand 0\tnegate 0; output 0",
           "constant; operand 0; output 1",
           "constant 1.5; operand 0; output 1",
           "constant 18446744073709551616; operand 0; output 1",
           "attribute; operand 0; output 1",
           "attribute missing; operand 0; output 1",
       }) {
    CHECK_THROWS(std::invalid_argument, make(text));
  }
}

TEST(unknown_types_and_malformed_specs_are_refused) {
  const auto make = [](const KernelSpec& spec) {
    return memcfg::make_kernel(spec, nullptr);
  };
  using Bad = std::invalid_argument;
  const OperandSpec x = f32({4}), step{{}, "int64"};
  CHECK_THROWS(Bad, make({"nothing"}));
  CHECK_THROWS(Bad, make({"dense", {}, {f32({1, 2}), f32({2, 3})}, {f32({1, 3})}}));
  make(expression(kRelu, {x}, {x}));
  CHECK_THROWS(Bad, make(expression(kRelu, {}, {})));
  CHECK_THROWS(Bad, make(expression(kAdd, {x}, {x})));
  CHECK_THROWS(Bad, make(expression(kRelu, {x}, {x, x})));
  CHECK_THROWS(Bad, make(expression(kRelu, {x}, {f32({5})})));
  CHECK_THROWS(Bad, make(expression(kRelu, {{{4}, "float64"}}, {x})));
  CHECK_THROWS(Bad, make(expression(kRelu, {x}, {{{4}, "float64"}})));
  CHECK_THROWS(Bad, make(expression(kRelu, {f32({0})}, {f32({0})})));
  CHECK_THROWS(Bad, make(expression(kRelu, {f32({-5})}, {f32({-5})})));
  CHECK_THROWS(Bad, make(expression(kMomentum, {x, x, x, f32()}, {x, x})));
  CHECK_THROWS(Bad, make(expression("", {x}, {x})));
  const OperandSpec huge = f32({std::int64_t{1} << 40, std::int64_t{1} << 40});
  CHECK_THROWS(Bad, make({"bias", {}, {huge, f32({std::int64_t{1} << 40})}, {huge}}));
  CHECK_THROWS(Bad, make({"flatten", {}, {{{4}, "bfloat9"}}, {{{4}, "bfloat9"}}}));
  const auto dropout = [&](KernelSpec::Attribute rate, KernelSpec::Attribute key) {
    return make({"dropout", {{"rate", rate}, {"key", key}}, {x, step}, {x}});
  };
  dropout(0.5, std::int64_t{1});
  dropout(std::int64_t{1}, std::int64_t{1});  // a whole number is a number
  CHECK_THROWS(Bad, dropout(0.5, std::int64_t{-1}));
  CHECK_THROWS(Bad, dropout(1.5, std::int64_t{1}));
  CHECK_THROWS(Bad, dropout(std::nan(""), std::int64_t{1}));
  CHECK_THROWS(Bad, dropout(0.5, 1.0));
  CHECK_THROWS(Bad, dropout(std::string("half"), std::int64_t{1}));
  CHECK_THROWS(Bad, make({"dropout", {{"rate", 0.5}}, {x, step}, {x}}));
  const auto pool = [&](const char* type,
                        std::int64_t size,
                        std::int64_t out,
                        std::int64_t window,
                        std::int64_t stride,
                        std::int64_t below) {
    const std::vector<std::int64_t> twice{window, window}, strides{stride, stride};
    const std::vector<std::int64_t> padding{0, below, 0, below};
    const OperandSpec image = f32({1, size, size, 3}), y = f32({1, out, out, 3});
    KernelSpec spec{type,
                    {{"pool_size", twice}, {"strides", strides}, {"padding", padding}},
                    {image},
                    {y}};
    if (spec.type == "max_pool2d") spec.outputs.push_back({{1, out, out, 3}, "uint8"});
    return make(spec);
  };
  pool("max_pool2d", 6, 3, 2, 2, 0);
  CHECK_THROWS(Bad, pool("max_pool2d", 6, 4, 2, 2, 2));  // a window in padding alone
  CHECK_THROWS(Bad, pool("average_pool2d", 6, 4, 2, 2, 0));  // an output row too many
  CHECK_THROWS(Bad, pool("average_pool2d", 6, 3, 2, 0, 0));
  // 289 places: one byte cannot tell them apart
  CHECK_THROWS(Bad, pool("max_pool2d", 17, 1, 17, 1, 0));
  pool("max_pool2d_inference", 17, 1, 17, 1, 0);
}

TEST(a_file_that_is_not_onednn_is_refused) {
  CHECK_THROWS(std::runtime_error, memcfg::OneDnn("/nowhere/libdnnl.so.3"));
  CHECK_THROWS(std::runtime_error, memcfg::OneDnn("libc.so.6"));
}
