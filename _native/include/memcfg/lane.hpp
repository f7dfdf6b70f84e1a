// A copy lane: a queue of a device that a thread of its own works off, in order.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

namespace memcfg {

// Tasks run one at a time, in the order in which they were submitted. Any thread may
// submit and wait. Neither takes memory.
//
// A bandwidth is what whoever copies keeps to; the lane itself knows no bytes.
//
// The child of a fork has no such thread: it starts one when it first submits. What had
// been submitted and not done before is lost there, and waiting for it an error.
class Lane {
 public:
  struct Task {
    void (*run)(void* context, std::size_t index) noexcept;
    void* context;  // not owned
    std::size_t index;
  };
  static constexpr std::size_t kCapacity = 256;  // tasks that wait at most

  explicit Lane(double bytes_per_second = 0);  // 0: as fast as it can
  ~Lane();                                     // does what was submitted

  double bytes_per_second() const noexcept { return bytes_per_second_; }

  // Returns the task's number: 1, 2, ... Waits while the queue is full.
  std::uint64_t submit(const Task& task);
  // Waits until the task of that number, and so all before it, has run. Throws
  // std::runtime_error if it was lost at a fork.
  void wait(std::uint64_t number);
  // The same without the error: nobody works on it any more.
  void settle(std::uint64_t number) noexcept;
  // So many threads, the caller one of them, compute until this is called again. If
  // that leaves the lane a processor, whoever waits looks for a while before it sleeps;
  // if not, that would only keep the copy from it.
  void expect(int threads) noexcept;

 private:
  struct Worker;

  void look_for_fork();

  const double bytes_per_second_;
  Worker* worker_;  // of this process; one that a parent had is left to it
  std::uint64_t lost_begin_ = 0, lost_end_ = 0;  // numbers that were lost
  std::atomic<std::uint64_t> forks_;             // what these were made after
  std::atomic<bool> looks_{false};
};

}  // namespace memcfg
