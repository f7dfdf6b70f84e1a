#include "memcfg/system.hpp"

#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>

namespace memcfg {
namespace {

class Host final : public System {
 public:
  Bytes page_size() const noexcept override {
    return static_cast<Bytes>(sysconf(_SC_PAGESIZE));
  }

  Bytes memory_size() const noexcept override {
    const Bytes machine = static_cast<Bytes>(sysconf(_SC_PHYS_PAGES)) * page_size();
    rlimit addresses{};
    if (getrlimit(RLIMIT_AS, &addresses) != 0) return machine;
    return std::min<Bytes>(machine, static_cast<Bytes>(addresses.rlim_cur));
  }

  // Not MAP_NORESERVE: a commit is then charged to the machine's commit limit, and a
  // machine that keeps one refuses in `commit` instead of killing on first touch.
  void* reserve(Bytes size) const noexcept override {
    void* address = mmap(nullptr, size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    return address == MAP_FAILED ? nullptr : address;
  }

  bool commit(void* address, Bytes size) const noexcept override {
    if (mprotect(address, size, PROT_READ | PROT_WRITE) == 0) return true;
    mprotect(address, size, PROT_NONE);
    return false;
  }

  void decommit(void* address, Bytes size) const noexcept override {
    madvise(address, size, MADV_DONTNEED);
    mprotect(address, size, PROT_NONE);
  }

  void release(void* address, Bytes size) const noexcept override {
    munmap(address, size);
  }

  void* allocate(Bytes size) const noexcept override {
    return std::aligned_alloc(kAlignment, size);
  }

  void deallocate(void* address, Bytes) const noexcept override { std::free(address); }
};

}  // namespace

const System& host_system() noexcept {
  static const Host host;
  return host;
}

std::int64_t process_id() noexcept {
  return getpid();
}

}  // namespace memcfg
