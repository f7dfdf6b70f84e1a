// Canonical Huffman codes of limited length, and bits, the highest of a byte first.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <numeric>
#include <vector>

#include "memcfg/types.hpp"

namespace memcfg {

// How long the code of each symbol is, in bits, at most `longest`; 0: it does not
// occur. Of one symbol that occurs it is 1, although its code then takes no bits.
//
// Huffman's lengths; longer ones are cut, and others made longer until the codes fit.
// Pre: at most 2^longest symbols.
inline std::vector<std::uint8_t> huffman_lengths(
    const std::vector<std::uint64_t>& counts, unsigned longest) {
  std::vector<std::uint8_t> lengths(counts.size(), 0);
  std::vector<std::uint32_t> order;  // symbols, the rarest first
  for (std::uint32_t i = 0; i < counts.size(); ++i) {
    if (counts[i] > 0) order.push_back(i);
  }
  std::stable_sort(order.begin(), order.end(), [&](std::uint32_t a, std::uint32_t b) {
    return counts[a] < counts[b];
  });
  const std::size_t leaves = order.size();
  if (leaves == 0) return lengths;
  // Nodes: leaves by count, then those above them, which come out in order, too.
  std::vector<std::uint64_t> weights(leaves);
  for (std::size_t i = 0; i < leaves; ++i) weights[i] = counts[order[i]];
  std::vector<std::size_t> parents(2 * leaves - 1, 0);
  std::size_t leaf = 0, inner = leaves;
  const auto take = [&] {
    const bool is_leaf =
        inner == weights.size() || (leaf < leaves && weights[leaf] <= weights[inner]);
    return is_leaf ? leaf++ : inner++;
  };
  while (weights.size() < 2 * leaves - 1) {
    const std::size_t a = take(), b = take();
    parents[a] = parents[b] = weights.size();
    weights.push_back(weights[a] + weights[b]);
  }
  // How many codes have each length; a symbol alone has one.
  std::vector<std::size_t> depths(2 * leaves - 1, 0), many(longest + 1, 0);
  for (std::size_t node = 2 * leaves - 1; node-- > 0;) {
    if (node + 1 < 2 * leaves - 1) depths[node] = depths[parents[node]] + 1;
    if (node < leaves) {
      ++many[std::clamp<std::size_t>(depths[node], 1, longest)];
    }
  }
  std::uint64_t used = 0;  // of 2^longest codes
  for (unsigned l = 1; l <= longest; ++l)
    used += std::uint64_t{many[l]} << (longest - l);
  for (; used > std::uint64_t{1} << longest; --used) {
    --many[longest];
    unsigned l = longest - 1;
    while (many[l] == 0) --l;
    --many[l];
    many[l + 1] += 2;
  }
  std::size_t next = 0;
  for (unsigned l = longest; l > 0; --l) {
    for (std::size_t i = 0; i < many[l]; ++i) {
      lengths[order[next++]] = static_cast<std::uint8_t>(l);
    }
  }
  return lengths;
}

// The codes of such lengths: shorter ones first, of one length in the symbols' order.
inline std::vector<std::uint32_t> canonical_codes(
    const std::vector<std::uint8_t>& lengths) {
  std::vector<std::uint32_t> codes(lengths.size(), 0);
  std::uint32_t code = 0;
  for (unsigned l = 1; l < 32; ++l, code <<= 1) {
    for (std::size_t i = 0; i < lengths.size(); ++i) {
      if (lengths[i] == l) codes[i] = code++;
    }
  }
  return codes;
}

class BitWriter {
 public:
  explicit BitWriter(std::byte* to) noexcept : to_(to) {}

  // Pre: length <= 32 and code < 2^length.
  void write(std::uint32_t code, unsigned length) noexcept {
    bits_ = bits_ << length | code;
    for (filled_ += length; filled_ >= 8; filled_ -= 8) {
      *to_++ = static_cast<std::byte>(bits_ >> (filled_ - 8));
    }
  }
  std::byte* finish() noexcept {
    if (filled_ > 0) *to_++ = static_cast<std::byte>(bits_ << (8 - filled_));
    filled_ = 0;
    return to_;
  }

 private:
  std::byte* to_;
  std::uint64_t bits_ = 0;
  unsigned filled_ = 0;
};

// Reads zeros behind the end, and knows that it has.
class BitReader {
 public:
  BitReader(const std::byte* from, Bytes size) noexcept
      : begin_(from), next_(from), end_(from + size) {}

  // Has at least 56 bits ready.
  void refill() noexcept {
    if (end_ - next_ >= 8) {
      std::uint64_t word;
      std::memcpy(&word, next_, 8);
      bits_ |= from_big_endian(word) >> filled_;
      next_ += (63 - filled_) >> 3;
      filled_ |= 56;
      return;
    }
    for (; filled_ <= 56; filled_ += 8) {
      if (next_ == end_) {
        ++missing_;
        continue;
      }
      bits_ |= static_cast<std::uint64_t>(*next_++) << (56 - filled_);
    }
  }
  // Pre: at most as many as are ready.
  std::uint32_t peek(unsigned length) const noexcept {
    return static_cast<std::uint32_t>(bits_ >> 1 >> (63 - length));
  }
  void skip(unsigned length) noexcept {
    bits_ <<= length;
    filled_ -= length;
  }
  // Bytes that were begun; more than there are where zeros were read behind the end.
  Bytes used() const noexcept {
    const Bytes bits = (static_cast<Bytes>(next_ - begin_) + missing_) * 8 - filled_;
    return (bits + 7) / 8;
  }

 private:
  static std::uint64_t from_big_endian(std::uint64_t word) noexcept {
#if defined(__BYTE_ORDER__) && __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__
    return word;
#else
    return __builtin_bswap64(word);
#endif
  }

  const std::byte *begin_, *next_, *end_;
  std::uint64_t bits_ = 0;  // the next ones, from the highest
  unsigned filled_ = 0;
  Bytes missing_ = 0;  // bytes
};

}  // namespace memcfg
