// Which pages of a range of addresses are committed: one bit a page.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "memcfg/metadata.hpp"
#include "memcfg/types.hpp"

namespace memcfg {

// A row of bits, 64 to a word.
class Bits {
 public:
  static constexpr std::size_t kWord = 64;

  Bits() = default;
  Bits(const System& system, std::size_t count)
      : words_(system, (count + kWord - 1) / kWord) {}

  std::uint64_t& word(std::size_t index) const noexcept { return words_[index]; }
  Bytes bytes() const noexcept { return words_.bytes(); }

  // The bits [first, last) of a word. Pre: both lie in it or at its end, first < last.
  static std::uint64_t mask(std::size_t first, std::size_t last) noexcept {
    return ~std::uint64_t{0} >> (kWord - (last - first)) << first % kWord;
  }

  void assign(std::size_t first, std::size_t last, bool value) noexcept {
    const std::size_t begin = std::min(last, (first + kWord - 1) / kWord * kWord);
    const std::size_t end = std::max(begin, last / kWord * kWord);
    assign_in_word(first, begin, value);
    if (begin < end) {  // a fill is a loop where -O2 does not vectorize it
      std::memset(&words_[begin / kWord], value ? 0xFF : 0, (end - begin) / 8);
    }
    assign_in_word(end, last, value);
  }

  // The first bit of [first, last) that is `value`; `last` if there is none.
  std::size_t find(std::size_t first, std::size_t last, bool value) const noexcept {
    while (first < last) {
      const std::uint64_t found =
          (value ? word(first / kWord) : ~word(first / kWord)) >> first % kWord;
      if (found != 0) {
        return std::min(last, first + static_cast<std::size_t>(__builtin_ctzll(found)));
      }
      first = (first / kWord + 1) * kWord;
    }
    return last;
  }

 private:
  void assign_in_word(std::size_t first, std::size_t last, bool value) noexcept {
    if (first == last) return;
    value ? word(first / kWord) |= mask(first, last)
          : word(first / kWord) &= ~mask(first, last);
  }

  MetadataArray<std::uint64_t> words_;
};

using Page = std::size_t;  // a page's number in its segment

// Bits of pages, and for each word of them whether it is full and whether it is empty:
// long runs are counted and skipped 4,096 pages at a time.
//
//     full[w] == (pages.word(w) == ~0),  some[w] == (pages.word(w) != 0).
class PageMap {
 public:
  PageMap() = default;
  PageMap(const System& system, Page count)
      : pages_(system, count),
        full_(system, count / Bits::kWord + 1),
        some_(system, count / Bits::kWord + 1) {}

  // How many of [first, last) are committed.
  Page count(Page first, Page last) const noexcept {
    Page sum = 0;
    while (first < last) {
      const std::size_t word = first / Bits::kWord;
      const bool whole = first % Bits::kWord == 0 && last - first >= Bits::kWord;
      const std::size_t end = last / Bits::kWord;
      if (whole && full(word)) {
        const std::size_t next = full_.find(word, end, false);
        sum += (next - word) * Bits::kWord;
        first = next * Bits::kWord;
      } else if (whole && !some(word)) {
        first = some_.find(word, end, true) * Bits::kWord;
      } else {
        const Page next = std::min(last, (word + 1) * Bits::kWord);
        sum += ones(pages_.word(word) & Bits::mask(first, next));
        first = next;
      }
    }
    return sum;
  }

  void set(Page first, Page last) noexcept { assign(first, last, true); }
  void clear(Page first, Page last) noexcept { assign(first, last, false); }

  // The first page of [first, last) that is committed, or is not; `last` if there is
  // none.
  Page find(Page first, Page last, bool committed) const noexcept {
    const Page end = std::min(last, (first / Bits::kWord + 1) * Bits::kWord);
    const Page near = pages_.find(first, end, committed);
    if (near != end || end == last) return near;
    const std::size_t words = (last + Bits::kWord - 1) / Bits::kWord;
    const std::size_t word = committed ? some_.find(end / Bits::kWord, words, true)
                                       : full_.find(end / Bits::kWord, words, false);
    return pages_.find(std::min(last, word * Bits::kWord), last, committed);
  }

  Bytes bytes() const noexcept {
    return pages_.bytes() + full_.bytes() + some_.bytes();
  }

 private:
  bool full(std::size_t word) const noexcept {
    return pages_.word(word) == ~std::uint64_t{0};
  }
  bool some(std::size_t word) const noexcept { return pages_.word(word) != 0; }

  // Sideways addition; a plain x86-64 has no instruction for it (Warren, Hacker's
  // Delight, section 5-1).
  static Page ones(std::uint64_t word) noexcept {
    word -= word >> 1 & 0x5555555555555555U;
    word = (word & 0x3333333333333333U) + (word >> 2 & 0x3333333333333333U);
    word = (word + (word >> 4)) & 0x0F0F0F0F0F0F0F0FU;
    return static_cast<Page>(word * 0x0101010101010101U >> 56);
  }

  void assign(Page first, Page last, bool value) noexcept {
    if (first == last) return;
    pages_.assign(first, last, value);
    std::size_t begin = first / Bits::kWord;
    std::size_t end = (last + Bits::kWord - 1) / Bits::kWord;
    full_.assign(begin, end, value);
    some_.assign(begin, end, value);
    for (const std::size_t edge : {begin, end - 1}) {
      full_.assign(edge, edge + 1, full(edge));
      some_.assign(edge, edge + 1, some(edge));
    }
  }

  Bits pages_;
  Bits full_;
  Bits some_;
};

}  // namespace memcfg
