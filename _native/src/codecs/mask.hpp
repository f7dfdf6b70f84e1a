// Which numbers are positive, in a bit each, and the loops that tell.
#pragma once

#include "codecs/fixed.hpp"
#include "codecs/instructions.hpp"

namespace memcfg {

struct MaskLoops {
  // Both of `eights` times 8 numbers.
  using Loop = void (*)(const std::byte* from, Bytes eights, std::byte* to);

  Instructions set;
  Loop write;
  Loop read;
};

// Binarize: A. Jain, A. Phanishayee, J. Mars, L. Tang and G. Pekhimenko, "Gist:
// Efficient Data Encoding for Deep Neural Network Training" (ISCA 2018). Of a float32 a
// bit: whether it is above 0, which NaN is not. It comes back as 1 or 0, which is all
// that the gradient of a ReLU asks of the ReLU's result.
class Mask final : public Looped<FixedCodec, MaskLoops> {
 public:
  static const std::vector<Loops>& all_loops();

  using Looped::Looped;

 protected:
  Bytes code_bytes(Bytes words) const noexcept override { return (words + 7) / 8; }
  void write(const std::byte* from, Bytes words, std::byte* to) const override;
  void read(const std::byte* from, Bytes words, std::byte* to) const override;
};

}  // namespace memcfg
