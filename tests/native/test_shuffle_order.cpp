// Orders of a shuffle against a plain list, and against what TensorFlow 2.21 gave.
#include <algorithm>
#include <array>
#include <cstdint>
#include <numeric>
#include <vector>

#include "check.hpp"
#include "memcfg/shuffle_order.hpp"

using memcfg::RandomWords;
using memcfg::ShuffleOrder;
using Numbers = std::vector<std::int64_t>;

namespace {

constexpr std::uint64_t kGraphSeed = 87654321;  // TensorFlow's, where none is set

// Philox4x32-10 one block at a time, as in the paper's definition.
class PlainWords {
 public:
  PlainWords(std::uint64_t key, std::uint64_t stream) : key_(key), stream_(stream) {}

  std::uint32_t next() {
    const std::uint32_t word = block(count_ / 4)[count_ % 4];
    ++count_;
    return word;
  }

 private:
  std::array<std::uint32_t, 4> block(std::uint64_t number) const {
    std::array<std::uint32_t, 4> x = {
        low(number), high(number), low(stream_), high(stream_)};
    std::uint32_t a = low(key_);
    std::uint32_t b = high(key_);
    for (int i = 0; i < 10; ++i) {
      const std::uint64_t p = std::uint64_t{0xD2511F53} * x[0];
      const std::uint64_t q = std::uint64_t{0xCD9E8D57} * x[2];
      x = {high(q) ^ x[1] ^ a, low(q), high(p) ^ x[3] ^ b, low(p)};
      a += 0x9E3779B9;
      b += 0xBB67AE85;
    }
    return x;
  }
  static std::uint32_t low(std::uint64_t x) { return static_cast<std::uint32_t>(x); }
  static std::uint32_t high(std::uint64_t x) { return low(x >> 32); }

  std::uint64_t key_, stream_, count_ = 0;
};

// The same as a list whose first number is the oldest.
Numbers plain_order(std::int64_t count,
                    std::size_t size,
                    std::uint64_t a,
                    std::uint64_t b) {
  PlainWords words(a, b);
  Numbers held, out;
  const auto take = [&] {
    const std::size_t i = words.next() % held.size();
    out.push_back(held[i]);
    held[i] = held[0];
    held.erase(held.begin());
  };
  for (std::int64_t i = 0; i < count; ++i) {
    held.push_back(i);
    if (held.size() == size) take();
  }
  while (!held.empty()) take();
  return out;
}

// 0, 1, ... count - 1 in chunks.
Numbers order_of(ShuffleOrder order, std::int64_t count, std::int64_t chunk) {
  Numbers slots, out;
  for (std::int64_t first = 0; first < count; first += chunk) {
    Numbers in(static_cast<std::size_t>(std::min(chunk, count - first)));
    std::iota(in.begin(), in.end(), first);
    const auto length = static_cast<std::int64_t>(in.size());
    slots.resize(static_cast<std::size_t>(order.slots_for(length)));
    in.resize(static_cast<std::size_t>(
        order.exchange(slots.data(), in.data(), length, in.data())));
    out.insert(out.end(), in.begin(), in.end());
  }
  CHECK(order.held() == std::min(count, order.size() - 1));
  for (std::int64_t gone = 1; gone > 0;) {
    Numbers rest(static_cast<std::size_t>(chunk));
    gone = order.drain(slots.data(), chunk, rest.data());
    out.insert(out.end(), rest.begin(), rest.begin() + gone);
  }
  return out;
}

}  // namespace

TEST(words_are_those_of_philox_one_after_the_other) {
  for (const std::uint64_t stream : {std::uint64_t{0}, ~std::uint64_t{0}}) {
    RandomWords words(0x299f31d0a4093822, stream);
    PlainWords plain(0x299f31d0a4093822, stream);
    for (int i = 0; i < 1000; ++i) CHECK(words.next() == plain.next());
  }
}

TEST(first_words_are_random123s_known_answer) {
  RandomWords words(0, 0);
  for (const std::uint32_t word : {0x6627e8d5U, 0xe169c58dU, 0xbc57ac4cU, 0x9b00dbd8U})
    CHECK(words.next() == word);
}

TEST(order_is_that_of_a_plain_list) {
  for (const std::int64_t size : {1, 2, 3, 7, 64, 1000, 5000})
    for (const std::int64_t count : {0, 1, 2, 6, 7, 8, 100, 1001})
      for (const std::int64_t chunk : {1, 3, 1024})
        CHECK(order_of({size, kGraphSeed, 5}, count, chunk) ==
              plain_order(count, static_cast<std::size_t>(size), kGraphSeed, 5));
}

// Dataset.range(8).shuffle(4, seed=1, reshuffle_each_iteration=False)
TEST(order_is_that_of_tensorflow) {
  CHECK(order_of({4, kGraphSeed, 1}, 8, 3) == (Numbers{3, 4, 0, 5, 2, 7, 6, 1}));
}

// ... with reshuffle_each_iteration=True: each iteration has the next two words as
// seeds.
TEST(iterations_are_those_of_tensorflow) {
  RandomWords seeds(kGraphSeed, 1);
  const std::vector<Numbers> rows = {
      {0, 4, 5, 1, 2, 6, 7, 3}, {2, 1, 3, 4, 6, 0, 7, 5}, {3, 1, 0, 4, 6, 7, 5, 2}};
  for (const Numbers& row : rows) {
    const std::uint64_t first = seeds.next();
    CHECK(order_of({4, first, seeds.next()}, 8, 8) == row);
  }
}

TEST(a_buffer_as_large_as_all_needs_slots_for_what_comes_only) {
  const ShuffleOrder order(std::int64_t{1} << 62, 1, 2);
  CHECK(order.slots_for(10) == 10);
  CHECK(order_of(order, 10, 4) == plain_order(10, 1000, 1, 2));
}
