#include "memcfg/codec.hpp"

#include <algorithm>
#include <stdexcept>

#include "memcfg/error.hpp"

namespace memcfg {

Bytes Codec::encode(const std::byte* from,
                    Bytes size,
                    std::byte* to,
                    Bytes capacity) const {
  const std::optional<Bytes> used = try_encode(from, size, to, capacity);
  if (used) return *used;
  throw std::length_error(name_ + (" needs more than the " + std::to_string(capacity)) +
                          " bytes that are planned; " + std::to_string(bound(size)) +
                          " are always enough");
}

void Codec::check_code(bool holds) const {
  if (!holds) throw std::invalid_argument(std::string("these bytes are no ") + name_);
}

std::vector<const Codec*> codecs() {
  std::vector<const Codec*> all;
  for (auto* each = CodecEntry::first(); each != nullptr; each = each->next_) {
    all.push_back(&each->codec_);
  }
  std::sort(all.begin(), all.end(), [](const Codec* a, const Codec* b) {
    return std::string(a->name()) < b->name();
  });
  return all;
}

const Codec& find_codec(const std::string& name) {
  for (const Codec* const codec : codecs()) {
    if (name != codec->name()) continue;
    const std::string missing = codec->missing();
    if (!missing.empty()) throw missing_dependency(missing);
    return *codec;
  }
  throw std::invalid_argument("there is no codec '" + name + "'");
}

}  // namespace memcfg
