// A copy lane: a queue of a device that a thread of its own works off, in order.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <stdexcept>

namespace memcfg {

// A lane's task does not get on. It may still end, and touches until then what it was
// given.
struct lane_stalled : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// Tasks run one at a time, in the order in which they were submitted. Any thread may
// submit and wait. Neither takes memory.
//
// A bandwidth is what whoever copies keeps to; the lane itself knows no bytes.
//
// The child of a fork has no such thread: it starts one when it first submits. What had
// been submitted and not done before is lost there, and waiting for it an error.
//
// A lane with a timeout has stalled when nothing is heard of its task for so long: it
// has neither ended nor said that it gets on. Whoever waits is told; the task goes on.
class Lane {
 public:
  struct Task {
    void (*run)(void* context, std::size_t index) noexcept;
    void* context;  // not owned
    std::size_t index;
  };
  static constexpr std::size_t kCapacity = 256;  // tasks that wait at most

  static constexpr double kNever = std::numeric_limits<double>::infinity();

  // Bytes a second, 0: as fast as it can; seconds.
  explicit Lane(double bytes_per_second = 0, double timeout = kNever);
  ~Lane();  // does what was submitted

  double bytes_per_second() const noexcept { return bytes_per_second_; }

  // Returns the task's number: 1, 2, ... Waits while the queue is full. Throws
  // lane_stalled.
  std::uint64_t submit(const Task& task);
  // Waits until the task of that number, and so all before it, has run. Throws
  // std::runtime_error if it was lost at a fork, and lane_stalled.
  void wait(std::uint64_t number);
  // The same without errors: nobody works on it any more, or, where it returns false,
  // the lane has stalled.
  bool settle(std::uint64_t number) noexcept;
  // Whether nobody works on it any more. Does not wait.
  bool ended(std::uint64_t number) const noexcept;
  // For tasks of any lane: the one that this thread runs, if any, gets on.
  static void get_on() noexcept;
  // So many threads, the caller one of them, compute until this is called again. If
  // that leaves the lane a processor, whoever waits looks for a while before it sleeps;
  // if not, that would only keep the copy from it.
  void expect(int threads) noexcept;

 private:
  struct Worker;

  void look_for_fork();

  const double bytes_per_second_, timeout_;
  Worker* worker_;  // of this process; one that a parent had is left to it
  std::uint64_t lost_begin_ = 0, lost_end_ = 0;  // numbers that were lost
  std::atomic<std::uint64_t> forks_;             // what these were made after
  std::atomic<bool> looks_{false};
};

}  // namespace memcfg
