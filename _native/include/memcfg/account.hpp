// An account: what an arena has of a pool.
#pragma once

#include <memory>
#include <string>

#include "memcfg/pool.hpp"
#include "memcfg/types.hpp"

namespace memcfg {

// One holder's bytes, counted three ways.
struct Holding {
  Bytes requested = 0;  // as asked for
  Bytes charged = 0;    // rounded up to kAlignment: what the limit is on
  Bytes reserved = 0;   // whole pages taken from the system
};

// What one holder of an arena has of a pool, in its owner's name. Used by one thread
// at a time; keeps the pool alive.
class Account {
 public:
  Account(std::shared_ptr<Pool> pool, const std::string& owner);
  ~Account();  // post: everything drawn is given back
  Account(const Account&) = delete;
  Account& operator=(const Account&) = delete;

  Pool& pool() const noexcept { return *pool_; }
  const std::string& owner() const noexcept { return owner_; }
  const Holding& holding() const noexcept { return holding_; }

  // First step: draws on the limit, and on the pages that go with it. Throws
  // out_of_memory, nothing drawn.
  void draw(const Holding& more);
  // Second step, either: the memory was taken, or it was refused. `refuse` gives the
  // draw back and throws out_of_memory.
  void book(const Holding& more) noexcept;
  [[noreturn]] void refuse(const Holding& more, Shortage::Cause cause);
  // Pre: the memory has gone back to the system, and `less` is at most holding().
  void settle(Holding less) noexcept;

 private:
  void give_back(const Holding& less) noexcept;

  std::shared_ptr<Pool> pool_;
  std::string owner_;
  Tag tag_;
  Holding holding_;
};

}  // namespace memcfg
