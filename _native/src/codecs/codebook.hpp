// Weights that were pruned and shared, as gaps and numbers of a codebook.
//
// S. Han, H. Mao, W. J. Dally: "Deep Compression: Compressing Deep Neural Networks with
// Pruning, Trained Quantization and Huffman Coding", ICLR 2016, sections 3 and 4.
#pragma once

#include "memcfg/codec.hpp"

namespace memcfg {

// Entries, each of a gap (how many zeros lie before it, in `index_bits` bits) and a
// word of the codebook. Where a gap is longer, entries of the word zero fill it. Both
// are written in as many bits as the largest needs, or in canonical Huffman codes,
// whose lengths, at most kLongest bits, stand before them. docs/compressed-format.md
// has the bytes.
//
// What has more than kMost different words, or does not get smaller, is kept as it is.
class Codebook final : public Codec {
 public:
  static constexpr unsigned kBest = 0xFF;       // index bits: those of the fewest bytes
  static constexpr unsigned kMaxIndexBits = 8;  // 0: zeros are entries like all others
  static constexpr unsigned kLongest = 15;      // bits of a code
  static constexpr unsigned kMost = 4096;       // words of a codebook
  static constexpr Bytes kHeader = 16;          // bytes

  // Throws std::invalid_argument for more index bits than there may be.
  Codebook(const char* name, unsigned index_bits, bool huffman);

  Bytes bound(Bytes size) const noexcept override {
    return saturating_add(size, 64);  // as all lossless codecs; kHeader is enough
  }
  std::optional<Bytes> try_encode(const std::byte* from,
                                  Bytes size,
                                  std::byte* to,
                                  Bytes capacity) const override;
  // Of any settings.
  void decode(const std::byte* from,
              Bytes capacity,
              std::byte* to,
              Bytes size) const override;

 private:
  Bytes unpack(const std::byte* from, Bytes capacity, std::byte* to, Bytes words) const;

  const unsigned index_bits_;
  const bool huffman_;
};

}  // namespace memcfg
