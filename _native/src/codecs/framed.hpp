// What lossless codecs of varying size have in common: a header, and a way out.
#pragma once

#include <algorithm>
#include <optional>

#include "codecs/words.hpp"
#include "memcfg/codec.hpp"

namespace memcfg {

// A header of 64 bytes says whether the packed bytes follow or the bytes as they are.
// The latter is what becomes of those that packing would not make smaller, so that no
// input takes more than its size and the header.
class FramedCodec : public Codec {
 public:
  Bytes bound(Bytes size) const noexcept final { return saturating_add(size, kHeader); }

  std::optional<Bytes> try_encode(const std::byte* from,
                                  Bytes size,
                                  std::byte* to,
                                  Bytes capacity) const final {
    if (capacity < kHeader) return std::nullopt;
    const Bytes room = capacity - kHeader;
    std::optional<Bytes> packed;
    if (size > 0) {
      packed = pack_all({from, size}, {to + kHeader, std::min(room, size - 1)});
    }
    if (!packed && room < size) return std::nullopt;
    if (!packed) copy_bytes(to + kHeader, from, size);
    std::memset(to, 0, kHeader);
    to[0] = packed ? kPacked : kRaw;
    return kHeader + packed.value_or(size);
  }

  void decode(const std::byte* from,
              Bytes capacity,
              std::byte* to,
              Bytes size) const final {
    check_code(capacity >= kHeader && (from[0] == kRaw || from[0] == kPacked));
    capacity -= kHeader;
    if (from[0] == kPacked) {
      unpack_all({from + kHeader, capacity}, {to, size});
      return;
    }
    check_code(capacity >= size);
    copy_bytes(to, from + kHeader, size);
  }

 protected:
  explicit FramedCodec(const char* name) noexcept
      : Codec(name, Gives::the_same_bytes) {}

  struct Source {
    const std::byte* from;
    Bytes size;
  };
  struct Target {
    std::byte* to;
    Bytes size;
  };

  // Both of whole words, perhaps of none; the bytes behind them follow the code.
  // Returns the bytes written, or nothing if they are more than `room`, of which any
  // may then be written.
  virtual std::optional<Bytes> pack(Source given, Target room) const = 0;
  // Returns the bytes read. Throws as `decode`.
  virtual Bytes unpack(Source code, Target given) const = 0;

 private:
  std::optional<Bytes> pack_all(Source given, Target room) const {
    const Bytes tail = given.size % kWord, whole = given.size - tail;
    if (room.size < tail) return std::nullopt;
    const auto used = pack({given.from, whole}, {room.to, room.size - tail});
    if (!used) return std::nullopt;
    copy_bytes(room.to + *used, given.from + whole, tail);
    return *used + tail;
  }

  void unpack_all(Source code, Target given) const {
    const Bytes tail = given.size % kWord, whole = given.size - tail;
    const Bytes used = unpack(code, {given.to, whole});
    check_code(code.size - used >= tail);
    copy_bytes(given.to + whole, code.from + used, tail);
  }

  static constexpr Bytes kHeader = 64;  // bytes
  static constexpr std::byte kRaw{1}, kPacked{2};
};

}  // namespace memcfg
