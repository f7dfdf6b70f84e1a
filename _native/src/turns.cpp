#include "memcfg/turns.hpp"

#include <algorithm>
#include <stdexcept>
#include <utility>

#include "memcfg/fork_lock.hpp"
#include "memcfg/forks.hpp"

namespace memcfg {
namespace {

bool remove(std::deque<TicketPointer>& queue, const TicketPointer& ticket) {
  const auto found = std::find(queue.begin(), queue.end(), ticket);
  if (found == queue.end()) return false;
  queue.erase(found);
  return true;
}

}  // namespace

void Ticket::call() noexcept {
  const std::lock_guard<std::mutex> lock(mutex_);
  called_ = true;
  changed_.notify_one();
}

void Ticket::wait(std::chrono::milliseconds time) {
  std::unique_lock<std::mutex> lock(mutex_);
  changed_.wait_for(lock, time, [this] { return called_; });
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
        "be half written here. Make it anew in the child, or fork while it is idle");
  }
}

bool FairLock::take(std::uint64_t thread) {
  if (owner_ != thread && (owner_ != 0 || !queue_.empty())) return false;
  owner_ = thread;
  ++depth_;
  return true;
}

TicketPointer FairLock::enter() {
  const std::uint64_t thread = thread_number();
  {
    const ForkLock lock(mutex_);
    look_for_fork();
    if (take(thread)) return nullptr;
  }
  TicketPointer ticket = std::make_shared<Ticket>(thread);
  const ForkLock lock(mutex_);
  look_for_fork();
  if (take(thread)) return nullptr;
  queue_.push_back(ticket);
  return ticket;
}

bool FairLock::try_enter() {
  const ForkLock lock(mutex_);
  look_for_fork();
  return take(thread_number());
}

// A thread may wait with several tickets, since what interrupts its wait may enter too:
// with the first that is called it has the lock for all of them.
bool FairLock::wait(const TicketPointer& ticket, std::chrono::milliseconds time) {
  ticket->wait(time);
  const ForkLock lock(mutex_);
  look_for_fork();
  if (ticket->granted_) return true;
  if (owner_ != ticket->thread_) return false;
  remove(queue_, ticket);
  ++depth_;
  return true;
}

void FairLock::cancel(const TicketPointer& ticket) {
  TicketPointer next;
  {
    const ForkLock lock(mutex_);
    if (ticket->granted_) {
      next = hand_over();
    } else {
      remove(queue_, ticket);
    }
  }
  if (next != nullptr) next->call();
}

TicketPointer FairLock::hand_over() {
  if (--depth_ > 0) return nullptr;
  owner_ = 0;
  if (queue_.empty()) return nullptr;
  TicketPointer next = std::move(queue_.front());
  queue_.pop_front();
  next->granted_ = true;
  owner_ = next->thread_;
  depth_ = 1;
  return next;
}

void FairLock::leave() {
  TicketPointer next;
  {
    const ForkLock lock(mutex_);
    if (owner_ != thread_number()) return;  // lost: its thread stayed in the parent
    if (forks_ != fork_count()) queue_.clear();
    next = hand_over();
  }
  if (next != nullptr) next->call();
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
void Slots::look_for_fork() {
  if (forks_ == fork_count()) return;
  forks_ = fork_count();
  inside_ = 0;
  queue_.clear();
}

TicketPointer Slots::enter() {
  TicketPointer ticket = std::make_shared<Ticket>(thread_number());
  const ForkLock lock(mutex_);
  look_for_fork();
  if (has_room() && queue_.empty()) {
    ++inside_;
    return nullptr;
  }
  queue_.push_back(ticket);
  return ticket;
}

bool Slots::wait(const TicketPointer& ticket, std::chrono::milliseconds time) {
  ticket->wait(time);
  const ForkLock lock(mutex_);
  return ticket->granted_;
}

void Slots::cancel(const TicketPointer& ticket) {
  {
    const ForkLock lock(mutex_);
    if (remove(queue_, ticket)) return;
  }
  leave();
}

void Slots::leave() {
  std::deque<TicketPointer> called;
  {
    const ForkLock lock(mutex_);
    look_for_fork();
    if (inside_ > 0) --inside_;  // less in the child of a fork amid a program
    while (!queue_.empty() && has_room()) {
      ++inside_;
      queue_.front()->granted_ = true;
      called.push_back(std::move(queue_.front()));
      queue_.pop_front();
    }
  }
  for (const TicketPointer& ticket : called) ticket->call();
}

void Slots::set_bound(std::size_t bound) {
  {
    const ForkLock lock(mutex_);
    look_for_fork();
    bound_ = bound;
    ++inside_;
  }
  leave();  // lets those in that have room now
}

}  // namespace memcfg
