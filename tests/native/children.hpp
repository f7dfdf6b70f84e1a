// Child processes in tests: their failures come back.
#pragma once

#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <exception>

#include "check.hpp"

namespace children {

// Whether a child process does its work without a failed check, a crash or a wait for
// something that never comes.
template <typename Work>
bool child_does(Work work) {
  std::fflush(stdout);
  const pid_t child = fork();
  CHECK(child >= 0);
  if (child == 0) {
    alarm(60);  // seconds; far more than it needs
    int failed = 0;
    try {
      work();
    } catch (const std::exception& error) {
      std::printf("in the child: %s\n", error.what());
      std::fflush(stdout);
      failed = 1;
    }
    _exit(failed);
  }
  int status = 0;
  CHECK(waitpid(child, &status, 0) == child);
  return WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

}  // namespace children
