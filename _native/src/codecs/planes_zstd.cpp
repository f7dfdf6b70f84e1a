#include "codecs/planes_zstd.hpp"

#include <dlfcn.h>

#include <algorithm>
#include <memory>
#include <new>
#include <vector>

#include "kernels/parallel.hpp"
#include "memcfg/error.hpp"

namespace memcfg {
namespace {

constexpr Bytes kChunkWords = Bytes{1} << 15;  // words
constexpr Bytes kPlanes = kWord, kSize = 4;
constexpr Bytes kHeads = kPlanes * kSize;  // bytes of a chunk
constexpr int kLevel = 1;

template <class Function>
bool find(void* handle, const char* name, Function& function) {
  function = reinterpret_cast<Function>(dlsym(handle, name));
  return function != nullptr;
}

MEMCFG_VECTORIZED
void split(const std::byte* from, Bytes words, std::byte* to) {
  std::byte *a = to, *b = to + words, *c = to + 2 * words, *d = to + 3 * words;
  MEMCFG_INDEPENDENT
  for (Bytes i = 0; i < words; ++i) {
    const std::uint32_t word = load(from + kWord * i);
    a[i] = static_cast<std::byte>(word);
    b[i] = static_cast<std::byte>(word >> 8);
    c[i] = static_cast<std::byte>(word >> 16);
    d[i] = static_cast<std::byte>(word >> 24);
  }
}

MEMCFG_VECTORIZED
void join(const std::byte* from, Bytes words, std::byte* to) {
  const std::byte *a = from, *b = from + words, *c = b + words, *d = c + words;
  MEMCFG_INDEPENDENT
  for (Bytes i = 0; i < words; ++i) {
    const auto word =
        static_cast<std::uint32_t>(a[i]) | static_cast<std::uint32_t>(b[i]) << 8 |
        static_cast<std::uint32_t>(c[i]) << 16 | static_cast<std::uint32_t>(d[i]) << 24;
    store(to + kWord * i, word);
  }
}

// What a thread has of a library.
class Work : private NoCopy {
 public:
  explicit Work(const Zstd& library)
      : library_(library),
        compressor_(library.make_compressor()),
        decompressor_(library.make_decompressor()),
        planes_(kChunkWords * kPlanes),
        packed_(library.bound(kChunkWords)) {}
  ~Work() {
    library_.free_compressor(compressor_);
    library_.free_decompressor(decompressor_);
  }

  static Work& of(const Zstd& library) {
    thread_local std::vector<std::unique_ptr<Work>> all;  // libraries are few
    for (const auto& each : all) {
      if (each->library_.compress == library.compress) return *each;
    }
    all.push_back(std::make_unique<Work>(library));
    if (all.back()->compressor_ == nullptr || all.back()->decompressor_ == nullptr) {
      all.pop_back();
      throw std::bad_alloc();
    }
    return *all.back();
  }

  std::byte* planes() noexcept { return planes_.data(); }
  // A plane, compressed; as it is if that does not make it smaller.
  std::pair<const std::byte*, Bytes> compressed(const std::byte* plane, Bytes size) {
    const std::size_t used = library_.compress(
        compressor_, packed_.data(), packed_.size(), plane, size, kLevel);
    if (library_.is_error(used) != 0 || used >= size) return {plane, size};
    return {packed_.data(), used};
  }
  // Whether these bytes are such a plane of `size` bytes, which then stand in `to`.
  bool decompressed(const std::byte* from, Bytes used, std::byte* to, Bytes size) {
    if (used == size) {
      copy_bytes(to, from, size);
      return true;
    }
    return library_.decompress(decompressor_, to, size, from, used) == size;
  }

 private:
  const Zstd library_;  // a codec may end before a thread
  Zstd::Compressor* compressor_;
  Zstd::Decompressor* decompressor_;
  std::vector<std::byte> planes_, packed_;
};

}  // namespace

Zstd::Zstd(const char* path) {
  void* const handle = dlopen(path, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
  if (handle != nullptr && find(handle, "ZSTD_createCCtx", make_compressor) &&
      find(handle, "ZSTD_createDCtx", make_decompressor) &&
      find(handle, "ZSTD_freeCCtx", free_compressor) &&
      find(handle, "ZSTD_freeDCtx", free_decompressor) &&
      find(handle, "ZSTD_compressCCtx", compress) &&
      find(handle, "ZSTD_decompressDCtx", decompress) &&
      find(handle, "ZSTD_compressBound", bound) &&
      find(handle, "ZSTD_isError", is_error)) {
    return;
  }
  const char* const reason = dlerror();
  missing = std::string("the codec planes_zstd needs ") + path +
            ", which cannot be loaded (" + (reason != nullptr ? reason : "?") +
            "); install Zstandard: apt install libzstd1, or dnf install libzstd";
}

const Zstd& PlanesZstd::library() const {
  std::call_once(once_, [this] { library_.emplace(path_); });
  return *library_;
}

std::optional<Bytes> PlanesZstd::pack(Source given, Target room) const {
  Work& work = Work::of(library());
  const std::byte* from = given.from;
  std::byte* to = room.to;
  const std::byte* const end = to + room.size;
  for (Bytes left = given.size / kWord; left > 0;) {
    const Bytes words = std::min(left, kChunkWords);
    split(from, words, work.planes());
    if (between(to, end) < kHeads) return std::nullopt;
    std::byte* const heads = to;
    to += kHeads;
    for (Bytes plane = 0; plane < kPlanes; ++plane) {
      const auto [bytes, used] = work.compressed(work.planes() + plane * words, words);
      if (between(to, end) < used) return std::nullopt;
      store(heads + plane * kSize, static_cast<std::uint32_t>(used));
      std::memcpy(to, bytes, used);
      to += used;
    }
    from += words * kWord;
    left -= words;
  }
  return between(room.to, to);
}

Bytes PlanesZstd::unpack(Source code, Target given) const {
  Work& work = Work::of(library());
  const std::byte* from = code.from;
  const std::byte* const end = from + code.size;
  std::byte* to = given.to;
  for (Bytes left = given.size / kWord; left > 0;) {
    const Bytes words = std::min(left, kChunkWords);
    check_code(between(from, end) >= kHeads);
    const std::byte* const heads = from;
    from += kHeads;
    for (Bytes plane = 0; plane < kPlanes; ++plane) {
      const Bytes used = load(heads + plane * kSize);
      check_code(used <= words && used <= between(from, end));
      check_code(work.decompressed(from, used, work.planes() + plane * words, words));
      from += used;
    }
    join(work.planes(), words, to);
    to += words * kWord;
    left -= words;
  }
  return between(code.from, from);
}

namespace {

const PlanesZstd kPlanesZstd{"planes_zstd", "libzstd.so.1"};
const CodecEntry kEntry{kPlanesZstd};

}  // namespace
}  // namespace memcfg
