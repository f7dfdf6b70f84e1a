// The C library's malloc, or whichever one LD_PRELOAD puts in its place. It knows no
// limit; its blocks are aligned to 16 bytes.
#include <dlfcn.h>
#include <malloc.h>

#include "workloads.hpp"

namespace {

// What each family calls "give free memory back"; the one that is loaded has it.
bool give_back() {
  void* const self = dlopen(nullptr, RTLD_NOW);
  if (void* const collect = dlsym(self, "mi_collect")) {
    reinterpret_cast<void (*)(bool)>(collect)(true);
    return true;
  }
  if (void* const control = dlsym(self, "mallctl")) {
    using Control = int (*)(const char*, void*, std::size_t*, void*, std::size_t);
    const auto call = reinterpret_cast<Control>(control);
    call("thread.tcache.flush", nullptr, nullptr, nullptr, 0);
    return call("arena.4096.purge", nullptr, nullptr, nullptr, 0) == 0;  // every arena
  }
  if (void* const release = dlsym(self, "MallocExtension_ReleaseFreeMemory")) {
    reinterpret_cast<void (*)()>(release)();
    return true;
  }
  malloc_trim(0);
  return true;
}

struct Malloc {
  static constexpr bool kLimited = false;
  explicit Malloc(const bench::Terms&) {}
  void* allocate(bench::Bytes size) { return std::malloc(size); }
  void deallocate(void* block, bench::Bytes) { std::free(block); }
  bench::Held held() const { return {}; }
  bool trim() { return give_back(); }
};

}  // namespace

int main(int count, char** words) {
  return bench::run<Malloc>(bench::parse(count, words));
}
