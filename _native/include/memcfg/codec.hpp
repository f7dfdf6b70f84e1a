// Codecs: tensors in fewer bytes, and back.
#pragma once

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "memcfg/types.hpp"

namespace memcfg {

// An encoding of bytes; of words of 4 bytes, such as float32, first of all.
//
// Contract. `encode` writes at most `bound(size)` bytes and never more than `capacity`,
// reads no byte of `to` and changes none of `from`: whom it fails still has the tensor.
// `decode` gives the same bytes back, or, of a codec that is not lossless, what its
// file says; of damaged bytes it makes an exception or other bytes, inside `size`.
// Neither takes memory; any thread may call both.
//
// What an object of static life adds with a `CodecEntry` beside it has a name for
// plans; nothing else lists it.
class Codec : private NoCopy {
 public:
  virtual ~Codec() = default;

  const char* name() const noexcept { return name_; }
  bool lossless() const noexcept { return lossless_; }
  // Why it cannot be used here and what helps, as a sentence; empty if it can.
  virtual std::string missing() const { return {}; }
  virtual Bytes bound(Bytes size) const noexcept = 0;
  // Returns the bytes written, or nothing if they do not fit `capacity`, of which any
  // may then be written. Throws std::invalid_argument if it does not encode so many
  // bytes.
  virtual std::optional<Bytes> try_encode(const std::byte* from,
                                          Bytes size,
                                          std::byte* to,
                                          Bytes capacity) const = 0;
  // The same; throws std::length_error if they do not fit.
  Bytes encode(const std::byte* from, Bytes size, std::byte* to, Bytes capacity) const;
  // Throws std::invalid_argument for bytes that `encode` has not made of `size` bytes.
  virtual void decode(const std::byte* from,
                      Bytes capacity,
                      std::byte* to,
                      Bytes size) const = 0;

 protected:
  enum class Gives { the_same_bytes, other_bytes };

  Codec(const char* name, Gives gives) noexcept
      : name_(name), lossless_(gives == Gives::the_same_bytes) {}

  void check_code(bool holds) const;  // invalid_argument

 private:
  const char* name_;
  bool lossless_;
};

class CodecEntry : private NoCopy {
 public:
  explicit CodecEntry(const Codec& codec) noexcept
      : codec_(codec), next_(std::exchange(first(), this)) {}

 private:
  friend std::vector<const Codec*> codecs();
  static const CodecEntry*& first() noexcept {
    static const CodecEntry* entry = nullptr;
    return entry;
  }

  const Codec& codec_;
  const CodecEntry* next_;
};

std::vector<const Codec*> codecs();  // by name
// Throws std::invalid_argument for an unknown name, missing_dependency for one that
// is missing here.
const Codec& find_codec(const std::string& name);

}  // namespace memcfg
