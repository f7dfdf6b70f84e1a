// Knows who holds what, and what happened.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "memcfg/adaptor.hpp"
#include "memcfg/recorder.hpp"
#include "memcfg/types.hpp"
#include "memcfg/watcher.hpp"

namespace memcfg {

// Every block that is out with its age, its thread and, where a source is given, the
// stack of calls that took it; and the newest so many events.
//
// An allocation is noted after upstream has made it, a free before upstream hears of
// it: in the order of the events no block is taken twice.
class TrackingResource final : public Adaptor {
 public:
  // Says where a request comes from: a stack from `take_stack`, or null. Called before
  // upstream is, with no lock held, by the thread that asks for memory. What it throws
  // goes through.
  using Source = std::function<Stacks::Held(TrackingResource&)>;

  // Throws std::bad_alloc; std::invalid_argument for no events.
  TrackingResource(std::shared_ptr<Resource> upstream,
                   std::size_t max_events,
                   Source source = nullptr);

  void* allocate(const Request& request) override;
  std::vector<LiveBlock> blocks() const override;
  ResourceStats stats() const override;
  void check() const override;

  History history() const;
  std::uint64_t dropped() const;  // events that are too old
  void clear();                   // drops the events, not the blocks

  // What a source calls.
  struct Taken {
    Stacks::Held stack;  // with one holder more
    bool fresh;          // nobody held it before: its frames are to be kept alive
    Recorder::Retired retired;  // whose frames are to be let go
  };
  Taken take_stack(const Frame* frames, std::size_t count);

  // The stacks of blocks, each once, and their numbers; some may have gone meanwhile.
  // What they are made of stays alive as long as no source runs.
  std::vector<Stack> stacks(const std::vector<LiveBlock>& blocks,
                            std::vector<std::int64_t>& numbers) const;
  // Every stack that a source has kept alive. Pre: nobody uses the resource any more.
  std::vector<Stack> all_stacks();

 private:
  class Origin;  // the stack of a request in flight

  const Source source_;
  Recorder recorder_;  // guarded by the ledger's lock
};

// Calls `act` with the code of each frame.
void each_code(const std::vector<Stack>& stacks, void (*act)(const void*)) noexcept;
void each_code(const Recorder::Retired& stacks, void (*act)(const void*)) noexcept;

// A source in another language: it gives the stack, or null; below 0 it failed, its
// caller keeps the reason, and callback_raised is thrown here.
TrackingResource::Source foreign_source(int (*function)(void*, Stacks::Held*),
                                        void* context);

}  // namespace memcfg
