// How many OpenMP threads a kernel may use. Header-only: what it sees depends on
// whether the including file is compiled with OpenMP.
#pragma once

#include <algorithm>

#include "memcfg/forks.hpp"

#ifdef _OPENMP
#include <omp.h>
#endif

namespace memcfg {

#ifdef _OPENMP
inline constexpr bool kHasOpenMp = true;
inline int max_threads() noexcept {
  return omp_get_max_threads();
}
inline void set_max_threads(int count) noexcept {
  omp_set_num_threads(count);
}
#else
inline constexpr bool kHasOpenMp = false;
inline int max_threads() noexcept {
  return 1;
}
inline void set_max_threads(int) noexcept {}
#endif

// So many, or as many as there are; 0 stays 0.
inline int at_most(int count) noexcept {
  return std::min(count, max_threads());
}

// Sets the calling thread's count for a scope. OpenMP keeps the count per thread, so
// a count set once by one thread would not reach the others. One, where OpenMP's
// threads stayed behind at a fork.
class ThreadCount : private NoCopy {
 public:
  explicit ThreadCount(int count) noexcept : before_(max_threads()) {  // 0: leave it
    if (threads_lost()) count = 1;
    if (count > 0) set_max_threads(count);
  }
  ~ThreadCount() { set_max_threads(before_); }

 private:
  int before_;
};

}  // namespace memcfg
