// Where huge pages may stand behind a segment of addresses.
#pragma once

#include <cstdint>

#include "memcfg/page_map.hpp"
#include "memcfg/system.hpp"
#include "memcfg/types.hpp"

namespace memcfg {

// The system is asked for huge pages behind whole units of committed pages, and asked
// to have none behind a unit that is about to lose one: a touch anywhere in a huge unit
// takes all of its memory, and what is resident shall not exceed what is committed.
//
// Each end of a range with such advice splits a mapping of the process in two, and the
// halves may stay apart for good (Linux merges no mappings whose pages were first
// touched apart). Some 65,000 are allowed a process, so splits are counted over all
// segments:
//
//     an end of a range that is advised is a split,  splits of the process <=
//     kMaxSplits.
//
// Without a split to spend, no more ranges are advised, and one that loses a page
// loses the advice up to the nearest splits. Used under its heap's lock.
class HugePages {
 public:
  static constexpr std::size_t kMaxSplits = 16384;

  HugePages() = default;  // of no addresses
  // Addresses that were just reserved: none has advice. Throws std::bad_alloc.
  HugePages(const System& system, std::uintptr_t base, Bytes size);
  ~HugePages();
  HugePages(HugePages&& other) noexcept { *this = static_cast<HugePages&&>(other); }
  HugePages& operator=(HugePages&& other) noexcept;
  HugePages(const HugePages&) = delete;
  HugePages& operator=(const HugePages&) = delete;

  // Huge pages may stand behind the units that lie inside [first, last). Pre: it is
  // committed.
  void advise(std::uintptr_t first, std::uintptr_t last) noexcept;

  // None stands behind the units with a byte of [first, last) once they are touched
  // anew. To be called before they lose a page. `for_good`: none of them is advised
  // again, for pages that come and go would cost two calls of the system each time.
  void forgo(std::uintptr_t first, std::uintptr_t last, bool for_good) noexcept;

  Bytes unit() const noexcept { return unit_; }  // bytes; 0: there are no huge pages
  Bytes bytes() const noexcept {
    return advised_.bytes() + spent_.bytes() + splits_.bytes();
  }
  void check() const;  // throws invariant_broken

  static std::size_t split_count() noexcept;  // of all segments of the process

 private:
  using Unit = std::size_t;  // a unit's number, from the one with the first address

  bool split(Unit unit) noexcept;
  bool tell(Unit first, Unit last, bool wanted) const noexcept;

  const System* system_ = nullptr;
  Bytes unit_ = 0;             // bytes; 0: there are no huge pages
  std::uintptr_t origin_ = 0;  // of unit 0, which begins at or below the base
  Unit units_ = 0;
  std::size_t split_count_ = 0;
  Bits advised_;  // by unit
  Bits spent_;    // by unit: it is not to be advised again
  Bits splits_;   // by unit: its low end is one
};

}  // namespace memcfg
