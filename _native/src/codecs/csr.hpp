// Compressed sparse rows with narrow columns, and the loops that make them.
#pragma once

#include "codecs/framed.hpp"
#include "codecs/instructions.hpp"

namespace memcfg {

struct CsrLoops {
  // How many of the words at `from` are not zero.
  using Count = Bytes (*)(const std::byte* from, Bytes words);
  // Writes values and columns of whole rows as long as there are some and the ends of
  // both are so far that nothing is written behind them; moves the pointers on.
  using Pack = void (*)(const std::byte*& from,
                        const std::byte* last,
                        std::byte*& values,
                        const std::byte* values_end,
                        std::byte*& columns,
                        const std::byte* columns_end);

  Instructions set;
  Count count;
  Pack pack;
};

// Sparse storage, dense compute: A. Jain, A. Phanishayee, J. Mars, L. Tang and
// G. Pekhimenko, "Gist: Efficient Data Encoding for Deep Neural Network Training"
// (ISCA 2018). The words of 4 bytes are rows of 256 columns, so that a column is a
// byte: for each row where its values end (4 bytes), then the values that are not
// zero, then their columns, then the bytes that are no whole word. Up to a density of
// 0.796 that is less than the words are.
class Csr final : public Looped<FramedCodec, CsrLoops> {
 public:
  static const std::vector<Loops>& all_loops();

  using Looped::Looped;

 protected:
  std::optional<Bytes> pack(Source given, Target room) const override;
  Bytes unpack(Source code, Target given) const override;
};

}  // namespace memcfg
