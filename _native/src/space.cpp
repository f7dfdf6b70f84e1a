#include "memcfg/space.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <utility>

#include "memcfg/error.hpp"
#include "memcfg/file_operations.hpp"
#include "memcfg/forks.hpp"
#include "memcfg/lane.hpp"

// Sanitizers do not see what an instruction of ours writes.
#if defined(__x86_64__) && !defined(__SANITIZE_ADDRESS__) && \
    !defined(__SANITIZE_THREAD__)
#define MEMCFG_STRING_COPIES
#include <cpuid.h>
#endif

namespace memcfg {
namespace {

constexpr Bytes kPiece = Bytes{1} << 16;  // bytes; between spaces without addresses
constexpr Bytes kCall = Bytes{1}
                        << 26;  // bytes of a call, behind which a lane is heard

// Moves all bytes through calls that may move fewer, or be interrupted by a signal.
template <typename Call>
void move_all(const char* what, const std::string& folder, Bytes size, Call call) {
  for (Bytes done = 0; done < size;) {
    const ssize_t moved = call(done, std::min(size - done, kCall));
    if (moved > 0) {
      done += static_cast<Bytes>(moved);
      Lane::get_on();
    } else if (moved == 0 || errno != EINTR) {
      const int error = moved == 0 ? EIO : errno;
      throw file_error(error, std::string(what) + ": " + std::strerror(error), folder);
    }
  }
}

#ifdef MEMCFG_STRING_COPIES
// Whether the processor has fast string copies (ERMS).
bool has_string_copies() noexcept {
  unsigned a = 0, b = 0, c = 0, d = 0;
  constexpr unsigned kErms = 1U << 9;
  return __get_cpuid_count(7, 0, &a, &b, &c, &d) != 0 && (b & kErms) != 0;
}
#endif

// What a lane writes, another processor had last. A string copy, which knows that it
// writes whole lines, need not fetch them first, as the stores of memcpy do; and it
// leaves them in a cache for who reads them next, as stores past the caches do not: 20
// instead of 12 GB/s where two cores share no cache (bench/results/lanes.json).
void copy_whole(void* to, const void* from, Bytes size) noexcept {
#ifdef MEMCFG_STRING_COPIES
  static const bool has = has_string_copies();
  if (has) {
    asm volatile("rep movsb" : "+D"(to), "+S"(from), "+c"(size) : : "memory");
    return;
  }
#endif
  std::memcpy(to, from, size);
}

int open_nameless(const std::string& folder) {
#ifdef O_TMPFILE
  const int file = ::open(folder.c_str(), O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
  if (file >= 0 || (errno != EOPNOTSUPP && errno != EISDIR)) return file;
#endif
  std::string name = folder + "/memcfg-XXXXXX";
  const int named = mkstemp(name.data());
  if (named < 0) return named;
  unlink(name.c_str());
  fcntl(named, F_SETFD, FD_CLOEXEC);
  return named;
}

}  // namespace

void Space::read(Offset offset, void* to, Bytes size) const {
  copy_whole(to, base() + offset, size);
}

void Space::write(Offset offset, const void* from, Bytes size) {
  copy_whole(base() + offset, from, size);
}

Buffer::Buffer(std::shared_ptr<Resource> resource, Bytes size, std::string_view tag)
    : resource_(std::move(resource)), size_(size) {
  Request request;
  request.size = size;
  request.tag = tag;
  data_ = static_cast<std::byte*>(resource_->allocate(request));
}

Buffer::~Buffer() {
  resource_->deallocate(data_, size_);
}

BufferSpace::BufferSpace(std::shared_ptr<Resource> resource,
                         Bytes size,
                         std::string tag)
    : resource_(std::move(resource)), size_(size), tag_(std::move(tag)) {
  require_valid_size(size);
}

std::byte* BufferSpace::base() const noexcept {
  return buffer_ == nullptr ? nullptr : buffer_->data();
}

void BufferSpace::refuse() const {
  throw out_of_memory_error(*resource_, OutOfMemoryInfo::limit_reached, size_);
}

void BufferSpace::take() {
  buffer_ = std::make_shared<Buffer>(resource_, size_, tag_);
}

ScratchFile::ScratchFile(std::string folder, Bytes size)
    : folder_(std::move(folder)), size_(size), forks_(fork_count()) {
  open();
}

ScratchFile::~ScratchFile() {
  if (file_ >= 0) ::close(file_);
}

void ScratchFile::open() {
  const int file = open_nameless(folder_);
  const FileOperations& files = host_files();
  int error = file < 0 ? -errno : files.allocate(file, size_);
  if (error == -EOPNOTSUPP) error = files.allocate_slowly(file, size_);
  if (error == 0) error = files.set_size(file, size_);
  if (error != 0) {
    if (file >= 0) ::close(file);
    throw file_error(
        -error,
        "a file of " + std::to_string(size_) +
            " bytes for what is swapped out cannot be made: " + std::strerror(-error),
        folder_);
  }
  if (file_ >= 0) ::close(file_);
  file_ = file;
}

void ScratchFile::prepare() {
  if (forks_ == fork_count()) return;
  open();
  forks_ = fork_count();
}

void ScratchFile::read(Offset offset, void* to, Bytes size) const {
  auto* const bytes = static_cast<std::byte*>(to);
  move_all(
      "reading what was swapped out failed", folder_, size, [&](Bytes at, Bytes n) {
        return pread(file_, bytes + at, n, static_cast<off_t>(offset + at));
      });
}

void ScratchFile::write(Offset offset, const void* from, Bytes size) {
  const auto* const bytes = static_cast<const std::byte*>(from);
  move_all("swapping out failed", folder_, size, [&](Bytes at, Bytes n) {
    return pwrite(file_, bytes + at, n, static_cast<off_t>(offset + at));
  });
}

void copy_between(
    const Space& from, Offset source, Space& to, Offset target, Bytes size) {
  if (from.base() != nullptr) {
    to.write(target, from.base() + source, size);
  } else if (to.base() != nullptr) {
    from.read(source, to.base() + target, size);
  } else {
    std::array<std::byte, kPiece> piece;
    for (Bytes at = 0; at < size; at += kPiece) {
      const Bytes length = std::min(kPiece, size - at);
      from.read(source + at, piece.data(), length);
      to.write(target + at, piece.data(), length);
    }
  }
}

}  // namespace memcfg
