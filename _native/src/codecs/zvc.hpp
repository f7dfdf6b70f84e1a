// Zero-value compression of words of 4 bytes, and the loops that do it.
#pragma once

#include "codecs/framed.hpp"
#include "codecs/instructions.hpp"

namespace memcfg {

struct ZvcLoops {
  // Packs, or unpacks, whole blocks of 32 words as long as there are some and `end` is
  // so far that nothing is read or written behind it; moves the pointers on.
  using Pack = void (*)(const std::byte*& from,
                        const std::byte* last,
                        std::byte*& to,
                        const std::byte* end);
  using Unpack = void (*)(const std::byte*& from,
                          const std::byte* end,
                          std::byte*& to,
                          const std::byte* last);

  Instructions set;
  Pack pack;
  Unpack unpack;
};

// Zero-value compression: M. Rhu, M. O'Connor, N. Chatterjee, J. Pool, Y. Kwon and
// S. W. Keckler, "Compressing DMA Engine: Leveraging Activation Sparsity for Training
// Deep Neural Networks" (HPCA 2018). For every 32 words of 4 bytes a mask of 32 bits,
// and the words that are not zero; -0.0 is none, its bits are not zero. Packed bytes of
// density d are 128 / (128 d + 4) times fewer. Behind the last words lie the bytes
// that are no whole word.
class Zvc final : public Looped<FramedCodec, ZvcLoops> {
 public:
  static const std::vector<Loops>& all_loops();

  using Looped::Looped;

 protected:
  std::optional<Bytes> pack(Source given, Target room) const override;
  Bytes unpack(Source code, Target given) const override;
};

}  // namespace memcfg
