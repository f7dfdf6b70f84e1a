// What the child of a fork lacks: every thread but the one that forked.
#pragma once

#include <cstdint>

namespace memcfg {

// How many forks lie between the process that loaded this library and the calling one.
std::uint64_t fork_count() noexcept;

// The calling thread's number: never that of another thread of this process or of one
// that it was forked from. The thread that forks keeps its number in the child.
std::uint64_t thread_number() noexcept;

// The number of the only thread that this process has from its parent; 0 in a process
// that was not forked.
std::uint64_t forking_thread() noexcept;

// Whether OpenMP's threads stayed behind in the parent, so that a parallel loop would
// wait for them for ever.
bool threads_lost() noexcept;

}  // namespace memcfg
