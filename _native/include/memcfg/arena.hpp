// An arena: one stretch of addresses that grows in place, and its part of a pool.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include "memcfg/pool.hpp"
#include "memcfg/types.hpp"

namespace memcfg {

// Reserves addresses once and commits pages as it grows; the base never moves. What
// is placed where in it is its users' business. Every method may be called from any
// thread. Keeps its pool alive, and has its bytes there in its owner's name.
//
// Invariant: size <= committed <= capacity, committed is size rounded up to a page,
// and every byte of [base + committed, base + capacity) faults when touched. The pool
// is charged `size`, not pages.
//
// Of a pool whose resource has blocks only, an arena is one block. Its first growth
// takes it, of `capacity` bytes, and it keeps it until it is freed: committed is 0 or
// capacity.
class Arena {
 public:
  // `capacity`: bytes of addresses, rounded up to a page; 0 asks for the larger of the
  // pool's limit and the machine's memory, halved until the system grants it, and of a
  // block for the size of the first growth. Throws out_of_memory when the system
  // refuses.
  Arena(std::shared_ptr<Pool> pool, Bytes capacity, const std::string& owner);
  ~Arena();

  // Kept after free(); null before the first growth of a block.
  std::byte* base() const noexcept { return base_; }
  Bytes capacity() const noexcept { return capacity_; }
  Bytes size() const;  // bytes, a multiple of kAlignment: requested() rounded up
  // Bytes as asked for, 0 once freed. Waits for nobody.
  Bytes requested() const noexcept { return requested_; }
  const std::string& owner() const noexcept { return owner_; }
  bool freed() const;
  std::atomic<bool>& busy() noexcept { return busy_; }  // a program is at work in it

  // Says that what a program has left unfinished may write there until `ended`.
  void leave(std::function<bool()> ended);
  // Whether something was left that goes on, or has ended since this was asked last.
  enum class Left { nothing, goes_on, ended };
  Left look_at_left();
  bool has_left() const;  // whether something was left that goes on

  // Post: size() >= requested; new bytes are zero. Throws out_of_memory (the limit,
  // the addresses, or the system's refusal), nothing changed; std::invalid_argument
  // after free().
  void grow(Bytes requested);

  // Post: size() is at most `requested` rounded up; the memory behind goes back, unless
  // the arena is a block. Throws still_held while a Pin lives, std::invalid_argument
  // after free().
  void shrink(Bytes requested);

  // The memory behind the whole pages of [offset, offset + size) goes back to the
  // system until they are touched again; their bytes are undefined. Does nothing to a
  // block, to memory that the host cannot touch, and where the system refuses. Pre:
  // inside size().
  void discard(Offset offset, Bytes size);

  // Gives memory and addresses back. Throws still_held while a Pin lives, and
  // std::invalid_argument when called twice.
  void free();

  // Throws invariant_broken unless the invariant holds.
  void check() const;

 private:
  friend class Pin;
  friend class Pool;
  // Its bytes as a block. Pre: the pool's lock is held.
  std::optional<LiveBlock> holding() const;
  // Its bytes change from now on; 0: no longer any. Pre: the pool's lock is held.
  void note(Bytes requested) const noexcept;
  void leave_pool() noexcept;  // before its addresses go back, which others may get
  bool is_block() const noexcept { return pool_->system().whole_blocks(); }
  // Pre: the lock is held, and the pages are reserved. False when the system refuses.
  bool take(Bytes pages) noexcept;
  void give_back(Bytes pages) noexcept;         // what `take` took last
  void require_alive() const;                   // pre: the lock is held
  void require_unheld(const char* what) const;  // pre: the lock is held

  // What the pool has counts for: the bytes as asked for, the same rounded up, and the
  // pages. More of them is reserved first; then the memory was taken, or the system had
  // none: `fail` rolls the reservation back and throws out_of_memory.
  void commit(Bytes requested, Bytes pages) noexcept;
  [[noreturn]] void fail(Bytes requested,
                         Bytes charge,
                         Bytes pages,
                         OutOfMemoryInfo::Cause cause);
  // Pre: the memory has gone back to the system.
  void release(Bytes requested, Bytes pages) noexcept;

  const std::shared_ptr<Pool> pool_;
  const std::string owner_;
  Tag tag_;
  std::byte* base_ = nullptr;
  Bytes capacity_ = 0;
  Bytes committed_ = 0;
  std::size_t pins_ = 0;  // programs and exported buffers that point into the arena
  bool freed_ = false;
  bool left_pool_ = false;  // guarded by the pool's lock
  std::atomic<Bytes> requested_{0};
  std::atomic<bool> busy_{false};
  std::function<bool()> left_;  // whether what was left has ended; null: nothing was
  mutable std::mutex mutex_;
};

// Keeps an arena from being freed while something points into it.
class Pin : private NoCopy {
 public:
  explicit Pin(std::shared_ptr<Arena> arena);  // throws std::invalid_argument if freed
  ~Pin();
  Arena& arena() const noexcept { return *arena_; }

 private:
  std::shared_ptr<Arena> arena_;
};

}  // namespace memcfg
