// Child processes in tests: their failures come back.
#pragma once

#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <exception>

#include "check.hpp"

namespace children {

constexpr unsigned kTimeout = 60;  // seconds; far more than a child needs

// Whether a child process does its work without a failed check, a crash or a wait for
// something that never comes. Prints how a child ended that does not.
template <typename Work>
bool child_does(Work work) {
  std::fflush(stdout);
  const pid_t child = fork();
  CHECK(child >= 0);
  if (child == 0) {
    alarm(kTimeout);
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
  if (WIFEXITED(status) && WEXITSTATUS(status) == 0) return true;
  if (WIFEXITED(status)) {
    std::printf("child %d exited with code %d\n", child, WEXITSTATUS(status));
  } else if (WTERMSIG(status) == SIGALRM) {
    std::printf("child %d was still waiting after %u s\n", child, kTimeout);
  } else {
    std::printf("child %d was ended by signal %d\n", child, WTERMSIG(status));
  }
  std::fflush(stdout);
  return false;
}

}  // namespace children
