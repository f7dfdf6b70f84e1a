// Zero-value compression of words of 4 bytes, and the loops that do it.
#pragma once

#include "codecs/framed.hpp"
#include "codecs/instructions.hpp"

namespace memcfg {

// Zero-value compression: M. Rhu, M. O'Connor, N. Chatterjee, J. Pool, Y. Kwon and
// S. W. Keckler, "Compressing DMA Engine: Leveraging Activation Sparsity for Training
// Deep Neural Networks" (HPCA 2018). For every 32 words of 4 bytes a mask of 32 bits,
// and the words that are not zero; -0.0 is none, its bits are not zero. Packed bytes of
// density d are 128 / (128 d + 4) times fewer. Behind the last words lie the bytes
// that are no whole word.
class Zvc final : public FramedCodec {
 public:
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
  struct Loops {
    Instructions set;
    Pack pack;
    Unpack unpack;
  };
  static const std::vector<Loops>& all_loops();

  Zvc(const char* name, const Loops& loops) noexcept
      : FramedCodec(name), loops_(loops) {}

 protected:
  std::optional<Bytes> pack(const std::byte* from,
                            Bytes size,
                            std::byte* to,
                            Bytes room) const override;
  void unpack(const std::byte* from,
              Bytes capacity,
              std::byte* to,
              Bytes size) const override;

 private:
  Loops loops_;
};

}  // namespace memcfg
