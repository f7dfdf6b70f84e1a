// Run-length encoding of words of 4 bytes, and the searches that it takes.
#pragma once

#include "codecs/framed.hpp"
#include "codecs/instructions.hpp"

namespace memcfg {

struct RleLoops {
  // Both return the first word of [from, last) that is meant, or `last`: one with three
  // equal ones behind it; one that differs from the first. Pre: there is a first.
  using Find = const std::byte* (*)(const std::byte* from, const std::byte* last);

  Instructions set;
  Find find_run;
  Find find_end;
};

// Records of a head of 32 bits: a run of equal words, of whatever value, with the one
// word behind it, or words as they are. The top bit of the head says which, the others
// how many. A run has four words or more: of three it saves nothing where it parts
// words that are none. Behind the last record lie the bytes that are no whole word.
class Rle final : public Looped<FramedCodec, RleLoops> {
 public:
  static const std::vector<Loops>& all_loops();

  using Looped::Looped;

 protected:
  std::optional<Bytes> pack(Source given, Target room) const override;
  Bytes unpack(Source code, Target given) const override;
};

}  // namespace memcfg
