// The rules of a workspace: how large it is, and what it does when that is too small.
#pragma once

#include <cstdint>
#include <string>

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

}  // namespace memcfg
