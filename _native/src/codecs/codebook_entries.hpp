// The entries of a code of `Codebook`, read one after another.
#pragma once

#include <algorithm>
#include <array>
#include <stdexcept>

#include "codecs/codebook.hpp"
#include "codecs/huffman.hpp"
#include "codecs/words.hpp"

namespace memcfg {
namespace codebook {

// What follows the header, by its first byte, and where its fields begin.
inline constexpr std::byte kRaw{1}, kFixed{2}, kHuffman{3};
inline constexpr Bytes kIndexBits = 1, kWords = 4, kSize = 2, kEntries = 8,
                       kGapBytes = 12;

inline void check(bool holds) {
  if (!holds) throw std::invalid_argument("these bytes are no codebook");
}

// The bits in which numbers below `count` can be written.
inline unsigned width_of(std::size_t count) noexcept {
  unsigned width = 0;
  while (std::size_t{1} << width < count) ++width;
  return width;
}

// What symbols stand for, by the bits of their codes: a look-up of the next bits, but
// of codes longer than kLookup bits, which are rare.
class Decoder {
 public:
  // As many bits for each of `count` symbols as the largest needs.
  template <class Of>
  void fill_fixed(std::size_t count, const Of& of) {
    width_ = width_of(count);
    std::fill_n(table_.begin(), std::size_t{1} << width_, Entry{0, kNotHere});
    for (std::size_t i = 0; i < count; ++i) {
      table_[i] = {of(i), static_cast<std::uint32_t>(width_)};
    }
  }

  // Canonical codes, whose lengths have four bits for each symbol. Returns whether they
  // are complete codes.
  template <class Of>
  bool fill_huffman(const std::byte* lengths, std::size_t count, const Of& of) {
    const auto length_of = [lengths](std::size_t i) {
      const auto both = static_cast<unsigned>(lengths[i / 2]);
      return i % 2 == 0 ? both >> 4 : both & 0xF;
    };
    unsigned widest = 0;
    std::size_t used = 0, alone = 0;
    Bytes room = 0;
    for (std::size_t i = 0; i < count; ++i) {
      const unsigned length = length_of(i);
      if (length == 0) continue;
      widest = std::max(widest, length);
      room += Bytes{1} << (Codebook::kLongest - length);
      ++used;
      alone = i;
    }
    if (used == 0 || (used == 1 && widest != 1)) return false;
    if (used == 1) {
      table_[0] = {of(alone), 0};
      return true;
    }
    if (room != Bytes{1} << Codebook::kLongest) return false;
    width_ = std::min(widest, kLookup);
    Entry* to = table_.data();
    std::uint32_t code = 0;
    std::size_t many = 0;  // long codes
    for (unsigned length = 1; length <= widest; ++length, code <<= 1) {
      const bool is_long = length > kLookup;
      if (is_long) {
        first_[length - kLookup] = code;
        begin_[length - kLookup] = many;
      }
      for (std::size_t i = 0; i < count; ++i) {
        if (length_of(i) != length) continue;
        ++code;
        if (is_long) {
          meanings_[many++] = of(i);
          continue;
        }
        const std::size_t times = std::size_t{1} << (width_ - length);
        std::fill_n(to, times, Entry{of(i), length});
        to += times;
      }
    }
    for (unsigned l = std::max(widest, kLookup) + 1; l <= Codebook::kLongest + 1; ++l) {
      begin_[l - kLookup] = many;
    }
    std::fill(to, table_.data() + (std::size_t{1} << width_), Entry{0, kNotHere});
    return true;
  }

  // Pre: at least Codebook::kLongest bits are ready. Returns whether there is such a
  // code.
  bool read(BitReader& from, std::uint32_t& meaning) const noexcept {
    const Entry entry = table_[from.peek(width_)];
    if (entry.length == kNotHere) return read_long(from, meaning);
    from.skip(entry.length);
    meaning = entry.meaning;
    return true;
  }

 private:
  struct Entry {
    std::uint32_t meaning;
    std::uint32_t length;  // bits
  };
  static constexpr unsigned kLookup = 12;  // bits
  static constexpr std::uint32_t kNotHere = 0xFF;

  bool read_long(BitReader& from, std::uint32_t& meaning) const noexcept {
    for (unsigned length = kLookup + 1; length <= Codebook::kLongest; ++length) {
      const unsigned row = length - kLookup;
      const std::size_t many = begin_[row + 1] - begin_[row];
      const std::size_t place = std::size_t{from.peek(length)} - first_[row];
      if (place >= many) continue;
      from.skip(length);
      meaning = meanings_[begin_[row] + place];
      return true;
    }
    return false;
  }

  std::array<Entry, 1u << kLookup> table_;
  std::array<std::uint32_t, Codebook::kMost> meanings_;  // of long codes
  std::array<std::uint32_t, Codebook::kLongest - kLookup + 1> first_{};
  std::array<std::size_t, Codebook::kLongest - kLookup + 2> begin_{};  // in meanings_
  unsigned width_ = 0;
};

// body(step, end, word) for each entry: `word` is number `end` of the words, counted
// from 1, and `step` words behind the entry before it. Pre: the code is kFixed or
// kHuffman. Returns the bytes read. Throws std::invalid_argument for what is no code of
// so many words, perhaps after some entries; `end` never exceeds `words`.
template <class Body>
Bytes each_entry(const std::byte* from, Bytes capacity, Bytes words, const Body& body) {
  check(capacity >= Codebook::kHeader);
  const bool huffman = from[0] == kHuffman;
  const auto index_bits = static_cast<unsigned>(from[kIndexBits]);
  std::uint16_t size;
  std::memcpy(&size, from + kSize, sizeof size);
  const Bytes entries = load(from + kEntries), gap_bytes = load(from + kGapBytes);
  check((huffman || from[0] == kFixed) && index_bits <= Codebook::kMaxIndexBits &&
        size <= Codebook::kMost && words > 0 && load(from + kWords) == words &&
        entries <= words && (entries == 0 || size > 0));
  const std::size_t steps = std::size_t{1} << index_bits;
  const Bytes tables = huffman ? (Bytes{size} + 1) / 2 + (steps + 1) / 2 : 0;
  const Bytes head = Codebook::kHeader + size * kWord + tables;
  check(head <= capacity && gap_bytes <= capacity - head);
  if (entries == 0) {
    check(gap_bytes == 0);
    return head;
  }
  const std::byte* const codebook = from + Codebook::kHeader;
  Decoder of_values, of_gaps;
  const auto value_of = [&](std::size_t i) { return load(codebook + i * kWord); };
  const auto step_of = [](std::size_t i) { return static_cast<std::uint32_t>(i + 1); };
  if (huffman) {
    const std::byte* const lengths = codebook + size * kWord;
    check(of_values.fill_huffman(lengths, size, value_of));
    check(of_gaps.fill_huffman(lengths + (size + 1) / 2, steps, step_of));
  } else {
    of_values.fill_fixed(size, value_of);
    of_gaps.fill_fixed(steps, step_of);
  }
  BitReader gaps(from + head, gap_bytes);
  BitReader values(from + head + gap_bytes, capacity - head - gap_bytes);
  Bytes end = 0;
  const auto read_one = [&] {
    std::uint32_t step = 0, value = 0;
    check(of_gaps.read(gaps, step) && of_values.read(values, value));
    end += step;
    check(end <= words);
    body(Bytes{step}, end, value);
  };
  constexpr Bytes kAtOnce = 56 / Codebook::kLongest;  // codes of a refill
  Bytes left = entries;
  for (; left >= kAtOnce; left -= kAtOnce) {
    gaps.refill();
    values.refill();
    for (Bytes i = 0; i < kAtOnce; ++i) read_one();
  }
  gaps.refill();
  values.refill();
  for (; left > 0; --left) read_one();
  check(gaps.used() == gap_bytes && values.used() <= capacity - head - gap_bytes);
  return head + gap_bytes + values.used();
}

}  // namespace codebook
}  // namespace memcfg
