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
  ~Account();  // releases everything
  Account(const Account&) = delete;
  Account& operator=(const Account&) = delete;

  Pool& pool() const noexcept { return *pool_; }
  const std::string& owner() const noexcept { return owner_; }
  const Holding& holding() const noexcept { return holding_; }

  // First step: reserves bytes of the limit, and the pages that go with them. Throws
  // out_of_memory, nothing reserved.
  void reserve(const Holding& more);
  // Second step, either: the memory was taken, or the system had none. `fail` rolls the
  // reservation back and throws out_of_memory.
  void commit(const Holding& more) noexcept;
  [[noreturn]] void fail(const Holding& more, OutOfMemoryInfo::Cause cause);
  // Pre: the memory has gone back to the system, and `less` is at most holding().
  void release(Holding less) noexcept;

 private:
  std::shared_ptr<Pool> pool_;
  std::string owner_;
  Tag tag_;
  Holding holding_;
};

}  // namespace memcfg
