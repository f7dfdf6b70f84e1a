#include "codecs/codebook.hpp"

#include <algorithm>
#include <array>
#include <memory>
#include <stdexcept>
#include <vector>

#include "codecs/codebook_entries.hpp"
#include "codecs/huffman.hpp"
#include "codecs/words.hpp"

namespace memcfg {

using namespace codebook;  // fields of the header

namespace {

constexpr unsigned kMaxIndexBits = Codebook::kMaxIndexBits;
constexpr Bytes kMaxWords = 0xFFFFFFFF;

// Different words, and how often each occurs. Takes no memory.
class Words {
 public:
  static constexpr std::uint32_t kFull = 0xFFFFFFFF;

  void clear() noexcept {
    slots_.fill(0);
    size_ = 0;
  }
  // The word's number; kFull: there are too many.
  std::uint32_t count(std::uint32_t word) noexcept {
    std::uint32_t slot = word * 0x9E3779B1u >> (32 - kBits);
    for (; slots_[slot] != 0; slot = (slot + 1) & (kSlots - 1)) {
      const std::uint32_t found = slots_[slot] - 1;
      if (values_[found] == word) {
        ++counts_[found];
        return found;
      }
    }
    if (size_ == Codebook::kMost) return kFull;
    values_[size_] = word;
    counts_[size_] = 1;
    slots_[slot] = ++size_;
    return size_ - 1;
  }
  // The number of a word that occurs.
  std::uint32_t find(std::uint32_t word) const noexcept {
    std::uint32_t slot = word * 0x9E3779B1u >> (32 - kBits);
    while (values_[slots_[slot] - 1] != word) slot = (slot + 1) & (kSlots - 1);
    return slots_[slot] - 1;
  }
  std::uint32_t size() const noexcept { return size_; }
  std::uint32_t value(std::uint32_t number) const noexcept { return values_[number]; }
  std::uint64_t count_of(std::uint32_t number) const noexcept {
    return counts_[number];
  }

 private:
  static constexpr unsigned kBits = Codebook::kLongest - 1;
  static constexpr std::uint32_t kSlots = 1u << kBits;
  std::array<std::uint32_t, kSlots> slots_{};  // number + 1; 0: free
  std::array<std::uint32_t, Codebook::kMost> values_{};
  std::array<std::uint64_t, Codebook::kMost> counts_{};
  std::uint32_t size_ = 0;
};

// One of the two streams: how often each symbol occurs, and its codes.
struct Stream {
  std::vector<std::uint64_t> counts;
  std::vector<std::uint8_t> lengths;
  std::vector<std::uint32_t> codes;

  void choose(bool huffman, unsigned width) {
    if (huffman) {
      lengths = huffman_lengths(counts, Codebook::kLongest);
      codes = canonical_codes(lengths);
      const bool alone = std::count(lengths.begin(), lengths.end(), 0) + 1 ==
                         static_cast<std::ptrdiff_t>(lengths.size());
      if (alone) widths.assign(lengths.size(), 0);
      if (!alone) widths = lengths;
    } else {
      widths.assign(counts.size(), static_cast<std::uint8_t>(width));
      codes.resize(counts.size());
      std::iota(codes.begin(), codes.end(), 0);
    }
  }
  Bytes nbytes() const {
    Bytes bits = 0;
    for (std::size_t i = 0; i < counts.size(); ++i) bits += counts[i] * widths[i];
    return (bits + 7) / 8;
  }
  Bytes table_bytes(bool huffman) const {
    return huffman ? (counts.size() + 1) / 2 : 0;
  }
  std::vector<std::uint8_t> widths;  // bits that a symbol takes
};

// What the words are, in one pass over them, for each number of index bits.
struct Survey {
  std::array<std::array<std::uint64_t, 1u << kMaxIndexBits>, kMaxIndexBits + 1> gaps{};
  std::array<std::uint64_t, kMaxIndexBits + 1> fillers{};
  std::uint64_t kept = 0;
  Words words;

  bool read(const std::byte* from, Bytes count) noexcept {
    for (auto& row : gaps) row.fill(0);
    fillers.fill(0);
    kept = 0;
    words.clear();
    Bytes next = 0;
    for (Bytes i = 0; i < count; ++i) {
      const std::uint32_t word = load(from + i * kWord);
      if (word == 0) continue;
      if (words.count(word) == Words::kFull) return false;
      const Bytes gap = i - next;
      for (unsigned bits = 0; bits <= kMaxIndexBits; ++bits) {
        fillers[bits] += gap >> bits;
        ++gaps[bits][gap & ((Bytes{1} << bits) - 1)];
      }
      ++kept;
      next = i + 1;
    }
    for (unsigned bits = 0; bits <= kMaxIndexBits; ++bits) {
      gaps[bits][(1u << bits) - 1] += fillers[bits];
    }
    return true;
  }
};

// The code of given words with so many index bits, before it is written.
struct Draft {
  unsigned index_bits = 0;
  bool huffman = false;
  Bytes entries = 0;
  std::vector<std::uint32_t> codebook;   // ascending, as numbers
  std::vector<std::uint32_t> positions;  // in it, by the number in `Words`
  Stream gaps, values;

  Draft(const Survey& survey, unsigned bits, bool huffman)
      : index_bits(bits), huffman(huffman) {
    const Words& words = survey.words;
    const std::uint64_t fillers = survey.fillers[bits];
    entries = survey.kept + fillers;
    std::vector<std::uint32_t> order(words.size());
    std::iota(order.begin(), order.end(), 0);
    std::sort(order.begin(), order.end(), [&](std::uint32_t a, std::uint32_t b) {
      return words.value(a) < words.value(b);
    });
    if (fillers > 0) {
      codebook.push_back(0);
      values.counts.push_back(fillers);
    }
    positions.resize(words.size());
    for (const std::uint32_t number : order) {
      positions[number] = static_cast<std::uint32_t>(codebook.size());
      codebook.push_back(words.value(number));
      values.counts.push_back(words.count_of(number));
    }
    const auto& row = survey.gaps[bits];
    gaps.counts.assign(row.begin(), row.begin() + (std::ptrdiff_t{1} << bits));
    if (fits()) {
      values.choose(huffman, width_of(codebook.size()));
      gaps.choose(huffman, bits);
    }
  }

  bool fits() const noexcept { return codebook.size() <= Codebook::kMost; }

  Bytes nbytes() const {
    return Codebook::kHeader + codebook.size() * kWord + values.table_bytes(huffman) +
           gaps.table_bytes(huffman) + gaps.nbytes() + values.nbytes();
  }

  // Pre: `to` has nbytes().
  std::byte* write(const std::byte* from,
                   Bytes count,
                   const Words& words,
                   std::byte* to) const {
    to[0] = huffman ? kHuffman : kFixed;
    to[kIndexBits] = static_cast<std::byte>(index_bits);
    const auto size = static_cast<std::uint16_t>(codebook.size());
    std::memcpy(to + kSize, &size, sizeof size);
    store(to + kWords, static_cast<std::uint32_t>(count));
    store(to + kEntries, static_cast<std::uint32_t>(entries));
    store(to + kGapBytes, static_cast<std::uint32_t>(gaps.nbytes()));
    to += Codebook::kHeader;
    for (const std::uint32_t word : codebook) {
      store(to, word);
      to += kWord;
    }
    if (huffman) {
      to = write_lengths(values.lengths, to);
      to = write_lengths(gaps.lengths, to);
    }
    return write_entries(from, count, words, to);
  }

 private:
  static std::byte* write_lengths(const std::vector<std::uint8_t>& lengths,
                                  std::byte* to) {
    BitWriter writer(to);
    for (const std::uint8_t length : lengths) writer.write(length, 4);
    return writer.finish();
  }

  std::byte* write_entries(const std::byte* from,
                           Bytes count,
                           const Words& words,
                           std::byte* to) const {
    BitWriter gap_bits(to), value_bits(to + gaps.nbytes());
    const Bytes longest = (Bytes{1} << index_bits) - 1;
    const auto write = [&](Bytes gap, std::uint32_t value) {
      gap_bits.write(gaps.codes[gap], gaps.widths[gap]);
      value_bits.write(values.codes[value], values.widths[value]);
    };
    Bytes next = 0;
    for (Bytes i = 0; i < count; ++i) {
      const std::uint32_t word = load(from + i * kWord);
      if (word == 0) continue;
      for (Bytes gap = i - next; gap > longest; gap -= longest + 1) write(longest, 0);
      write((i - next) & longest, positions[words.find(word)]);
      next = i + 1;
    }
    gap_bits.finish();
    return value_bits.finish();
  }
};

}  // namespace

Codebook::Codebook(const char* name, unsigned index_bits, bool huffman)
    : Codec(name, Gives::the_same_bytes), index_bits_(index_bits), huffman_(huffman) {
  if (index_bits > kMaxIndexBits && index_bits != kBest) {
    throw std::invalid_argument("index_bits must be 0 to " +
                                std::to_string(kMaxIndexBits) + ", got " +
                                std::to_string(index_bits));
  }
}

std::optional<Bytes> Codebook::try_encode(const std::byte* from,
                                          Bytes size,
                                          std::byte* to,
                                          Bytes capacity) const {
  if (capacity < kHeader) return std::nullopt;
  const Bytes words = size / kWord, tail = size % kWord;
  const auto survey = std::make_unique<Survey>();
  if (words > 0 && words <= kMaxWords && survey->read(from, words)) {
    std::unique_ptr<Draft> best;
    const bool any = index_bits_ == kBest;
    for (unsigned bits = any ? 0 : index_bits_;
         bits <= (any ? kMaxIndexBits : index_bits_);
         ++bits) {
      auto draft = std::make_unique<Draft>(*survey, bits, huffman_);
      if (draft->fits() && (!best || draft->nbytes() < best->nbytes())) {
        best = std::move(draft);
      }
    }
    if (best && best->nbytes() < kHeader + words * kWord) {
      if (best->nbytes() + tail > capacity) return std::nullopt;
      std::byte* const end = best->write(from, words, survey->words, to);
      copy_bytes(end, from + words * kWord, tail);
      return best->nbytes() + tail;
    }
  }
  if (capacity - kHeader < size) return std::nullopt;
  std::memset(to, 0, kHeader);
  to[0] = kRaw;
  copy_bytes(to + kHeader, from, size);
  return kHeader + size;
}

void Codebook::decode(const std::byte* from,
                      Bytes capacity,
                      std::byte* to,
                      Bytes size) const {
  check_code(capacity >= kHeader && from[0] >= kRaw && from[0] <= kHuffman);
  if (from[0] == kRaw) {
    check_code(capacity - kHeader >= size);
    copy_bytes(to, from + kHeader, size);
    return;
  }
  const Bytes words = size / kWord, tail = size % kWord;
  const Bytes used = unpack(from, capacity, to, words);
  check_code(capacity - used >= tail);
  copy_bytes(to + words * kWord, from + used, tail);
}

Bytes Codebook::unpack(const std::byte* from,
                       Bytes capacity,
                       std::byte* to,
                       Bytes words) const {
  // The words up to here are written; others are cleared shortly before they are.
  constexpr Bytes kClear = 4096;  // words
  Bytes cleared = 0;
  const auto clear = [&](Bytes until) {
    std::memset(to + cleared * kWord, 0, (until - cleared) * kWord);
    cleared = until;
  };
  const Bytes used =
      each_entry(from, capacity, words, [&](Bytes, Bytes end, std::uint32_t word) {
        if (end > cleared) clear(std::min(words, end + kClear));
        store(to + (end - 1) * kWord, word);
      });
  clear(words);
  return used;
}

namespace {

const Codebook kCodebook{"codebook", Codebook::kBest, true};
const CodecEntry kEntry{kCodebook};

}  // namespace
}  // namespace memcfg
