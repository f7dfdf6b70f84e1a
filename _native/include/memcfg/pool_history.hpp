// The newest events of a pool, while somebody asks for them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

#include "memcfg/ledger.hpp"
#include "memcfg/metadata.hpp"
#include "memcfg/resource.hpp"
#include "memcfg/tracking.hpp"
#include "memcfg/types.hpp"

namespace memcfg {

// A change of size is the end of one block and the begin of another, at one address.
// Blocks that were there before the oldest event follow from those that are there
// after the newest one. Its memory is taken at first touch, so that noting an event
// cannot fail. Every method but the first needs the lock of the pool.
//
//     first <= next <= first + maximum, holders of a name == events with it.
class PoolHistory final : private NoCopy {
 public:
  // Throws std::bad_alloc; std::invalid_argument for no events.
  explicit PoolHistory(std::size_t max_events);

  void begin() noexcept { began_ = event_seconds(); }

  // A failure that repeats the newest event, as of somebody who waits, is not noted.
  // Without memory for its name, an event has none.
  void note(History::Action action,
            const void* address,
            Bytes size,
            std::string_view tag) noexcept;

  // `live`: what the pool has out now, its arenas included. The blocks from before come
  // first, by address, at the time of the begin or, if events are too old, of the
  // oldest one; no event has a stack.
  History history(const std::vector<LiveBlock>& live) const;

  std::uint64_t dropped() const noexcept { return dropped_; }  // events too old
  Bytes metadata() const noexcept;
  // Throws invariant_broken. Pre: no free is under way.
  void check(const std::vector<LiveBlock>& live) const;

 private:
  struct Event {
    History::Action action;
    std::uintptr_t address;
    Bytes size;
    std::int64_t thread;
    double seconds;
    Names::Held tag;
  };

  Event& event(std::uint64_t number) const noexcept { return events_[number % max_]; }
  bool repeats(History::Action action, Bytes size, std::int64_t thread) const noexcept;
  void drop_oldest() noexcept;

  const std::size_t max_;
  MetadataArray<Event> events_;
  std::uint64_t first_ = 1;  // numbers of events
  std::uint64_t next_ = 1;
  std::uint64_t touched_ = 0;  // so many events have memory
  std::uint64_t dropped_ = 0;
  double began_ = 0;
  Names names_;
};

}  // namespace memcfg
