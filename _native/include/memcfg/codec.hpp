// Codecs: tensors in fewer bytes, and back.
#pragma once

#include <string>
#include <vector>

#include "memcfg/types.hpp"

namespace memcfg {

// A lossless encoding of float32 and other words of 4 bytes, or of any bytes at worst.
//
// Contract. `encode` writes at most `bound(size)` bytes and reads no byte of `to`;
// `decode` gives the same bytes back. Neither takes memory; any thread may call both.
class Codec {
 public:
  virtual ~Codec() = default;
  virtual const char* name() const noexcept = 0;
  virtual Bytes bound(Bytes size) const noexcept = 0;
  // Returns the bytes written. Throws std::length_error if they do not fit `capacity`.
  virtual Bytes encode(const std::byte* from,
                       Bytes size,
                       std::byte* to,
                       Bytes capacity) const = 0;
  // Throws std::invalid_argument for bytes that `encode` has not made of `size` bytes.
  virtual void decode(const std::byte* from,
                      Bytes capacity,
                      std::byte* to,
                      Bytes size) const = 0;
};

const std::vector<const Codec*>& codecs();
// Throws std::invalid_argument for an unknown name.
const Codec& find_codec(const std::string& name);

}  // namespace memcfg
