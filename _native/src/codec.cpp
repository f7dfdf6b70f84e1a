#include "memcfg/codec.hpp"

#include <cstdint>
#include <cstring>
#include <stdexcept>

namespace memcfg {
namespace {

// Words of 4 bytes without those that are zero: what a ReLU or a dropout leaves. A
// header of 64 bytes with the method, a bit a word, the words that are not zero, and
// the bytes behind the last word. What has too few zeros follows the header as it is,
// so that no input takes more than its size and the header.
class ZeroWords final : public Codec {
 public:
  const char* name() const noexcept override { return "zero_words"; }
  Bytes bound(Bytes size) const noexcept override {
    return saturating_add(size, kHeader);
  }

  Bytes encode(const std::byte* from,
               Bytes size,
               std::byte* to,
               Bytes capacity) const override {
    const Bytes words = size / kWord;
    const Bytes bits = (words + 7) / 8;
    Bytes kept = 0;
    for (Bytes i = 0; i < words; ++i) kept += word(from, i) != 0;
    const Bytes packed = bits + kept * kWord + size % kWord;
    const bool raw = packed >= size;
    const Bytes needed = kHeader + (raw ? size : packed);
    if (needed > capacity) {
      throw std::length_error("zero_words needs " + std::to_string(needed) +
                              " bytes, and " + std::to_string(capacity) +
                              " are planned");
    }
    std::memset(to, 0, kHeader);
    to[0] = raw ? kRaw : kPacked;
    to += kHeader;
    if (raw) {
      copy(to, from, size);
      return needed;
    }
    std::memset(to, 0, bits);
    std::byte* out = to + bits;
    for (Bytes i = 0; i < words; ++i) {
      if (word(from, i) == 0) continue;
      to[i / 8] |= std::byte{1} << (i % 8);
      std::memcpy(out, from + i * kWord, kWord);
      out += kWord;
    }
    copy(out, from + words * kWord, size % kWord);
    return needed;
  }

  void decode(const std::byte* from,
              Bytes capacity,
              std::byte* to,
              Bytes size) const override {
    const Bytes words = size / kWord;
    const Bytes bits = (words + 7) / 8;
    check(capacity >= kHeader && (from[0] == kRaw || from[0] == kPacked));
    const bool raw = from[0] == kRaw;
    from += kHeader;
    capacity -= kHeader;
    check(capacity >= (raw ? size : bits));
    if (raw) {
      copy(to, from, size);
      return;
    }
    const std::byte* in = from + bits;
    Bytes left = capacity - bits;
    for (Bytes i = 0; i < words; ++i) {
      if ((from[i / 8] >> (i % 8) & std::byte{1}) == std::byte{0}) {
        std::memset(to + i * kWord, 0, kWord);
        continue;
      }
      check(left >= kWord);
      std::memcpy(to + i * kWord, in, kWord);
      in += kWord;
      left -= kWord;
    }
    check(left >= size % kWord);
    copy(to + words * kWord, in, size % kWord);
  }

 private:
  static constexpr Bytes kHeader = 64, kWord = 4;  // bytes
  static constexpr std::byte kRaw{1}, kPacked{2};

  static std::uint32_t word(const std::byte* bytes, Bytes index) noexcept {
    std::uint32_t value;
    std::memcpy(&value, bytes + index * kWord, kWord);
    return value;
  }
  static void copy(std::byte* to, const std::byte* from, Bytes size) noexcept {
    if (size > 0) std::memcpy(to, from, size);  // of no bytes there may be no address
  }
  static void check(bool holds) {
    if (!holds) throw std::invalid_argument("these bytes are no zero_words");
  }
};

}  // namespace

const std::vector<const Codec*>& codecs() {
  static const ZeroWords zero_words;
  static const std::vector<const Codec*> all{&zero_words};
  return all;
}

const Codec& find_codec(const std::string& name) {
  for (const Codec* const codec : codecs()) {
    if (name == codec->name()) return *codec;
  }
  throw std::invalid_argument("there is no codec '" + name + "'");
}

}  // namespace memcfg
