// Range codes of an encoder written here, by each kind of division; damaged codes.
#include <cstddef>
#include <cstdint>
#include <random>
#include <vector>

#include "check.hpp"
#include "memcfg/range_decoder.hpp"

using memcfg::RangeDecoder;
using memcfg::RangeModel;
using Division = RangeDecoder::Division;

namespace {

constexpr Division kDivisions[] = {Division::integers, Division::floats};

using Symbols = std::vector<std::int32_t>;
using Code = std::vector<unsigned char>;

// Range encoding with carries (Martin, 1979), in words of 32 bits: the bounds of the
// interval are kept as a whole number, of which all words are in memory.
class Encoder {
 public:
  void add(const RangeModel& model, std::int32_t symbol) {
    const auto own = static_cast<std::uint32_t>(symbol);
    const std::uint64_t scale = range_ >> RangeModel::kPrecision;
    const std::uint64_t before = lower_;
    lower_ += scale * model.begin(own);
    if (lower_ < before) carry();
    range_ = scale * (model.end(own) - model.begin(own));
    if (range_ >> 32 == 0) {
      words_.push_back(static_cast<std::uint32_t>(lower_ >> 32));
      lower_ <<= 32;
      range_ <<= 32;
    }
  }
  // Words of a number that is in the interval, whatever zeros follow.
  Code finish() {
    const std::uint64_t before = lower_;
    lower_ += (std::uint64_t{1} << 32) - 1;
    if (lower_ < before) carry();
    words_.push_back(static_cast<std::uint32_t>(lower_ >> 32));
    Code code;
    for (const std::uint32_t word : words_) {
      for (int i = 0; i < 4; ++i) {
        code.push_back(static_cast<unsigned char>(word >> (8 * i)));
      }
    }
    return code;
  }

 private:
  void carry() {
    for (auto word = words_.rbegin(); word != words_.rend() && ++*word == 0; ++word) {
    }
  }
  std::vector<std::uint32_t> words_;
  std::uint64_t lower_ = 0, range_ = ~std::uint64_t{0};
};

// A model of so many symbols, of which the first ones are frequent.
RangeModel model_of(std::size_t count) {
  std::vector<double> shares(count);
  double share = 1;
  for (double& each : shares) each = share, share *= 0.9;
  double sum = 0;
  for (const double each : shares) sum += each;
  for (double& each : shares) each /= sum;
  RangeModel model;
  CHECK(model.fill(shares.data(), count));
  return model;
}

Symbols symbols_of(const RangeModel& model, std::size_t count, unsigned seed) {
  std::mt19937 random(seed);
  Symbols found;
  for (std::size_t i = 0; i < count; ++i) {
    found.push_back(static_cast<std::int32_t>(
        model.symbol(static_cast<std::uint32_t>(random() % RangeModel::kTotal))));
  }
  return found;
}

Code code_of(const RangeModel& model, const Symbols& symbols) {
  Encoder encoder;
  for (const std::int32_t each : symbols) encoder.add(model, each);
  return encoder.finish();
}

}  // namespace

TEST(a_symbol_is_the_one_whose_part_has_the_quantile) {
  for (const std::size_t count : {2UL, 3UL, 300UL, 4096UL, 65536UL}) {
    const RangeModel model = model_of(count);
    CHECK(model.begin(0) == 0);
    CHECK(model.end(static_cast<std::uint32_t>(count - 1)) == RangeModel::kTotal);
    for (std::uint32_t symbol = 0; symbol < count; ++symbol) {
      CHECK(model.begin(symbol) < model.end(symbol));
      CHECK(model.symbol(model.begin(symbol)) == symbol);
      CHECK(model.symbol(model.end(symbol) - 1) == symbol);
    }
  }
}

TEST(few_uses_change_no_symbol) {
  for (const std::size_t count : {2UL, 17UL, 4096UL}) {
    const std::vector<double> equal(count, 1.0 / static_cast<double>(count));
    RangeModel few, many;
    CHECK(few.fill(equal.data(), count, 1) && many.fill(equal.data(), count));
    for (std::uint32_t quantile = 0; quantile < RangeModel::kTotal; quantile += 997) {
      CHECK(few.symbol(quantile) == many.symbol(quantile));
    }
    CHECK(few.symbol(RangeModel::kTotal - 1) == count - 1);
  }
}

TEST(what_is_no_distribution_is_refused) {
  const double none[] = {0.0, 0.0}, negative[] = {1.5, -0.5}, many[] = {1.5, 1.5};
  RangeModel model;
  CHECK(!model.fill(none, 2));
  CHECK(!model.fill(negative, 2));
  CHECK(!model.fill(many, 2));
  CHECK(!model.fill(many, 1));
}

TEST(symbols_come_back) {
  for (const std::size_t count : {2UL, 17UL, 4096UL}) {
    const RangeModel model = model_of(count);
    const Symbols symbols = symbols_of(model, 5000, 1);
    const Code code = code_of(model, symbols);
    for (const Division by : kDivisions) {
      RangeDecoder decoder(code.data(), code.size() / 4);
      Symbols found(symbols.size());
      CHECK(decoder.decode(model, 700, found.data(), by));
      CHECK(decoder.decode(model, found.size() - 700, found.data() + 700, by));
      CHECK(found == symbols);
      CHECK(decoder.may_end());
    }
  }
}

TEST(two_codes_come_back_side_by_side) {
  const RangeModel first = model_of(5), second = model_of(256);
  const Symbols one = symbols_of(first, 3000, 2), other = symbols_of(second, 3000, 3);
  const Code of_one = code_of(first, one), of_other = code_of(second, other);
  for (const Division by : kDivisions) {
    RangeDecoder a(of_one.data(), of_one.size() / 4);
    RangeDecoder b(of_other.data(), of_other.size() / 4);
    Symbols left(one.size()), right(other.size());
    CHECK(RangeDecoder::decode(
        a, first, left.data(), b, second, right.data(), left.size(), by));
    CHECK(left == one && right == other);
    CHECK(a.may_end() && b.may_end());
  }
}

TEST(damaged_codes_end_alike) {
  const RangeModel model = model_of(40);
  const Code code = code_of(model, symbols_of(model, 500, 4));
  std::mt19937 random(5);
  for (int i = 0; i < 200; ++i) {
    Code damaged = code;
    damaged[random() % damaged.size()] ^=
        static_cast<unsigned char>(1 + random() % 255);
    damaged.resize(damaged.size() / 4 * 4 - 4 * (random() % 3));
    Symbols found[2];
    bool known[2];
    for (int k = 0; k < 2; ++k) {
      RangeDecoder decoder(damaged.data(), damaged.size() / 4);
      found[k].resize(600);
      known[k] = decoder.decode(model, 600, found[k].data(), kDivisions[k]);
    }
    CHECK(known[0] == known[1]);
    CHECK(found[0] == found[1]);
    for (const std::int32_t each : found[0]) CHECK(each >= 0 && each < 40);
  }
}
