#include "memcfg/lane.hpp"

#include <pthread.h>
#include <signal.h>

#include <array>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <sstream>
#include <stdexcept>
#include <thread>

#include "memcfg/forks.hpp"

namespace memcfg {
namespace {

// No signal is handled in a thread that is started here: the language above expects
// them elsewhere.
class SignalsBlocked : private NoCopy {
 public:
  SignalsBlocked() noexcept {
    sigset_t all;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before_);
  }
  ~SignalsBlocked() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }

 private:
  sigset_t before_;
};

using Clock = std::chrono::steady_clock;

// To wake a thread whose processor has halted takes about as long in a virtual machine,
// and so do copies of a MiB.
constexpr std::chrono::microseconds kLook{100};

// Seconds, some 30 years; what clocks count in is an integer of nanoseconds.
constexpr double kEndless = 1e9;

lane_stalled stalled(double timeout) {
  std::ostringstream told;
  told << "a copy or collective has not got on for " << timeout
       << " s: what it waits for may hang";
  return lane_stalled(told.str());
}

// How many processors one of two threads may run on; 0 if nobody tells.
int processors_of(pthread_t one, pthread_t other) noexcept {
  cpu_set_t mine, theirs;
  if (pthread_getaffinity_np(one, sizeof mine, &mine) != 0) return 0;
  if (pthread_getaffinity_np(other, sizeof theirs, &theirs) != 0) return 0;
  CPU_OR(&mine, &mine, &theirs);
  return CPU_COUNT(&mine);
}

}  // namespace

// Invariant: done <= submitted <= done + kCapacity. They change with the lock
// held; who looks before it sleeps reads `done` without it.
struct Lane::Worker {
  explicit Worker(std::uint64_t number) : submitted(number), done(number) {
    const SignalsBlocked blocked;
    thread = std::thread([this] { work(); });
  }

  void work() {
    mine = this;
    std::unique_lock<std::mutex> lock(mutex);
    for (;;) {
      changed.wait(lock, [this] { return done < submitted || ending; });
      if (done == submitted) return;
      const Task task = tasks[done % kCapacity];
      ++heard;
      lock.unlock();
      task.run(task.context, task.index);
      lock.lock();
      ++done;
      changed.notify_all();
    }
  }

  // Pre: the lock is held. Waits until it is so; false: the lane has stalled. A thread
  // of its own has to be heard of in either half of the timeout, so that a process that
  // was stopped as a whole is not taken for a lane that was.
  template <typename Ready>
  bool wait(std::unique_lock<std::mutex>& lock, double timeout, Ready ready) {
    if (timeout >= kEndless) {
      changed.wait(lock, ready);
      return true;
    }
    const std::chrono::duration<double> half(timeout / 2);
    std::uint64_t seen = heard + done;
    if (seen == stalled && !ready()) return false;  // nothing was heard since
    for (int halves = 0; halves < 2; ++halves) {
      if (changed.wait_for(lock, half, ready)) return true;
      const std::uint64_t now = heard + done;
      if (now != seen) halves = -1;
      seen = now;
    }
    stalled = seen;
    return false;
  }

  static thread_local Worker* mine;  // whose thread this is

  std::mutex mutex;
  std::condition_variable changed;
  std::array<Task, kCapacity> tasks;
  std::uint64_t submitted;
  std::atomic<std::uint64_t> done;
  std::atomic<std::uint64_t> heard{0};        // how often a task began, or got on
  std::uint64_t stalled = ~std::uint64_t{0};  // what was heard then; with the lock held
  bool ending = false;
  std::thread thread;
};

thread_local Lane::Worker* Lane::Worker::mine = nullptr;

Lane::Lane(double bytes_per_second, double timeout)
    : bytes_per_second_(bytes_per_second),
      timeout_(timeout),
      worker_(new Worker(0)),
      forks_(fork_count()) {}

Lane::~Lane() {
  if (forks_ != fork_count()) return;  // the thread, and the lock it may hold, are not
  {
    const std::lock_guard<std::mutex> lock(worker_->mutex);
    worker_->ending = true;
    worker_->changed.notify_all();
  }
  worker_->thread.join();
  delete worker_;
}

// The worker of the parent is read as it was when the process was forked: nobody works
// on it here.
void Lane::look_for_fork() {
  if (forks_ == fork_count()) return;
  static std::mutex mutex;
  const ForkLock lock(mutex);
  if (forks_ == fork_count()) return;
  const std::uint64_t submitted = worker_->submitted;
  lost_begin_ = worker_->done;
  lost_end_ = submitted;
  worker_ = new Worker(submitted);
  forks_ = fork_count();
}

std::uint64_t Lane::submit(const Task& task) {
  look_for_fork();
  std::unique_lock<std::mutex> lock(worker_->mutex);
  Worker& worker = *worker_;
  const auto has_room = [&worker] {
    return worker.submitted - worker.done < kCapacity;
  };
  if (!worker.wait(lock, timeout_, has_room)) throw stalled(timeout_);
  worker.tasks[worker.submitted % kCapacity] = task;
  ++worker.submitted;
  worker.changed.notify_all();
  return worker.submitted;
}

void Lane::wait(std::uint64_t number) {
  look_for_fork();
  if (number > lost_begin_ && number <= lost_end_) {
    throw std::runtime_error("the process was forked while a copy was on its way");
  }
  if (!settle(number)) throw stalled(timeout_);
}

bool Lane::settle(std::uint64_t number) noexcept {
  if (forks_ != fork_count()) return true;
  if (number > lost_begin_ && number <= lost_end_) return true;
  Worker& worker = *worker_;
  const auto ready = [&worker, number] { return worker.done >= number; };
  if (looks_) {
    const Clock::time_point end = Clock::now() + kLook;
    while (!ready() && Clock::now() < end) std::this_thread::yield();
  }
  std::unique_lock<std::mutex> lock(worker.mutex);
  return worker.wait(lock, timeout_, ready);
}

bool Lane::ended(std::uint64_t number) const noexcept {
  if (forks_ != fork_count()) return true;
  if (number > lost_begin_ && number <= lost_end_) return true;
  return worker_->done >= number;
}

void Lane::get_on() noexcept {
  if (Worker::mine != nullptr) ++Worker::mine->heard;
}

void Lane::expect(int threads) noexcept {
  if (forks_ != fork_count()) return;
  looks_ = processors_of(pthread_self(), worker_->thread.native_handle()) > threads;
}

}  // namespace memcfg
