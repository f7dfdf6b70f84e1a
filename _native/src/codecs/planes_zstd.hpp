// Byte planes, each compressed by Zstandard, which is loaded at run time.
#pragma once

#include <mutex>
#include <optional>
#include <string>

#include "codecs/framed.hpp"

namespace memcfg {

// The functions of libzstd that are used, all of its stable interface since 1.3.
struct Zstd {
  struct Compressor;
  struct Decompressor;

  Compressor* (*make_compressor)() = nullptr;
  Decompressor* (*make_decompressor)() = nullptr;
  std::size_t (*free_compressor)(Compressor*) = nullptr;
  std::size_t (*free_decompressor)(Decompressor*) = nullptr;
  std::size_t (*compress)(
      Compressor*, void*, std::size_t, const void*, std::size_t, int) = nullptr;
  std::size_t (*decompress)(
      Decompressor*, void*, std::size_t, const void*, std::size_t) = nullptr;
  std::size_t (*bound)(std::size_t) = nullptr;
  unsigned (*is_error)(std::size_t) = nullptr;

  // Loads the file; what is wrong is in `missing`, which else is empty.
  explicit Zstd(const char* path);
  std::string missing;
};

// Words of 4 bytes, in chunks of 2^15, as four planes of the first bytes, of the second
// ones, ...: signs and exponents, which repeat, then stand together. For each chunk the
// sizes of the four planes (4 bytes each), and the planes, compressed at the lowest
// level or, where that does not help, as they are; then the bytes that are no whole
// word. What it writes depends on the version of the library, what it gives back does
// not.
//
// The exception among codecs: a thread that calls it first has the library take memory
// for it, some 0.5 MB, which no limit counts and which goes with the thread.
class PlanesZstd final : public FramedCodec {
 public:
  PlanesZstd(const char* name, const char* path) noexcept
      : FramedCodec(name), path_(path) {}

  std::string missing() const override { return library().missing; }

 protected:
  std::optional<Bytes> pack(Source given, Target room) const override;
  Bytes unpack(Source code, Target given) const override;

 private:
  const Zstd& library() const;  // loaded by the first call

  const char* path_;
  mutable std::once_flag once_;
  mutable std::optional<Zstd> library_;
};

}  // namespace memcfg
