// `operator new` that the child of a fork can use while its parent has threads.
// Include it in one source of a program.
#pragma once

// AddressSanitizer's own heap is not made for that (one of its locks may be held over
// the fork); the C library's is, under the name that the sanitizer leaves alone.
#if defined(__SANITIZE_ADDRESS__) && defined(__GLIBC__)

#include <cstddef>
#include <cstdint>
#include <new>

extern "C" void* __libc_malloc(std::size_t size);
extern "C" void __libc_free(void* address);

namespace fork_safe_new {

// In front of each block stands where it was really taken.
[[gnu::noinline]] inline void* take(std::size_t size, std::size_t alignment) {
  auto* const taken =
      static_cast<std::byte*>(__libc_malloc(size + alignment + sizeof(void*)));
  if (taken == nullptr) throw std::bad_alloc();
  const auto least = reinterpret_cast<std::uintptr_t>(taken) + sizeof(void*);
  auto* const place =
      reinterpret_cast<void**>((least + alignment - 1) / alignment * alignment);
  place[-1] = taken;
  return place;
}

[[gnu::noinline]] inline void give(void* address) noexcept {
  if (address != nullptr) __libc_free(static_cast<void**>(address)[-1]);
}

}  // namespace fork_safe_new

#endif

// ThreadSanitizer's own heap neither. It has to stay (it knows which thread may touch
// what), so a fork waits until nobody is inside: by counting out of the sanitizer's
// sight, for a lock that it saw would order the threads and hide their races.
#if defined(__SANITIZE_THREAD__)

#include <pthread.h>
#include <sched.h>

#include <cstddef>
#include <cstdlib>
#include <new>

namespace fork_safe_new {

inline int inside = 0;
inline bool forking = false;

struct Inside {
  [[gnu::no_sanitize_thread]] Inside() {
    while (__atomic_add_fetch(&inside, 1, __ATOMIC_SEQ_CST),
           __atomic_load_n(&forking, __ATOMIC_SEQ_CST)) {
      __atomic_sub_fetch(&inside, 1, __ATOMIC_SEQ_CST);
      sched_yield();
    }
  }
  [[gnu::no_sanitize_thread]] ~Inside() {
    __atomic_sub_fetch(&inside, 1, __ATOMIC_SEQ_CST);
  }
};

[[gnu::no_sanitize_thread]] inline void close() {
  __atomic_store_n(&forking, true, __ATOMIC_SEQ_CST);
  while (__atomic_load_n(&inside, __ATOMIC_SEQ_CST) != 0) sched_yield();
}

[[gnu::no_sanitize_thread]] inline void open() {
  __atomic_store_n(&forking, false, __ATOMIC_SEQ_CST);
}

[[gnu::no_sanitize_thread]] inline void reopen() {
  __atomic_store_n(&inside, 0, __ATOMIC_SEQ_CST);
  open();
}

// First of all that watch forks, so the last to be called before one: by then the
// locks of the library let one thread fork at a time.
[[gnu::constructor(101)]] inline void watch_forks() {
  pthread_atfork(close, open, reopen);
}

[[gnu::noinline]] inline void* take(std::size_t size, std::size_t alignment) {
  const Inside here;
  void* taken = nullptr;
  if (posix_memalign(&taken, alignment, size) != 0) throw std::bad_alloc();
  return taken;
}

[[gnu::noinline]] inline void give(void* address) noexcept {
  const Inside here;
  std::free(address);
}

}  // namespace fork_safe_new

#endif

#if (defined(__SANITIZE_ADDRESS__) && defined(__GLIBC__)) || \
    defined(__SANITIZE_THREAD__)

void* operator new(std::size_t size) {
  return fork_safe_new::take(size, alignof(max_align_t));
}
void* operator new(std::size_t size, std::align_val_t alignment) {
  return fork_safe_new::take(size, static_cast<std::size_t>(alignment));
}
void* operator new(std::size_t size, const std::nothrow_t&) noexcept try {
  return fork_safe_new::take(size, alignof(max_align_t));
} catch (const std::bad_alloc&) {
  return nullptr;
}
void operator delete(void* address) noexcept {
  fork_safe_new::give(address);
}
void operator delete(void* address, std::size_t) noexcept {
  fork_safe_new::give(address);
}
void operator delete(void* address, std::align_val_t) noexcept {
  fork_safe_new::give(address);
}
void operator delete(void* address, std::size_t, std::align_val_t) noexcept {
  fork_safe_new::give(address);
}

#endif
