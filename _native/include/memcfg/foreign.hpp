// Calls of functions in another language.
#pragma once

#include <unistd.h>

#include <cstddef>
#include <thread>

#if defined(__GLIBCXX__)
#include <cxxabi.h>
#endif

namespace memcfg {

// What the function returns. An interpreter that ends may end the calling thread inside
// it (pthread_exit), which no handler of C++ on the way may stop; such a thread waits
// for the end of the process instead. Pre: no lock is held.
template <typename Function, typename... Arguments>
int call_foreign(Function function, Arguments... arguments) {
#if defined(__GLIBCXX__)
  try {
    return function(arguments...);
  } catch (const abi::__forced_unwind&) {
    for (;;) pause();
  }
#else
  return function(arguments...);
#endif
}

// Calls a function in a thread of its own, and waits for its end. What the language
// above does only in the thread that calls, such as handlers of signals, waits too.
inline void call_apart(void (*function)(void*), void* context) {
  std::thread([function, context] { function(context); }).join();
}

}  // namespace memcfg
