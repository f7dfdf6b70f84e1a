// The rules of a workspace, what its cycles took, and what that teaches.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "memcfg/types.hpp"

namespace memcfg {

// The names and the arithmetic are ND4J's (WorkspaceConfiguration, Nd4jWorkspace), with
// kAlignment for its alignment.
struct WorkspaceRules {
  enum Learning { first_loop, over_time, never };
  enum Spill { external, reallocate, fail };

  std::string name;
  Bytes initial = 0;          // bytes; 0: learned
  Bytes minimum = 0;          // bytes, of a learned size
  Bytes maximum = kNoLimit;   // bytes, of any size
  double overallocation = 0;  // share of a size that is added to it
  bool circular = false;      // a ring: the next cycle goes on where the last one ended
  Bytes ring_blocks = 1;      // cycles that a learned ring has room for
  Learning learning = first_loop;
  std::uint64_t learning_cycles = 0;  // over_time: when; 0: when told
  Spill spill = external;
  bool overwrites = false;  // memory is used again under arrays that are alive
  bool reclaims = false;    // the block made last gives its space back when it goes
};

struct WorkspaceSize {
  Bytes size = 0;   // bytes of the page
  Bytes block = 0;  // bytes of one cycle in a ring; 0: no ring
};

// Throws std::invalid_argument for rules that no workspace can follow.
void require_valid(const WorkspaceRules& rules);

// The size that a workspace is made with.
Bytes first_size(const WorkspaceRules& rules) noexcept;

// The size for cycles of at most so many bytes. Pre: most_of_a_cycle > 0.
WorkspaceSize learned_size(const WorkspaceRules& rules, Bytes max_cycle_bytes) noexcept;

// Sizes are bytes, each request rounded up to kAlignment. No lock, no memory.
//
//     last <= maximum, spilled and pinned: what did not fit, since it was last reset
class WorkspaceCycles {
 public:
  enum class Fit { page, spilled, pinned };

  struct Count {
    Bytes bytes = 0;
    std::uint64_t blocks = 0;
  };

  // Pre: the rules outlive it.
  explicit WorkspaceCycles(const WorkspaceRules& rules)
      : rules_(&rules), size_{first_size(rules), 0} {}

  Bytes size() const noexcept { return size_.size; }
  Bytes block() const noexcept { return size_.block; }
  Bytes now() const noexcept { return now_; }
  Bytes last() const noexcept { return last_; }
  Bytes maximum() const noexcept { return max_; }
  std::uint64_t cycles() const noexcept { return cycles_; }
  std::uint64_t steps() const noexcept { return steps_; }
  std::uint64_t generation() const noexcept { return generation_; }
  Count spilled() const noexcept { return spilled_; }
  Count pinned() const noexcept;

  // Whether a request is more than a ring's block has left for this cycle: then it is
  // not to come into the ring.
  bool oversized(Bytes size) const noexcept;

  void begin() noexcept;
  // The next block's mark, which is to be kept with it. Throws std::bad_alloc.
  std::size_t next_mark();
  // That block was made. Pre: next_mark() was called for it.
  void count(Bytes size, Fit fit) noexcept;
  // It has gone.
  void gone(std::size_t mark, std::uint64_t generation) noexcept;
  // The ring restarts with the next block.
  void wrapped() noexcept { wrapped_ = true; }
  void cancel() noexcept;  // the cycle that has just begun: it was none
  // True: the size is another one now, if it may be learned.
  bool end(bool learns) noexcept;
  // Learns from the cycles so far, if nothing is known and it learns at all. True:
  // there is a size now.
  bool learn() noexcept;
  void unlearn() noexcept;  // undoes a learn that came to nothing
  // Drops cycles larger than the last. True: the size is smaller now.
  bool shrink() noexcept;
  void reset() noexcept;    // everything, the size included
  void restore() noexcept;  // the size that the rules name, if none is known

 private:
  struct Pins {
    std::uint64_t step = 0;
    Count count;
  };
  struct Mark {
    Bytes size;
    bool live;
  };

  bool due() const noexcept;
  bool relearn() noexcept;
  bool adopt() noexcept;
  void drop_pins() noexcept;

  const WorkspaceRules* rules_;
  WorkspaceSize size_;
  Bytes now_ = 0;   // of this cycle; where space is given back: what is not
  Bytes peak_ = 0;  // the highest of it
  Bytes last_ = 0;
  Bytes max_ = 0;
  Bytes max_before_ = 0;  // when a size was learned last
  std::uint64_t cycles_ = 0;
  std::uint64_t steps_ = 0;  // rounds of the ring
  std::uint64_t generation_ = 0;
  Count spilled_;
  std::array<Pins, 4> pins_;  // by step: at most three are remembered at once
  bool trimmed_ = false;      // the ring is too small: nothing goes into it
  std::uint64_t trim_step_ = 0;
  bool wrapped_ = false;
  std::vector<Mark> marks_;  // of this cycle's blocks, where space is given back
};

}  // namespace memcfg
