// Codecs: what they are given comes back, within their bounds, from every loop; damage
// stays inside.
#include <algorithm>
#include <atomic>
#include <cstring>
#include <memory>
#include <random>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "check.hpp"
#include "codecs/codebook.hpp"
#include "codecs/csr.hpp"
#include "codecs/mask.hpp"
#include "codecs/planes_zstd.hpp"
#include "codecs/rle.hpp"
#include "codecs/zvc.hpp"
#include "memcfg/codec.hpp"
#include "memcfg/error.hpp"

using memcfg::Bytes;
using memcfg::Codec;
using Buffer = std::vector<std::byte>;

namespace {

std::mt19937 generator(1);

unsigned draw(unsigned below) {
  return static_cast<unsigned>(generator()) % below;
}

// Bytes at no aligned address, and none behind them that a sanitizer would not see.
class Exact {
 public:
  explicit Exact(Bytes size) : room_(new std::byte[size + 1]), size_(size) {}
  explicit Exact(const Buffer& bytes) : Exact(bytes.size()) {
    if (!bytes.empty()) std::memcpy(data(), bytes.data(), bytes.size());
  }
  std::byte* data() { return room_.get() + 1; }
  Bytes size() const { return size_; }
  Buffer copy() { return Buffer(data(), data() + size_); }

 private:
  std::unique_ptr<std::byte[]> room_;
  Bytes size_;
};

enum class Fill { zeros, sparse, half, dense, random, runs, values, steps };
constexpr Fill kFills[] = {Fill::zeros,
                           Fill::sparse,
                           Fill::half,
                           Fill::dense,
                           Fill::random,
                           Fill::runs,
                           Fill::values,
                           Fill::steps};
constexpr std::uint32_t kValues[] = {
    0x80000000, 0x7FC00001, 0xFF812345, 1, 0x807FFFFF, 0x7F800000, 0x3F800000, 0};

std::uint32_t word_of(Fill fill, Bytes index, std::uint32_t before) {
  const std::uint32_t any = static_cast<std::uint32_t>(generator());
  switch (fill) {
    case Fill::zeros:
      return 0;
    case Fill::sparse:
      return draw(20) == 0 ? any : 0;
    case Fill::half:
      return draw(2) == 0 ? any : 0;
    case Fill::dense:
      return draw(30) == 0 ? 0 : any;
    case Fill::random:
      return any;
    case Fill::runs:
      return draw(5) == 0 ? any : before;
    case Fill::values:
      return kValues[draw(8)];
    case Fill::steps:  // blocks of zeros and of others, of 64 words
      return index / 64 % 2 == 0 ? 0 : any;
  }
  return 0;
}

Buffer filled(Fill fill, Bytes size) {
  Buffer bytes(size);
  std::uint32_t word = 7;
  for (Bytes i = 0; i < size; i += 4) {
    word = word_of(fill, i / 4, word);
    std::memcpy(bytes.data() + i, &word, std::min<Bytes>(4, size - i));
  }
  return bytes;
}

constexpr Bytes kSizes[] = {
    0, 1, 3, 4, 5, 16, 63, 64, 127, 128, 132, 255, 256, 1020, 1024, 1028, 4099, 9000};

Buffer encoded(const Codec& codec, const Buffer& bytes) {
  Exact from(bytes), to(codec.bound(bytes.size()));
  const Bytes used = codec.encode(from.data(), from.size(), to.data(), to.size());
  CHECK(used <= to.size());
  CHECK(from.copy() == bytes);
  Buffer code = to.copy();
  code.resize(used);
  return code;
}

Buffer decoded(const Codec& codec, const Buffer& code, Bytes size) {
  Exact from(code), to(size);
  codec.decode(from.data(), from.size(), to.data(), size);
  return to.copy();
}

void check_round_trips(const Codec& codec) {
  for (const Fill fill : kFills) {
    for (const Bytes size : kSizes) {
      const Buffer bytes = filled(fill, size);
      const Buffer code = encoded(codec, bytes);
      CHECK(decoded(codec, code, size) == bytes);
      Exact from(bytes), tight(code.size());
      CHECK(codec.encode(from.data(), size, tight.data(), tight.size()) == code.size());
      CHECK(tight.copy() == code);
      for (const Bytes less : {code.size() - 1, code.size() / 2, Bytes{0}}) {
        if (less >= code.size()) continue;  // an empty code
        Exact small(less);
        CHECK_THROWS(std::length_error,
                     codec.encode(from.data(), size, small.data(), less));
        CHECK(from.copy() == bytes);
      }
    }
  }
}

// What damage becomes: an exception of the one kind, or other bytes.
void decode_damaged(const Codec& codec, const Buffer& code, Bytes size) {
  try {
    decoded(codec, code, size);
  } catch (const std::invalid_argument&) {
  }
}

void check_damage(const Codec& codec, int rounds) {
  for (const Fill fill : kFills) {
    for (const Bytes size : kSizes) {
      const Buffer code = encoded(codec, filled(fill, size));
      for (int round = 0; round < rounds; ++round) {
        Buffer wrong = code;
        for (unsigned i = draw(4) + 1; i > 0 && !wrong.empty(); --i) {
          // Heads and masks stand in front more often than anywhere else.
          const auto reach = static_cast<unsigned>(wrong.size());
          const unsigned place =
              draw(2) == 0 ? draw(reach) : draw(std::min(80U, reach));
          wrong[place] = draw(2) == 0 ? static_cast<std::byte>(draw(256))
                                      : wrong[place] ^ (std::byte{1} << draw(8));
        }
        if (draw(3) == 0) wrong.resize(draw(static_cast<unsigned>(wrong.size()) + 1));
        decode_damaged(codec, wrong, size);
        decode_damaged(codec, wrong, kSizes[draw(18)]);  // of another size
        Buffer any = filled(Fill::random, draw(600));
        if (!any.empty()) any[0] = static_cast<std::byte>(draw(4));
        decode_damaged(codec, any, size);
      }
    }
  }
}

template <class Family>
void check_loops(const char* name) {
  int compared = 0;
  const Codec& best = memcfg::find_codec(name);
  for (const auto& loops : Family::all_loops()) {
    if (!memcfg::has(loops.set)) continue;
    const Family codec(name, loops);
    check_round_trips(codec);
    check_damage(codec, 3);
    for (const Fill fill : kFills) {
      for (const Bytes size : {Bytes{1024}, Bytes{4099}, Bytes{20003}}) {
        const Buffer bytes = filled(fill, size);
        CHECK(encoded(codec, bytes) == encoded(best, bytes));
        ++compared;
      }
    }
  }
  CHECK(compared > 0);
}

}  // namespace

TEST(codecs_have_names) {
  CHECK(memcfg::codecs().size() >= 3);
  for (const Codec* const codec : memcfg::codecs()) {
    if (codec->missing().empty()) CHECK(&memcfg::find_codec(codec->name()) == codec);
  }
  CHECK_THROWS(std::invalid_argument, memcfg::find_codec("zip"));
}

TEST(lossless_codecs_give_back_what_they_got) {
  for (const Codec* const codec : memcfg::codecs()) {
    if (codec->lossless() && codec->missing().empty()) check_round_trips(*codec);
  }
}

TEST(damaged_bytes_stay_inside) {
  for (const Codec* const codec : memcfg::codecs()) {
    if (codec->lossless() && codec->missing().empty()) check_damage(*codec, 20);
  }
}

TEST(every_loop_makes_the_same_bytes) {
  check_loops<memcfg::Zvc>("zvc");
  check_loops<memcfg::Rle>("rle");
  check_loops<memcfg::Csr>("csr");
}

TEST(codebooks_of_all_settings_give_back_what_they_got) {
  for (unsigned bits = 0; bits <= memcfg::Codebook::kMaxIndexBits; ++bits) {
    for (const bool huffman : {false, true}) {
      const memcfg::Codebook codec("codebook", bits, huffman);
      check_round_trips(codec);
      check_damage(codec, 2);
    }
  }
  CHECK_THROWS(std::invalid_argument, memcfg::Codebook("codebook", 9, true));
}

TEST(lossy_codecs_stay_inside) {
  for (const Codec* const codec : memcfg::codecs()) {
    if (codec->lossless()) continue;
    for (const Fill fill : kFills) {
      for (const Bytes size : kSizes) {
        const Buffer bytes = filled(fill, size);
        if (size % 4 != 0) {
          Exact from(bytes), to(codec->bound(size));
          CHECK_THROWS(std::invalid_argument,
                       codec->encode(from.data(), size, to.data(), to.size()));
          CHECK_THROWS(std::invalid_argument,
                       codec->decode(to.data(), to.size(), from.data(), size));
          continue;
        }
        const Buffer code = encoded(*codec, bytes);
        CHECK(code == encoded(*codec, bytes));
        CHECK(code.size() == codec->bound(size));
        CHECK(decoded(*codec, code, size).size() == size);
        Buffer any = filled(Fill::random, code.size());
        decoded(*codec, any, size);
        if (size == 0) continue;
        any.pop_back();
        CHECK_THROWS(std::invalid_argument, decoded(*codec, any, size));
        Exact from(bytes), to(any.size());
        CHECK_THROWS(std::length_error,
                     codec->encode(from.data(), size, to.data(), to.size()));
      }
    }
  }
}

TEST(every_loop_of_masks_makes_the_same_bytes) {
  const Codec& best = memcfg::find_codec("mask");
  for (const auto& loops : memcfg::Mask::all_loops()) {
    if (!memcfg::has(loops.set)) continue;
    const memcfg::Mask codec("mask", loops);
    for (const Fill fill : kFills) {
      for (const Bytes size : {4, 28, 32, 36, 60, 64, 100, 4096, 4124}) {
        const Buffer code = encoded(codec, filled(fill, size));
        CHECK(decoded(codec, code, size) == decoded(best, code, size));
        const Buffer bytes = filled(fill, size);
        CHECK(encoded(codec, bytes) == encoded(best, bytes));
      }
    }
  }
}

TEST(sizes_are_those_of_the_papers) {
  const auto size_of = [](const char* name, const Buffer& bytes) {
    return encoded(memcfg::find_codec(name), bytes).size() - 64;
  };
  Buffer bytes(128 * 1024);
  CHECK(size_of("zvc", bytes) * 32 == bytes.size());
  const std::uint32_t word = 0x80000000;  // -0.0
  const Bytes words = bytes.size() / 4;
  for (Bytes i = 0; i < words; i += 4) std::memcpy(bytes.data() + 4 * i, &word, 4);
  CHECK(size_of("zvc", bytes) == words / 4 * 4 + words / 32 * 4);
  CHECK(size_of("csr", bytes) == words / 4 * 5 + words / 256 * 4);
  CHECK(size_of("rle", Buffer(bytes.size())) == 8);
  CHECK(memcfg::find_codec("mask").bound(bytes.size()) * 32 == bytes.size());
}

TEST(a_library_that_is_missing_is_named) {
  const memcfg::PlanesZstd absent("planes_zstd", "libzstd.so.0");
  const memcfg::PlanesZstd other("planes_zstd", "libm.so.6");
  for (const Codec* const codec : {&absent, &other}) {
    CHECK(codec->missing().find("needs lib") != std::string::npos);
    CHECK(codec->missing().find("apt install libzstd1") != std::string::npos);
  }
}

TEST(threads_have_work_of_their_own) {
  const memcfg::PlanesZstd codec("planes_zstd", "libzstd.so.1");
  if (!codec.missing().empty()) return;
  const Buffer bytes = filled(Fill::half, 600000), code = encoded(codec, bytes);
  std::vector<std::thread> threads;
  std::atomic<int> right{0};
  for (int i = 0; i < 3; ++i) {
    threads.emplace_back([&] {
      right += encoded(codec, bytes) == code;
      right += decoded(codec, code, bytes.size()) == bytes;
    });
  }
  for (auto& thread : threads) thread.join();
  CHECK(right == 6);
}
