#include "memcfg/system.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstdio>
#include <cstdlib>

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23  // Linux 5.14
#endif

namespace memcfg {
namespace {

void* map(Bytes size, int protection, int flags) noexcept {
  void* address =
      mmap(nullptr, size, protection, MAP_PRIVATE | MAP_ANONYMOUS | flags, -1, 0);
  return address == MAP_FAILED ? nullptr : address;
}

class Host final : public System {
 public:
  Bytes page_size() const noexcept override {
    static const Bytes size = static_cast<Bytes>(sysconf(_SC_PAGESIZE));
    return size;
  }

  Bytes memory_size() const noexcept override {
    const Bytes machine = static_cast<Bytes>(sysconf(_SC_PHYS_PAGES)) * page_size();
    rlimit addresses{};
    if (getrlimit(RLIMIT_AS, &addresses) != 0) return machine;
    return std::min<Bytes>(machine, static_cast<Bytes>(addresses.rlim_cur));
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
    if (access == Access::open) return true;
    if (mprotect(address, size, PROT_READ | PROT_WRITE) == 0) return true;
    mprotect(address, size, PROT_NONE);
    return false;
  }

  // MADV_DONTNEED rather than MADV_FREE: the resident size falls at once.
  void decommit(void* address, Bytes size, Access access) const noexcept override {
    madvise(address, size, MADV_DONTNEED);
    if (access == Access::guarded) mprotect(address, size, PROT_NONE);
  }

  bool populate(void* address, Bytes size) const noexcept override {
    if (madvise(address, size, MADV_POPULATE_WRITE) == 0) return true;
    if (errno != EINVAL) return false;  // EINVAL: an older system does not know it
    auto* const bytes = static_cast<volatile std::byte*>(address);
    for (Bytes at = 0; at < size; at += page_size()) bytes[at] = bytes[at];
    return true;
  }

  void release(void* address, Bytes size) const noexcept override {
    munmap(address, size);
  }

  void* map_books(Bytes size) const noexcept override {
    return map(size, PROT_READ | PROT_WRITE, MAP_NORESERVE);
  }

  void unmap_books(void* address, Bytes size) const noexcept override {
    munmap(address, size);
  }

  void* reserve_books(Bytes size) const noexcept override {
    return map(size, PROT_NONE, 0);
  }

  bool commit_books(void* address, Bytes size) const noexcept override {
    return mprotect(address, size, PROT_READ | PROT_WRITE) == 0;
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
  const int file = open("/proc/self/statm", O_RDONLY | O_CLOEXEC);
  if (file < 0) return 0;
  char text[128] = {};
  const ssize_t length = read(file, text, sizeof text - 1);
  close(file);
  unsigned long long pages = 0;
  if (length <= 0 || std::sscanf(text, "%*u %llu", &pages) != 1) return 0;
  return static_cast<Bytes>(pages) * host_system().page_size();
}

std::int64_t process_id() noexcept {
  return getpid();
}

}  // namespace memcfg
