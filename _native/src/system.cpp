#include "memcfg/system.hpp"

#include <fcntl.h>
#include <pthread.h>
#include <sys/mman.h>
#include <sys/resource.h>
#ifdef __linux__
#include <sys/syscall.h>
#endif
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23  // Linux 5.14
#endif
#ifndef MADV_DONTNEED_LOCKED
#define MADV_DONTNEED_LOCKED 24  // Linux 5.18
#endif

namespace memcfg {
namespace {

void* map(Bytes size, int protection, int flags) noexcept {
  void* address =
      mmap(nullptr, size, protection, MAP_PRIVATE | MAP_ANONYMOUS | flags, -1, 0);
  return address == MAP_FAILED ? nullptr : address;
}

constexpr Bytes kStep = Bytes{64} << 20;  // bytes populated at once

// The beginning of a small file of the kernel; empty if it cannot be read.
class Text {
 public:
  explicit Text(const char* path) noexcept {
    const int file = open(path, O_RDONLY | O_CLOEXEC);
    if (file < 0) return;
    const ssize_t length = read(file, text_.data(), text_.size() - 1);
    close(file);
    text_[length > 0 ? static_cast<std::size_t>(length) : 0] = 0;
  }
  const char* data() const noexcept { return text_.data(); }

 private:
  std::array<char, 4096> text_{};
};

// "MemAvailable: <number> kB" in /proc/meminfo (proc(5)).
Bytes machine_available() noexcept {
  const Text text("/proc/meminfo");
  const char* const line = std::strstr(text.data(), "MemAvailable:");
  unsigned long long kib = 0;
  if (line == nullptr || std::sscanf(line, "MemAvailable: %llu", &kib) != 1) {
    return kNoLimit;
  }
  return static_cast<Bytes>(kib) << 10;
}

// Documentation/admin-guide/mm/transhuge.rst of Linux; 0 where it has no such pages.
Bytes huge_size() noexcept {
  const Text text("/sys/kernel/mm/transparent_hugepage/hpage_pmd_size");
  unsigned long long size = 0;
  return std::sscanf(text.data(), "%llu", &size) == 1 ? static_cast<Bytes>(size) : 0;
}

// A file that has one number; kNoLimit if it has none ("max"), or is not there.
Bytes number_in(const char* folder, const char* name) noexcept {
  std::array<char, 4352> path{};
  std::snprintf(path.data(), path.size(), "%s/%s", folder, name);
  unsigned long long number = 0;
  if (std::sscanf(Text(path.data()).data(), "%llu", &number) != 1) return kNoLimit;
  return static_cast<Bytes>(number);
}

Bytes left_of(const char* folder, const char* limit, const char* used) noexcept {
  const Bytes maximum = number_in(folder, limit);
  const Bytes now = number_in(folder, used);
  if (maximum == kNoLimit || now == kNoLimit) return kNoLimit;
  return maximum - std::min(maximum, now);
}

// The control group of this process, or what a container sees as the root (cgroups(7)).
Bytes group_available() noexcept {
  Bytes minimum = std::min(
      left_of("/sys/fs/cgroup", "memory.max", "memory.current"),
      left_of(
          "/sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.usage_in_bytes"));
  const Text groups("/proc/self/cgroup");
  std::array<char, 4096> path{};
  std::array<char, 4224> folder{};
  const char* const second = std::strstr(groups.data(), "0::");
  if (second != nullptr && std::sscanf(second, "0::%4095[^\n]", path.data()) == 1) {
    std::snprintf(folder.data(), folder.size(), "/sys/fs/cgroup%s", path.data());
    minimum = std::min(minimum, left_of(folder.data(), "memory.max", "memory.current"));
  }
  const char* const first = std::strstr(groups.data(), ":memory:");
  if (first != nullptr && std::sscanf(first, ":memory:%4095[^\n]", path.data()) == 1) {
    std::snprintf(folder.data(), folder.size(), "/sys/fs/cgroup/memory%s", path.data());
    minimum = std::min(
        minimum,
        left_of(folder.data(), "memory.limit_in_bytes", "memory.usage_in_bytes"));
  }
  return minimum;
}

Bytes machine_size() noexcept {
  static const Bytes size = static_cast<Bytes>(sysconf(_SC_PHYS_PAGES)) *
                            static_cast<Bytes>(sysconf(_SC_PAGESIZE));
  return size;
}

bool populate_step(std::byte* address, Bytes size) noexcept {
  if (madvise(address, size, MADV_POPULATE_WRITE) == 0) return true;
  if (errno != EINVAL) return false;  // EINVAL: an older system does not know it
  const Bytes page = static_cast<Bytes>(sysconf(_SC_PAGESIZE));
  auto* const bytes = reinterpret_cast<volatile std::byte*>(address);
  for (Bytes at = 0; at < size; at += page) bytes[at] = bytes[at];
  return true;
}

// True: the memory of pages has gone back, and they are zero. Elsewhere than on Linux
// such advice leaves their contents. It refuses memory that the program has locked.
bool drop_pages(void* address, Bytes size) noexcept {
#ifdef __linux__
  return madvise(address, size, MADV_DONTNEED) == 0 ||
         madvise(address, size, MADV_DONTNEED_LOCKED) == 0;
#else
  static_cast<void>(address);
  static_cast<void>(size);
  return false;
#endif
}

class Host final : public System {
 public:
  Bytes page_size() const noexcept override {
    static const Bytes size = static_cast<Bytes>(sysconf(_SC_PAGESIZE));
    return size;
  }

  Bytes memory_size() const noexcept override {
    rlimit addresses{};
    if (getrlimit(RLIMIT_AS, &addresses) != 0) return machine_size();
    return std::min<Bytes>(machine_size(), static_cast<Bytes>(addresses.rlim_cur));
  }

  // Guarded: not MAP_NORESERVE; a commit is then charged to the machine's commit limit,
  // and a machine that keeps one refuses in `commit` instead of killing on first touch.
  // Open: one mapping however its pages come and go. A protection per page would split
  // it, and the system allows some 65,000 mappings a process.
  void* reserve(Bytes size, Access access) const noexcept override {
    if (access == Access::guarded) return map(size, PROT_NONE, 0);
    return map(size, PROT_READ | PROT_WRITE, MAP_NORESERVE);
  }

  bool commit(void* address, Bytes size, Access access) const noexcept override {
    if (access == Access::open) return size <= machine_size();
    if (mprotect(address, size, PROT_READ | PROT_WRITE) == 0) return true;
    mprotect(address, size, PROT_NONE);
    return false;
  }

  // What the program has locked stays resident on an old system.
  void decommit(void* address, Bytes size, Access access) const noexcept override {
    if (!reset_pages(address, size)) std::memset(address, 0, size);
    if (access == Access::guarded) mprotect(address, size, PROT_NONE);
  }

  // MADV_DONTNEED rather than MADV_FREE: the resident size falls at once.
  bool reset_pages(void* address, Bytes size) const noexcept override {
    return drop_pages(address, size);
  }

  // In steps, each checked before: a machine that overcommits does not refuse, it ends
  // the process.
  bool populate(void* address, Bytes size) const noexcept override {
    if (size > available_size()) return false;
    auto* const bytes = static_cast<std::byte*>(address);
    for (Bytes at = 0; at < size; at += kStep) {
      const Bytes step = std::min(kStep, size - at);
      if (step > available_size() || !populate_step(bytes + at, step)) return false;
    }
    return true;
  }

  Bytes huge_page_size() const noexcept override {
    static const Bytes size = huge_size();
    return size;
  }

  bool advise_huge(void* address, Bytes size, bool wanted) const noexcept override {
#ifdef MADV_HUGEPAGE
    return madvise(address, size, wanted ? MADV_HUGEPAGE : MADV_NOHUGEPAGE) == 0;
#else
    static_cast<void>(address);
    static_cast<void>(size);
    return !wanted;
#endif
  }

  void release(void* address, Bytes size) const noexcept override {
    munmap(address, size);
  }

  void* map_metadata(Bytes size) const noexcept override {
    return map(size, PROT_READ | PROT_WRITE, MAP_NORESERVE);
  }

  void unmap_metadata(void* address, Bytes size) const noexcept override {
    munmap(address, size);
  }

  void* reserve_metadata(Bytes size) const noexcept override {
    return map(size, PROT_NONE, 0);
  }

  bool commit_metadata(void* address, Bytes size) const noexcept override {
    return mprotect(address, size, PROT_READ | PROT_WRITE) == 0;
  }

  void reset_metadata(void* address, Bytes size) const noexcept override {
    if (!drop_pages(address, size)) std::memset(address, 0, size);
  }

  void* allocate(Bytes size, Bytes alignment) const noexcept override {
    return std::aligned_alloc(alignment, size);
  }

  void deallocate(void* address, Bytes) const noexcept override { std::free(address); }
};

}  // namespace

const System& host_system() noexcept {
  static const Host host;
  return host;
}

// The second number of /proc/self/statm: resident pages (proc(5)).
Bytes resident_size() noexcept {
  unsigned long long pages = 0;
  const Text text("/proc/self/statm");
  if (std::sscanf(text.data(), "%*u %llu", &pages) != 1) return 0;
  return static_cast<Bytes>(pages) * host_system().page_size();
}

Bytes available_size() noexcept {
  return std::min(machine_available(), group_available());
}

std::int64_t process_id() noexcept {
  return getpid();
}

namespace {

thread_local std::int64_t own_id = 0;  // asking the system each time would be slow

// In the child of a fork the thread has another number.
const int kResetsAtFork = pthread_atfork(nullptr, nullptr, [] { own_id = 0; });

std::int64_t ask_thread_id() noexcept {
#ifdef __linux__
  return syscall(SYS_gettid);
#else
  std::uint64_t id = 0;
  pthread_threadid_np(nullptr, &id);
  return static_cast<std::int64_t>(id);
#endif
}

}  // namespace

std::int64_t thread_id() noexcept {
  if (own_id == 0) own_id = ask_thread_id();
  return own_id;
}

}  // namespace memcfg
