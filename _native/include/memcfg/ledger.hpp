// A ledger: the books of blocks that somebody else's memory stands behind.
#pragma once

#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "memcfg/fork_lock.hpp"
#include "memcfg/resource.hpp"
#include "memcfg/types.hpp"

namespace memcfg {

// A count that goes up and down. It is below zero in a region that frees more than it
// takes.
struct Tally {
  std::int64_t current = 0;
  std::int64_t peak = 0;   // highest `current`, at least 0
  std::int64_t total = 0;  // all that was ever added

  void add(std::int64_t count) noexcept;
  void remove(std::int64_t count) noexcept { current -= count; }
  // Takes in what happened in a region that ends.
  void absorb(const Tally& inner) noexcept;
};

struct Counters {
  Tally bytes;  // each block rounded up to kAlignment
  Tally blocks;

  void add(Bytes size) noexcept;
  void remove(Bytes size) noexcept;
  void absorb(const Counters& inner) noexcept;
};

// Which blocks are out, of what size, under which tag. Every method may be called from
// any thread, and calls nobody.
//
//     sum of the blocks, rounded == all.bytes.current == sum of the tags,
//     requested <= all.bytes.current <= all.bytes.peak, reserved <= peak_reserved.
class Ledger {
 public:
  enum class Tags { held, ever };  // which tags are remembered

  explicit Ledger(Tags tags = Tags::held) : tags_kept_(tags) {}

  // `reserved`: the bytes that were taken for it from below. Throws std::bad_alloc;
  // nothing has changed then.
  void add(void* address, const Request& request, Bytes reserved);

  // The bytes that were taken for it. Throws bad_free when there is no such block, or
  // one of another size; nothing has changed then.
  Bytes remove(void* address, Bytes size);

  // Hands every block to `give(address, size, reserved)`. Pre: nobody else uses the
  // ledger any more.
  template <typename Give>
  void each(Give give) const {
    for (const auto& [address, entry] : entries_) {
      give(address, entry.size, entry.reserved);
    }
  }

  // What the ledger knows: blocks, peaks, counts, its own size. The rest is as in a
  // fresh ResourceStats.
  ResourceStats stats() const;
  void reset_peak();
  Owners owners() const;

  // Opens a region: counts from zero, until it is popped.
  void push();
  // Ends the region opened last and adds it to the one around it. Throws
  // std::invalid_argument when there is none.
  Counters pop();
  std::vector<std::pair<std::string, Counters>> by_tag() const;  // sorted by tag

  void check() const;  // throws invariant_broken

 private:
  using Rows = std::map<std::string, Counters, std::less<>>;
  struct Entry {
    Bytes size;
    Bytes reserved;
    Rows::iterator row;
  };
  using Entries = std::unordered_map<void*, Entry>;

  void erase(Entries::iterator found) noexcept;
  Rows::iterator row_of(std::string_view tag);
  void drop_if_idle(Rows::iterator row) noexcept;
  Bytes metadata() const noexcept;

  const Tags tags_kept_;
  mutable std::mutex mutex_;  // guards all below
  Entries entries_;
  Rows rows_;
  Counters all_;
  std::vector<Counters> regions_;  // the innermost last
  Bytes requested_ = 0;
  Bytes reserved_ = 0;
  Bytes peak_reserved_ = 0;
};

}  // namespace memcfg
