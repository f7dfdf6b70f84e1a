// Tags of a pool: their numbers, and what is counted by tag.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "memcfg/free_chunks.hpp"
#include "memcfg/resource.hpp"
#include "memcfg/types.hpp"

namespace memcfg {

using Tag = std::uint32_t;  // a tag's number in its pool; 0 is the empty tag

// Counts of blocks. A thread's cache counts changes, which may be negative: a block can
// be freed by another thread than the one that allocated it.
struct BlockCounts {
  std::int64_t requested = 0;  // bytes, as asked for
  std::uint64_t allocations = 0;
  std::uint64_t deallocations = 0;
  std::vector<std::int64_t> charged;  // bytes by tag, rounded up to kAlignment

  void allocate(Bytes size, Bytes charge, Tag tag) noexcept {
    resize(size, charge, tag);
    ++allocations;
  }
  void deallocate(Use use, Bytes charge) noexcept {
    requested -= static_cast<std::int64_t>(use.requested());
    charged[use.tag()] -= static_cast<std::int64_t>(charge);
    ++deallocations;
  }
  // Sizes modulo 2^64: a block that shrinks changes by less than nothing.
  void resize(Bytes more, Bytes more_charge, Tag tag) noexcept {
    requested += static_cast<std::int64_t>(more);
    charged[tag] += static_cast<std::int64_t>(more_charge);
  }
  // Pre: it has no tag that this lacks.
  void add(const BlockCounts& other) noexcept;
};

// Names of tags by number. Used under the pool's lock.
class TagTable {
 public:
  static constexpr Tag kUnknown = ~Tag{0};

  Tag find(std::string_view name) const noexcept;  // kUnknown: it has no number
  // Pre: it has no number. Throws std::invalid_argument where all are given out,
  // std::bad_alloc; nothing has changed then.
  Tag add(std::string_view name);
  bool full() const noexcept;  // all numbers are given out
  // Takes numbers back of which idle(tag) is true and that no arena has.
  void recycle(const std::function<bool(Tag)>& idle);

  void add_arena(Tag tag) noexcept { ++arenas_[tag]; }
  void remove_arena(Tag tag) noexcept { --arenas_[tag]; }

  std::size_t count() const noexcept { return arenas_.size(); }  // numbers ever used
  std::vector<std::string> names() const;                        // by number
  Owners owners(const std::vector<std::int64_t>& charged) const;

 private:
  std::map<std::string, Tag, std::less<>> numbers_;
  std::vector<std::uint32_t> arenas_ = {0};  // how many there are, by tag
  std::vector<Tag> spare_;                   // numbers that no tag has
};

}  // namespace memcfg
