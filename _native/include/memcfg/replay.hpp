// Plays a record of allocations into a resource, and measures it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "memcfg/resource.hpp"
#include "memcfg/types.hpp"

namespace memcfg {

// What is to be played, in order. Requests that failed when they were recorded are not
// played: nobody knows what would have become of them.
class ReplayPlan {
 public:
  struct Step {
    std::uint64_t row;   // in the record
    std::uint32_t slot;  // which block, among those that are out
    std::uint32_t tag;
    Bytes size;
    bool frees;
  };
  // Columns of `count` rows, as those of History.
  struct Columns {
    const std::uint8_t* action;
    const std::uint64_t* address;
    const std::uint64_t* size;
    const std::int32_t* tag;
    std::size_t count;
  };

  // Throws std::invalid_argument naming the first row that takes an address that is
  // out, frees one that is not, or has no tag.
  ReplayPlan(const Columns& rows, std::vector<std::string> tags);

  const std::vector<Step>& steps() const noexcept { return steps_; }
  std::size_t slots() const noexcept { return slots_; }  // blocks at a time, at most
  const std::string& tag(const Step& step) const { return tags_[step.tag]; }

 private:
  std::vector<std::string> tags_;
  std::vector<Step> steps_;
  std::size_t slots_ = 0;
};

// All sizes in bytes. "Ours" are the blocks of the replay; a resource may have others.
struct ReplayFigures {
  std::uint64_t failures = 0;
  std::optional<std::uint64_t> first_failure;  // row in the record
  std::optional<double> use_at_failure;        // ours, as asked for / the limit, then
  std::uint64_t skipped = 0;                   // frees of blocks that had failed
  std::uint64_t left = 0;                      // blocks that the record never frees
  Bytes left_size = 0;
  Bytes peak_in_use = 0;     // ours, each rounded up to kAlignment
  Bytes peak_requested = 0;  // ours, as asked for
  Bytes peak_reserved = 0;   // of the resource, whoever has it
};

// One run of a plan. Used by one thread; the resource may have other users.
//
// The highest reserved bytes are the resource's own peak where the run raised it; else
// they are the highest of its reserved bytes at the start, at every new peak in use, at
// the first failure and at the end.
class Replay : private NoCopy {
 public:
  // `touch`: every page of a block is written to, as part of the allocation. Throws
  // std::invalid_argument where nothing may be touched, std::bad_alloc.
  Replay(std::shared_ptr<const ReplayPlan> plan,
         std::shared_ptr<Resource> resource,
         bool touch);
  ~Replay();  // post: nothing of ours is out

  // Plays so many steps more; false: there are none left. A request that does not fit
  // is a failure; anything else that a resource throws goes through.
  bool advance(std::size_t max_steps);

  // Frees what the record left. Throws what the resource does, at the end.
  void finish();

  const ReplayFigures& figures() const noexcept { return figures_; }
  // The time of each step that was played, in nanoseconds, in order.
  const std::vector<std::uint64_t>& nanoseconds() const noexcept {
    return nanoseconds_;
  }

 private:
  void allocate(const ReplayPlan::Step& step);
  void release(const ReplayPlan::Step& step);
  void note_failure(const ReplayPlan::Step& step, const OutOfMemoryInfo& info);
  void note_reserved();
  void release_all();

  const std::shared_ptr<const ReplayPlan> plan_;
  const std::shared_ptr<Resource> resource_;
  const bool touch_;
  const Bytes earlier_peak_;  // reserved, of the resource
  const bool used_before_;    // that peak is above what is reserved now
  std::size_t next_ = 0;
  std::vector<void*> blocks_;  // by slot; null: failed, or nobody's
  std::vector<Bytes> sizes_;
  std::vector<std::uint64_t> nanoseconds_;
  Bytes in_use_ = 0;
  Bytes requested_ = 0;
  ReplayFigures figures_;
};

}  // namespace memcfg
