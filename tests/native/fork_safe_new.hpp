// `operator new`, and memory for exceptions, that the child of a fork can use while its
// parent has threads. Include it in one source of a program.
#pragma once

// A thread may hold a lock of AddressSanitizer's allocator at the fork, and the child
// then waits for it forever. The C library's allocator is safe to use after a fork; the
// sanitizer does not intercept it under this name.
#if defined(__SANITIZE_ADDRESS__) && defined(__GLIBC__)

#include <cstddef>
#include <cstdint>
#include <new>

extern "C" void* __libc_malloc(std::size_t size);
extern "C" void __libc_free(void* address);

namespace fork_safe_new {

// In front of each block stands where it was really taken.
[[gnu::noinline]] inline void* try_take(std::size_t size,
                                        std::size_t alignment) noexcept {
  auto* const taken =
      static_cast<std::byte*>(__libc_malloc(size + alignment + sizeof(void*)));
  if (taken == nullptr) return nullptr;
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

// ThreadSanitizer's allocator has the same locks. It has to stay (it knows which thread
// may touch what), so a fork waits until no thread is inside. The count is hidden from
// the sanitizer: a lock that it saw would order the threads and hide their races.
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

[[gnu::noinline]] inline void* try_take(std::size_t size,
                                        std::size_t alignment) noexcept {
  const Inside here;
  void* taken = nullptr;
  return posix_memalign(&taken, alignment, size) == 0 ? taken : nullptr;
}

[[gnu::noinline]] inline void give(void* address) noexcept {
  const Inside here;
  std::free(address);
}

}  // namespace fork_safe_new

#endif

#if (defined(__SANITIZE_ADDRESS__) && defined(__GLIBC__)) || \
    defined(__SANITIZE_THREAD__)

#include <cstring>
#include <exception>

namespace fork_safe_new {

inline void* take(std::size_t size, std::size_t alignment = alignof(max_align_t)) {
  void* const taken = try_take(size, alignment);
  if (taken == nullptr) throw std::bad_alloc();
  return taken;
}

// The runtime keeps a header in front of an exception: 128 bytes on x86-64.
constexpr std::size_t kExceptionHeader = 256;

}  // namespace fork_safe_new

void* operator new(std::size_t size) {
  return fork_safe_new::take(size);
}
void* operator new(std::size_t size, std::align_val_t alignment) {
  return fork_safe_new::take(size, static_cast<std::size_t>(alignment));
}
void* operator new(std::size_t size, const std::nothrow_t&) noexcept {
  return fork_safe_new::try_take(size, alignof(max_align_t));
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

// The C++ runtime takes the memory of exceptions from `malloc`, not `operator new`.
extern "C" void* __cxa_allocate_exception(std::size_t size) noexcept {
  using fork_safe_new::kExceptionHeader;
  void* const taken =
      fork_safe_new::try_take(kExceptionHeader + size, alignof(max_align_t));
  if (taken == nullptr) std::terminate();
  std::memset(taken, 0, kExceptionHeader);
  return static_cast<std::byte*>(taken) + kExceptionHeader;
}
extern "C" void __cxa_free_exception(void* exception) noexcept {
  fork_safe_new::give(static_cast<std::byte*>(exception) -
                      fork_safe_new::kExceptionHeader);
}

#endif
