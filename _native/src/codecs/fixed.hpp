// What codecs of float32 have in common whose codes have a fixed size.
#pragma once

#include <optional>
#include <stdexcept>

#include "codecs/words.hpp"
#include "memcfg/codec.hpp"

namespace memcfg {

// None is lossless: a plan must say that it takes it.
class FixedCodec : public Codec {
 public:
  Bytes bound(Bytes size) const noexcept final {
    return code_bytes(size / kWord + (size % kWord != 0));
  }

  std::optional<Bytes> try_encode(const std::byte* from,
                                  Bytes size,
                                  std::byte* to,
                                  Bytes capacity) const final {
    check_size(size);
    if (capacity < bound(size)) return std::nullopt;
    write(from, size / kWord, to);
    return bound(size);
  }

  void decode(const std::byte* from,
              Bytes capacity,
              std::byte* to,
              Bytes size) const final {
    check_size(size);
    check_code(capacity >= bound(size));
    read(from, size / kWord, to);
  }

 protected:
  explicit FixedCodec(const char* name) noexcept : Codec(name, Gives::other_bytes) {}

  virtual Bytes code_bytes(Bytes words) const noexcept = 0;
  virtual void write(const std::byte* from, Bytes words, std::byte* to) const = 0;
  virtual void read(const std::byte* from, Bytes words, std::byte* to) const = 0;

 private:
  void check_size(Bytes size) const {
    if (size % kWord == 0) return;
    throw std::invalid_argument(
        name() + (" encodes float32, not " + std::to_string(size) + " bytes"));
  }
};

}  // namespace memcfg
