// A resource: whatever hands out memory. One small interface, so that resources stack:
// a limit on a pool, statistics on a limit, a pool on a simulated device.
#pragma once

#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "memcfg/error.hpp"
#include "memcfg/system.hpp"
#include "memcfg/types.hpp"

namespace memcfg {

// How long a block will be held, as a hint: long-lived blocks are placed from one end
// of the free addresses, short-lived ones from the other.
enum class Lifetime { unknown, short_lived, long_lived };

struct Request {
  Bytes size = 0;                // bytes, at least 1
  Bytes alignment = kAlignment;  // a power of two; less than kAlignment is kAlignment
  Lifetime lifetime = Lifetime::unknown;
  std::string_view tag = {};  // who holds the block, for statistics
  bool zeroed = false;        // all bytes of the block are zero, where it has any
};

// A block that is out. A resource that does not note stacks or times leaves them at
// what they are here.
struct LiveBlock {
  std::uintptr_t address = 0;
  Bytes requested = 0;      // bytes, as asked for
  Bytes size = 0;           // bytes, rounded up to kAlignment
  std::string tag;          // who holds it
  std::int64_t stack = -1;  // number of the stack that took it; -1: not noted
  double seconds = 0;       // its age; 0: not noted
  std::int64_t thread = 0;  // the system's number of the thread that took it; 0: none
};

void sort_by_address(std::vector<LiveBlock>& blocks);

// The numbers of a resource, all of one moment, in bytes.
//
//     requested <= current <= peak, current <= limit, current + idle == reserved
//
// (the last one where memory comes in pages; arenas add the rest of a page each).
struct ResourceStats {
  Bytes current = 0;        // in use, each request rounded up to kAlignment
  Bytes peak = 0;           // highest `current` since the last reset_peak
  Bytes requested = 0;      // in use, as asked for
  Bytes reserved = 0;       // committed: memory taken from below
  Bytes peak_reserved = 0;  // highest `reserved` since the last reset_peak
  Bytes addresses = 0;      // addresses taken from below
  Bytes limit = kNoLimit;
  Bytes largest_free = kNoLimit;  // largest request that would fit; kNoLimit: any
  Bytes largest_free_chunk = 0;   // largest free range between blocks
  Bytes free_bytes = 0;           // all free ranges that have memory
  Bytes idle = 0;                 // of them, whole pages: what a trim would give back
  Bytes metadata = 0;             // in none of the numbers above
  std::uint64_t allocations = 0;  // so far
  std::uint64_t deallocations = 0;
};

// Bytes by tag, sorted by tag, tags that hold nothing left out.
using Owners = std::vector<std::pair<std::string, Bytes>>;

// Every method may be called from any thread.
class Resource : public NoCopy {
 public:
  Resource() = default;
  virtual ~Resource() = default;

  // The device's name, for messages.
  virtual const std::string& name() const noexcept = 0;

  virtual SpaceKind kind() const noexcept = 0;
  bool touchable() const noexcept { return memcfg::touchable(kind()); }

  // Whether its memory stayed in the process that this one was forked from.
  virtual bool stayed_in_parent() const noexcept { return false; }

  // Memory aligned as asked for; its contents are undefined unless the request says
  // that they are zero, and it can be touched. Throws out_of_memory, or
  // std::invalid_argument for no bytes or an alignment that is no power of two; nothing
  // has changed then.
  virtual void* allocate(const Request& request) = 0;

  // Writes zeros to memory of a block; nothing where there is none.
  virtual void zero(void* address, Bytes size) { std::memset(address, 0, size); }

  // Pre: `size` is the size that was asked for. Throws bad_free for an address that is
  // not a block of this resource (any more) or has another size; nothing has changed.
  virtual void deallocate(void* address, Bytes size) = 0;

  // The same for a caller who does not know the size. False: no block starts there (any
  // more), and nothing has changed.
  virtual bool release(void* address) noexcept;

  // The size that was asked for of the block at an address. Throws bad_free for an
  // address that is not a block of this resource (any more).
  virtual Bytes size_of(const void* address) const = 0;

  // Whether the block of upstream at an address is this resource's memory, in use or
  // kept: freeing it there would take it away from here.
  virtual bool holds(const void* address) const noexcept {
    static_cast<void>(address);
    return false;
  }

  // Changes the size of a block where it lies; the bytes that both sizes have stay as
  // they are, others are undefined. False: it must move, for whatever reason, the limit
  // included; nothing has changed then. Throws bad_free as deallocate does, and
  // std::invalid_argument for no bytes; nothing has changed then either.
  virtual bool resize(void* address, Bytes size, Bytes new_size);

  // Every block that is out, by address. What a pool's arenas hold is not among them.
  virtual std::vector<LiveBlock> blocks() const = 0;

  virtual ResourceStats stats() const = 0;
  // `stats().reserved`, for those who ask at every step.
  virtual Bytes reserved() const { return stats().reserved; }
  virtual void reset_peak() = 0;
  virtual Owners owners() const = 0;

  // Gives memory that no block holds back below, but for `keep` bytes of it. Returns
  // the bytes given back.
  virtual Bytes trim(Bytes keep) = 0;

  // Throws invariant_broken unless the invariants hold.
  virtual void check() const = 0;

  // Where a pool on top takes pages one by one; null: it takes whole blocks from here.
  virtual const System* pages() const noexcept { return nullptr; }
};

// Throws std::invalid_argument unless the request is one.
void require_valid(const Request& request);
void require_valid_size(Bytes size);  // of a block

// Throws bad_free unless a block of `held` bytes has the size that its user says.
void require_size(Bytes held, Bytes size);

// The error for a request that failed, with the numbers of the resource as they are
// now. Pre: no lock of the resource is held.
out_of_memory out_of_memory_error(const Resource& resource,
                                  OutOfMemoryInfo::Cause cause,
                                  Bytes requested);

}  // namespace memcfg
