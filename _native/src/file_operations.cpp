#include "memcfg/file_operations.hpp"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>

namespace memcfg {
namespace {

constexpr Bytes kMiB = Bytes{1} << 20;
constexpr Bytes kDiskBlock = 512;  // bytes; the unit of st_blocks (stat(2))
constexpr std::uint64_t kPresent = std::uint64_t{1} << 63;  // Linux: pagemap.rst

// The call again as long as a signal interrupts it.
template <typename Call>
int without_signals(Call call) noexcept {
  for (;;) {
    const auto result = call();
    if (result >= 0) return static_cast<int>(result);
    if (errno != EINTR) return -errno;
  }
}

int flags_of(Opening how) noexcept {
  constexpr int kBoth = O_CLOEXEC | O_NOFOLLOW | O_NOCTTY;
  switch (how) {
    case Opening::existing:
      return kBoth | O_RDWR | O_NONBLOCK;  // where it turns out to be a device
    case Opening::fresh:
      return kBoth | O_RDWR | O_CREAT | O_EXCL;
    case Opening::folder:
      break;
  }
  return kBoth | O_RDONLY | O_DIRECTORY;
}

FileStatus::Kind kind_of(mode_t mode) noexcept {
  if (S_ISREG(mode)) return FileStatus::regular;
  return S_ISDIR(mode) ? FileStatus::folder : FileStatus::other;
}

FileStatus status_of(const struct stat& row) noexcept {
  FileStatus status;
  status.kind = kind_of(row.st_mode);
  status.device = static_cast<std::uint64_t>(row.st_dev);
  status.number = static_cast<std::uint64_t>(row.st_ino);
  status.size = static_cast<Bytes>(row.st_size);
  status.allocated = static_cast<Bytes>(row.st_blocks) * kDiskBlock;
  status.mode = static_cast<unsigned>(row.st_mode) & 07777U;
  status.user = row.st_uid;
  status.group = row.st_gid;
  return status;
}

int allocate_part(int file, Bytes from, Bytes size) noexcept {
#ifdef __linux__
  const auto place = static_cast<off_t>(from);
  const auto length = static_cast<off_t>(size);
  return fallocate(file, FALLOC_FL_KEEP_SIZE, place, length) == 0 ? 0 : -errno;
#else
  static_cast<void>(file);
  static_cast<void>(from);
  static_cast<void>(size);
  return -EOPNOTSUPP;
#endif
}

class Host final : public FileOperations {
 public:
  int open(const char* path, Opening how, unsigned mode) const noexcept override {
    return without_signals([&] { return ::open(path, flags_of(how), mode); });
  }

  void close(int file) const noexcept override { ::close(file); }

  int look(int file, FileStatus& status) const noexcept override {
    struct stat row{};
    if (fstat(file, &row) != 0) return -errno;
    status = status_of(row);
    return 0;
  }

  int look_at(const char* path, FileStatus& status) const noexcept override {
    struct stat row{};
    if (lstat(path, &row) != 0) return -errno;
    status = status_of(row);
    return 0;
  }

  int lock(int file) const noexcept override {
    return without_signals([&] { return flock(file, LOCK_EX | LOCK_NB); });
  }

  void unlock(int file) const noexcept override { flock(file, LOCK_UN); }

  // In steps: some file systems start anew when a signal comes, and signals may come
  // faster than the whole takes.
  int allocate(int file, Bytes size) const noexcept override {
    Bytes step = 1024 * kMiB;
    for (Bytes at = 0; at < size;) {
      const Bytes length = std::min(step, size - at);
      const int result = allocate_part(file, at, length);
      if (result == 0) {
        at += length;
      } else if (result == -EINTR) {
        step = std::max(step / 2, kMiB);
      } else {
        return result == -ENOSYS ? -EOPNOTSUPP : result;
      }
    }
    return 0;
  }

  int allocate_slowly(int file, Bytes size) const noexcept override {
#ifdef __APPLE__
    static_cast<void>(file);
    static_cast<void>(size);
    return -EOPNOTSUPP;
#else
    for (;;) {
      const int error = posix_fallocate(file, 0, static_cast<off_t>(size));
      if (error != EINTR) return -error;
    }
#endif
  }

  int set_size(int file, Bytes size) const noexcept override {
    return without_signals([&] { return ftruncate(file, static_cast<off_t>(size)); });
  }

  int set_owner(int file, unsigned user, unsigned group) const noexcept override {
    return fchown(file, user, group) == 0 ? 0 : -errno;
  }

  int set_mode(int file, unsigned mode) const noexcept override {
    return fchmod(file, mode) == 0 ? 0 : -errno;
  }

  int space(int file, DiskSpace& space) const noexcept override {
    struct statvfs row{};
    if (fstatvfs(file, &row) != 0) return -errno;
    if (row.f_blocks == 0) return 0;  // it keeps no such metadata
    space.free = static_cast<Bytes>(row.f_bfree) * row.f_frsize;
    space.available = static_cast<Bytes>(row.f_bavail) * row.f_frsize;
    return 0;
  }

  int map(int file, Bytes size, void*& address) const noexcept override {
    void* const place =
        mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if (place == MAP_FAILED) return -errno;
    address = place;
    return 0;
  }

  int map_privately(int file, void* address, Bytes size) const noexcept override {
    constexpr int kFlags = MAP_PRIVATE | MAP_FIXED | MAP_NORESERVE;
    if (mmap(address, size, PROT_READ | PROT_WRITE, kFlags, file, 0) != MAP_FAILED) {
      return 0;
    }
    const int error = errno;
    mprotect(address, size, PROT_READ);
    return -error;
  }

  void unmap(void* address, Bytes size) const noexcept override {
    munmap(address, size);
  }

  int flush_pages(void* address, Bytes size) const noexcept override {
    return without_signals([&] { return msync(address, size, MS_SYNC); });
  }

  int flush(int file) const noexcept override {
    return without_signals([&] { return fsync(file); });
  }

  int drop_pages(void* address, Bytes size) const noexcept override {
    return madvise(address, size, MADV_DONTNEED) == 0 ? 0 : -errno;
  }

  // /proc/self/pagemap has a word for each page (proc(5)).
  Bytes resident(const void* address, Bytes size) const noexcept override {
    const auto page = static_cast<Bytes>(sysconf(_SC_PAGESIZE));
    const int map = ::open("/proc/self/pagemap", O_RDONLY | O_CLOEXEC);
    if (map < 0) return 0;
    const Bytes first = reinterpret_cast<std::uintptr_t>(address) / page;
    Bytes pages = 0;
    std::array<std::uint64_t, 4096> words;
    for (Bytes at = 0, end = size / page; at < end;) {
      const Bytes wanted = std::min<Bytes>(words.size(), end - at) * sizeof(words[0]);
      const auto place = static_cast<off_t>((first + at) * sizeof(words[0]));
      const ssize_t got = pread(map, words.data(), wanted, place);
      if (got <= 0) break;
      const auto* const last = words.begin() + got / ssize_t{sizeof(words[0])};
      pages += static_cast<Bytes>(std::count_if(
          words.cbegin(), last, [](std::uint64_t word) { return word & kPresent; }));
      at += static_cast<Bytes>(got) / sizeof(words[0]);
    }
    ::close(map);
    return pages * page;
  }

  int rename(const char* from, const char* to) const noexcept override {
    return ::rename(from, to) == 0 ? 0 : -errno;
  }

  int remove(const char* path) const noexcept override {
    return unlink(path) == 0 ? 0 : -errno;
  }
};

}  // namespace

const FileOperations& host_files() noexcept {
  static const Host host;
  return host;
}

}  // namespace memcfg
