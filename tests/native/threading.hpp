// Threads in tests: failures come back, and all can wait for one another.
#pragma once

#include <atomic>
#include <condition_variable>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "check.hpp"

namespace threading {

// Threads whose failed checks are those of the test.
class Threads {
 public:
  ~Threads() { join(); }

  template <typename Work>
  void start(Work work) {
    ++working_;
    threads_.emplace_back([this, work] {
      try {
        work();
      } catch (const std::exception& error) {
        const std::lock_guard<std::mutex> lock(mutex_);
        if (failure_.empty()) failure_ = error.what();
      }
      --working_;
    });
  }
  bool at_work() const { return working_ > 0; }
  void finish() {
    join();
    if (!failure_.empty()) throw check::Failed(failure_);
  }

 private:
  void join() {
    for (std::thread& thread : threads_) thread.join();
    threads_.clear();
  }

  std::vector<std::thread> threads_;
  std::atomic<int> working_{0};
  std::mutex mutex_;
  std::string failure_;
};

// Runs a piece of work in a thread of its own, which ends.
template <typename Work>
void in_a_thread(Work work) {
  Threads threads;
  threads.start(work);
  threads.finish();
}

// A point that so many threads pass together.
class Meeting {
 public:
  explicit Meeting(int members) : members_(members) {}
  void arrive() {
    std::unique_lock<std::mutex> lock(mutex_);
    const int turn = turn_;
    if (++here_ == members_) {
      here_ = 0;
      ++turn_;
      all_.notify_all();
    }
    all_.wait(lock, [&] { return turn_ != turn; });
  }

 private:
  const int members_;
  int here_ = 0;
  int turn_ = 0;
  std::mutex mutex_;
  std::condition_variable all_;
};

}  // namespace threading
