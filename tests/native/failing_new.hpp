// `operator new` of the whole program, which can be made to fail in one thread.
// Include it in one source of a program.
#pragma once

#include <cstddef>
#include <cstdlib>
#include <new>

namespace failing_new {

inline thread_local int calls_left = -1;  // below 0: as many as the heap has

// While it lives, this thread's `operator new` succeeds so many times, then fails.
struct After {
  explicit After(int grants) { calls_left = grants; }
  ~After() { calls_left = -1; }
  After(const After&) = delete;
  After& operator=(const After&) = delete;
};

// Out of line, as `give` is: a compiler that sees both believes that they do not match.
[[gnu::noinline]] inline void* take(std::size_t size, std::size_t alignment) {
  if (calls_left == 0) throw std::bad_alloc();
  if (calls_left > 0) --calls_left;
  const std::size_t rounded = (size + alignment - 1) / alignment * alignment;
  void* const address = std::aligned_alloc(alignment, rounded);
  if (address == nullptr) throw std::bad_alloc();
  return address;
}

[[gnu::noinline]] inline void give(void* address) noexcept {
  std::free(address);
}

}  // namespace failing_new

void* operator new(std::size_t size) {
  return failing_new::take(size, alignof(std::max_align_t));
}
void* operator new(std::size_t size, std::align_val_t alignment) {
  return failing_new::take(size, static_cast<std::size_t>(alignment));
}
void* operator new(std::size_t size, const std::nothrow_t&) noexcept try {
  return failing_new::take(size, alignof(std::max_align_t));
} catch (const std::bad_alloc&) {
  return nullptr;
}
void operator delete(void* address) noexcept {
  failing_new::give(address);
}
void operator delete(void* address, std::size_t) noexcept {
  failing_new::give(address);
}
void operator delete(void* address, std::align_val_t) noexcept {
  failing_new::give(address);
}
void operator delete(void* address, std::size_t, std::align_val_t) noexcept {
  failing_new::give(address);
}
