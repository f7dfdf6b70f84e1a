// A pool: the books of one device's memory under a hard limit.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "memcfg/error.hpp"
#include "memcfg/limit.hpp"
#include "memcfg/system.hpp"
#include "memcfg/types.hpp"

namespace memcfg {

// One holder's bytes, counted three ways.
struct Holding {
  Bytes requested = 0;  // as asked for
  Bytes charged = 0;    // rounded up to kAlignment: what the limit is on
  Bytes reserved = 0;   // taken from the system: `charged`, or whole pages
};

struct PoolStats {
  Holding now;               // held at this moment
  Bytes peak = 0;            // highest now.charged since the last reset_peak
  Bytes limit = kNoLimit;    // bytes
  Bytes free = kNoLimit;     // largest request that would fit; kNoLimit without a limit
  std::uint64_t grants = 0;  // requests granted so far, growths of arenas included
};

// Grants bytes to accounts, keeps the numbers, never the memory itself. Every
// method may be called from any thread.
//
// A request draws on the limit first, takes memory from the system next, and is
// booked last; a failure on the way gives the draw back. Memory is given back in the
// opposite order, so at every moment
//
//     sum of the owners' bytes == now.charged <= drawn <= limit,
//     drawn - now.charged == bytes of the calls in flight,
//     now.requested <= now.charged <= now.reserved, now.charged <= peak.
class Pool {
 public:
  // Pre: limit > 0; kNoLimit is none. `system` outlives the pool.
  explicit Pool(std::string name,
                Bytes limit = kNoLimit,
                const System& system = host_system());
  Pool(const Pool&) = delete;
  Pool& operator=(const Pool&) = delete;

  const std::string& name() const noexcept { return name_; }
  const System& system() const noexcept { return system_; }
  Bytes limit() const noexcept { return limit_.limit(); }

  // The limit before. Throws out_of_memory when more is drawn; nothing changes then.
  Bytes set_limit(Bytes limit);

  PoolStats stats() const;
  void reset_peak();
  std::vector<std::pair<std::string, Bytes>> owners() const;  // by name

  // Throws invariant_broken unless the equations above hold.
  void check() const;

  // What a refusal says of the pool as it is now.
  out_of_memory shortage(Shortage::Cause cause, Bytes requested) const;

 private:
  friend class Account;
  struct Owner {
    Bytes bytes = 0;
    std::size_t accounts = 0;
  };
  using Owners = std::map<std::string, Owner>;

  const std::string name_;
  const System& system_;
  Limit limit_;
  mutable std::mutex mutex_;  // guards all below, and set_limit against itself
  Holding now_;
  Bytes peak_ = 0;
  std::uint64_t grants_ = 0;
  Owners owners_;
};

// What one holder of memory has of a pool, in its owner's name. Used by one thread
// at a time; keeps the pool alive.
class Account {
 public:
  Account(std::shared_ptr<Pool> pool, const std::string& owner);
  ~Account();  // post: everything drawn is given back
  Account(const Account&) = delete;
  Account& operator=(const Account&) = delete;

  Pool& pool() const noexcept { return *pool_; }
  const std::string& owner() const noexcept { return owner_->first; }
  const Holding& holding() const noexcept { return holding_; }

  // First step: draws `size` bytes on the limit. Throws out_of_memory, nothing drawn.
  void draw(Bytes size, Bytes requested);
  // Second step, either: the memory was taken, or it was refused. `refuse` gives the
  // draw back and throws out_of_memory.
  void book(const Holding& more) noexcept;
  [[noreturn]] void refuse(Bytes size, Bytes requested, Shortage::Cause cause);
  // Pre: the memory has gone back to the system, and `less` is at most holding().
  void settle(Holding less) noexcept;

 private:
  std::shared_ptr<Pool> pool_;
  Pool::Owners::iterator owner_;
  Holding holding_;
};

// `size` bytes of memory of a pool, aligned to kAlignment, contents undefined.
class Block {
 public:
  // Pre: requested > 0. Throws out_of_memory; nothing has changed then.
  Block(std::shared_ptr<Pool> pool, Bytes requested, const std::string& owner);
  ~Block();
  Block(const Block&) = delete;
  Block& operator=(const Block&) = delete;

  void* address() const noexcept { return address_; }
  Bytes size() const noexcept { return account_.holding().charged; }
  Bytes requested() const noexcept { return account_.holding().requested; }
  const std::string& owner() const noexcept { return account_.owner(); }

 private:
  Account account_;
  void* address_ = nullptr;
};

}  // namespace memcfg
