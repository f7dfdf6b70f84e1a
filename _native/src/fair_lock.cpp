#include "memcfg/fair_lock.hpp"

#include <algorithm>
#include <stdexcept>
#include <utility>

#include "memcfg/forks.hpp"

namespace memcfg {
namespace {

bool remove(std::deque<WaiterPointer>& queue, const WaiterPointer& waiter) {
  const auto found = std::find(queue.begin(), queue.end(), waiter);
  if (found == queue.end()) return false;
  queue.erase(found);
  return true;
}

}  // namespace

void Waiter::notify() noexcept {
  const std::lock_guard<std::mutex> lock(mutex_);
  notified_ = true;
  changed_.notify_one();
}

void Waiter::wait(std::chrono::milliseconds time) {
  std::unique_lock<std::mutex> lock(mutex_);
  changed_.wait_for(lock, time, [this] { return notified_; });
}

// Those in the queue stayed in the parent. The thread that forked still has what it
// had.
void FairLock::look_for_fork() {
  if (forks_ == fork_count()) {
    if (!lost_) return;
  } else {
    forks_ = fork_count();
    queue_.clear();
    lost_ = lost_ || (owner_ != 0 && owner_ != forking_thread());
  }
  if (lost_) {
    throw std::runtime_error(
        name_ +
        ": another thread was using it when this process was forked, so its values may "
        "be half written here. Make a new one in the child, or fork while it is idle");
  }
}

bool FairLock::take(std::uint64_t thread) {
  if (owner_ != thread && (owner_ != 0 || !queue_.empty())) return false;
  owner_ = thread;
  ++depth_;
  return true;
}

WaiterPointer FairLock::enter() {
  const std::uint64_t thread = thread_number();
  {
    const ForkLock lock(mutex_);
    look_for_fork();
    if (take(thread)) return nullptr;
  }
  WaiterPointer waiter = std::make_shared<Waiter>(thread);
  const ForkLock lock(mutex_);
  look_for_fork();
  if (take(thread)) return nullptr;
  queue_.push_back(waiter);
  return waiter;
}

bool FairLock::try_enter() {
  const ForkLock lock(mutex_);
  look_for_fork();
  return take(thread_number());
}

// A thread may wait with several tickets, since what interrupts its wait may enter too:
// with the first that is called it has the lock for all of them.
bool FairLock::wait(const WaiterPointer& waiter, std::chrono::milliseconds time) {
  waiter->wait(time);
  const ForkLock lock(mutex_);
  look_for_fork();
  if (waiter->granted_) return true;
  if (owner_ != waiter->thread_) return false;
  remove(queue_, waiter);
  ++depth_;
  return true;
}

void FairLock::cancel(const WaiterPointer& waiter) {
  WaiterPointer next;
  {
    const ForkLock lock(mutex_);
    if (waiter->granted_) {
      next = hand_over();
    } else {
      remove(queue_, waiter);
    }
  }
  if (next != nullptr) next->notify();
}

WaiterPointer FairLock::hand_over() {
  if (--depth_ > 0) return nullptr;
  owner_ = 0;
  if (queue_.empty()) return nullptr;
  WaiterPointer next = std::move(queue_.front());
  queue_.pop_front();
  next->granted_ = true;
  owner_ = next->thread_;
  depth_ = 1;
  return next;
}

bool FairLock::leave() {
  WaiterPointer next;
  {
    const ForkLock lock(mutex_);
    if (owner_ != thread_number()) return false;  // e.g. its thread stayed in a parent
    if (forks_ != fork_count()) queue_.clear();
    next = hand_over();
  }
  if (next != nullptr) next->notify();
  return true;
}

bool FairLock::elsewhere() {
  const ForkLock lock(mutex_);
  look_for_fork();
  return owner_ != 0 && owner_ != thread_number();
}

std::size_t FairLock::waiting() {
  const ForkLock lock(mutex_);
  look_for_fork();
  return queue_.size();
}

// Those inside and those in the queue stayed in the parent.
void Semaphore::look_for_fork() {
  if (forks_ == fork_count()) return;
  forks_ = fork_count();
  inside_ = 0;
  queue_.clear();
}

WaiterPointer Semaphore::enter() {
  WaiterPointer waiter = std::make_shared<Waiter>(thread_number());
  const ForkLock lock(mutex_);
  look_for_fork();
  if (available() && queue_.empty()) {
    ++inside_;
    return nullptr;
  }
  queue_.push_back(waiter);
  return waiter;
}

bool Semaphore::wait(const WaiterPointer& waiter, std::chrono::milliseconds time) {
  waiter->wait(time);
  const ForkLock lock(mutex_);
  return waiter->granted_;
}

void Semaphore::cancel(const WaiterPointer& waiter) {
  {
    const ForkLock lock(mutex_);
    if (remove(queue_, waiter)) return;
  }
  leave();
}

void Semaphore::leave() {
  std::deque<WaiterPointer> called;
  {
    const ForkLock lock(mutex_);
    look_for_fork();
    if (inside_ > 0) --inside_;  // less in the child of a fork amid a program
    while (!queue_.empty() && available()) {
      ++inside_;
      queue_.front()->granted_ = true;
      called.push_back(std::move(queue_.front()));
      queue_.pop_front();
    }
  }
  for (const WaiterPointer& waiter : called) waiter->notify();
}

void Semaphore::set_bound(std::size_t bound) {
  {
    const ForkLock lock(mutex_);
    look_for_fork();
    bound_ = bound;
    ++inside_;
  }
  leave();  // lets those in that may be now
}

}  // namespace memcfg
