// A resource: whatever hands out memory. One small interface, so that resources stack:
// a limit on a pool, statistics on a limit, a pool on a simulated device.
#pragma once

#include <cstdint>
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
  std::string_view tag = {};  // who holds the block, for the books
};

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
  Bytes largest_hole = 0;         // largest stretch between blocks
  Bytes holes = 0;                // all stretches between blocks that have memory
  Bytes idle = 0;                 // of them, whole pages: what a trim would give back
  Bytes metadata = 0;             // the books: in none of the numbers above
  std::uint64_t allocations = 0;  // granted so far
  std::uint64_t deallocations = 0;
};

// Bytes by tag, sorted by tag, tags that hold nothing left out.
using Owners = std::vector<std::pair<std::string, Bytes>>;

// Every method may be called from any thread.
class Resource {
 public:
  Resource() = default;
  virtual ~Resource() = default;
  Resource(const Resource&) = delete;
  Resource& operator=(const Resource&) = delete;

  // The device's name, for messages.
  virtual const std::string& name() const noexcept = 0;

  // False: addresses only, nothing may be read or written there.
  virtual bool touchable() const noexcept = 0;

  // Memory aligned as asked for, contents undefined. Throws out_of_memory, or
  // std::invalid_argument for no bytes or an alignment that is no power of two; nothing
  // has changed then.
  virtual void* allocate(const Request& request) = 0;

  // Pre: `size` is the size that was asked for. Throws bad_free for an address that is
  // not a block of this resource (any more) or has another size; nothing has changed.
  virtual void deallocate(void* address, Bytes size) = 0;

  virtual ResourceStats stats() const = 0;
  virtual void reset_peak() = 0;
  virtual Owners owners() const = 0;

  // Gives memory that no block holds back below, but for `keep` bytes of it. Returns
  // the bytes given back.
  virtual Bytes trim(Bytes keep) = 0;

  // Throws invariant_broken unless the books are right.
  virtual void check() const = 0;

  // Where a pool on top takes pages one by one; null: it takes whole blocks from here.
  virtual const System* pages() const noexcept { return nullptr; }
};

// Throws std::invalid_argument unless the request is one.
void require_valid(const Request& request);

// What a refusal says of a resource as it is now. Pre: no lock of the resource is held.
out_of_memory refusal(const Resource& resource, Shortage::Cause cause, Bytes requested);

}  // namespace memcfg
