// Locks that are handed over in the order of arrival, and bounds on how many are
// inside.
#include "memcfg/fair_lock.hpp"

#include <sys/wait.h>
#include <unistd.h>

#include <functional>
#include <memory>
#include <stdexcept>
#include <vector>

#include "check.hpp"
#include "memcfg/forks.hpp"
#include "threading.hpp"

namespace {

using memcfg::FairLock;
using memcfg::Semaphore;
using memcfg::WaiterPointer;
using threading::Threads;

constexpr std::chrono::milliseconds kAWhile{10};

// Enters; waits for as long as it takes.
template <typename Waited>
void enter(Waited& waited) {
  const WaiterPointer waiter = waited.enter();
  while (waiter != nullptr && !waited.wait(waiter, kAWhile)) {
  }
}

// Does something in a thread of its own, and waits until it is done.
void elsewhere(const std::function<void()>& work) {
  Threads threads;
  threads.start(work);
  threads.finish();
}

void wait_for(const std::function<bool()>& condition) {
  while (!condition()) std::this_thread::yield();
}

}  // namespace

TEST(a_thread_enters_a_lock_as_often_as_it_likes) {
  FairLock lock("lock");
  CHECK(lock.enter() == nullptr);
  CHECK(lock.enter() == nullptr);
  CHECK(lock.try_enter());
  for (int left = 0; left < 3; ++left) {
    elsewhere([&] {
      CHECK(lock.elsewhere());
      CHECK(!lock.try_enter());
    });
    CHECK(!lock.elsewhere());
    lock.leave();
  }
  elsewhere([&] {
    CHECK(!lock.elsewhere());
    CHECK(lock.try_enter());
    lock.leave();
  });
}

TEST(who_has_not_entered_leaves_nothing) {
  FairLock lock("lock");
  CHECK(!lock.leave());
  CHECK(lock.enter() == nullptr);
  elsewhere([&] {
    CHECK(!lock.leave());
    CHECK(lock.elsewhere());
  });
  CHECK(lock.leave());
}

TEST(a_lock_is_handed_over_in_the_order_of_arrival) {
  FairLock lock("lock");
  std::vector<std::size_t> order;
  Threads threads;
  CHECK(lock.enter() == nullptr);
  for (std::size_t i = 0; i < 8; ++i) {
    threads.start([&, i] {
      enter(lock);
      order.push_back(i);
      lock.leave();
    });
    wait_for([&] { return lock.waiting() == i + 1; });
  }
  lock.leave();
  enter(lock);  // behind all of them
  order.push_back(8);
  lock.leave();
  threads.finish();
  CHECK(order == (std::vector<std::size_t>{0, 1, 2, 3, 4, 5, 6, 7, 8}));
}

TEST(a_lock_that_is_handed_over_is_passed_on_when_the_wait_is_cancelled) {
  FairLock lock("lock");
  CHECK(lock.enter() == nullptr);
  elsewhere([&] {
    const WaiterPointer waiter = lock.enter();
    CHECK(waiter != nullptr);
    CHECK(!lock.wait(waiter, kAWhile));
    lock.cancel(waiter);  // while it waits
    CHECK(lock.waiting() == 0);
  });
  Threads threads;
  std::atomic<bool> left{false};
  std::atomic<bool> cancelled{false};
  threads.start([&] {
    const WaiterPointer waiter = lock.enter();
    wait_for([&] { return left.load(); });
    cancelled = true;
    lock.cancel(waiter);  // it has been granted
  });
  wait_for([&] { return lock.waiting() == 1; });
  threads.start([&] {
    enter(lock);
    CHECK(cancelled);
    lock.leave();
  });
  wait_for([&] { return lock.waiting() == 2; });
  lock.leave();
  left = true;
  threads.finish();
  CHECK(lock.try_enter());
  lock.leave();
}

// A signal's handler enters while its thread waits: one hand-over serves both.
TEST(a_thread_that_waits_twice_has_the_lock_twice) {
  FairLock lock("lock");
  CHECK(lock.enter() == nullptr);
  Threads threads;
  threads.start([&] {
    const WaiterPointer outer = lock.enter();
    const WaiterPointer inner = lock.enter();
    while (!lock.wait(inner, kAWhile)) {
    }
    CHECK(lock.wait(outer, kAWhile));
    lock.leave();
    elsewhere([&] { CHECK(!lock.try_enter()); });
    lock.leave();
    elsewhere([&] {
      CHECK(lock.try_enter());
      lock.leave();
    });
  });
  wait_for([&] { return lock.waiting() == 2; });
  lock.leave();
  threads.finish();
}

TEST(one_thread_at_a_time_has_a_lock) {
  FairLock lock("lock");
  int count = 0;  // for ThreadSanitizer, too
  Threads threads;
  for (int i = 0; i < 4; ++i) {
    threads.start([&] {
      for (int round = 0; round < 300; ++round) {
        const WaiterPointer waiter = lock.enter();
        if (waiter != nullptr && round % 7 == 0) {
          lock.cancel(waiter);
          continue;
        }
        while (waiter != nullptr && !lock.wait(waiter, kAWhile)) {
        }
        ++count;
        lock.leave();
      }
    });
  }
  threads.finish();
  CHECK(lock.waiting() == 0);
  CHECK(lock.try_enter());
  CHECK(count >= 4 * 257);
  lock.leave();
}

TEST(no_more_are_inside_than_may_be) {
  Semaphore slots;
  slots.set_bound(3);
  std::atomic<int> inside{0};
  std::atomic<int> most{0};
  Threads threads;
  for (int i = 0; i < 6; ++i) {
    threads.start([&] {
      for (int round = 0; round < 200; ++round) {
        enter(slots);
        const int now = ++inside;
        for (int seen = most; now > seen && !most.compare_exchange_weak(seen, now);) {
        }
        --inside;
        slots.leave();
      }
    });
  }
  threads.finish();
  CHECK(most <= 3);
}

TEST(a_bound_lets_in_who_waits_when_it_grows) {
  Semaphore slots;
  slots.set_bound(1);
  CHECK(slots.enter() == nullptr);
  const WaiterPointer first = slots.enter();
  const WaiterPointer second = slots.enter();
  const WaiterPointer third = slots.enter();
  CHECK(!slots.wait(first, kAWhile));
  slots.cancel(second);
  slots.set_bound(2);
  CHECK(slots.wait(first, kAWhile));
  CHECK(!slots.wait(third, kAWhile));
  slots.cancel(first);  // it is inside: the next has its place
  CHECK(slots.wait(third, kAWhile));
  slots.leave();
  slots.leave();
  slots.set_bound(1);
  CHECK(slots.enter() == nullptr);
  CHECK(slots.enter() != nullptr);
  slots.set_bound(0);
  CHECK(slots.enter() == nullptr);
}

TEST(a_child_has_what_its_thread_had_and_not_what_others_had) {
  FairLock own("own");
  FairLock other("other");
  FairLock idle("idle");
  Semaphore slots;
  slots.set_bound(1);
  CHECK(own.enter() == nullptr);
  Threads threads;
  std::atomic<bool> entered{false};
  std::atomic<bool> done{false};
  threads.start([&] {
    enter(other);
    enter(slots);
    entered = true;
    wait_for([&] { return done.load(); });
    slots.leave();
    other.leave();
  });
  threads.start([&] {
    enter(own);  // its place in the queue is the parent's
    own.leave();
  });
  wait_for([&] { return entered.load() && own.waiting() == 1; });
  const pid_t child = fork();
  if (child == 0) {
    bool refused = false;
    try {
      other.enter();
    } catch (const std::runtime_error&) {
      refused = true;
    }
    const bool fine = refused && own.waiting() == 0 && own.enter() == nullptr &&
                      idle.enter() == nullptr && slots.enter() == nullptr &&
                      memcfg::forking_thread() == memcfg::thread_number();
    _exit(fine ? 0 : 1);
  }
  int status = 1;
  waitpid(child, &status, 0);
  done = true;
  own.leave();
  threads.finish();
  CHECK(status == 0);
}
