// Knows who holds what, and what happened.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "memcfg/adaptor.hpp"
#include "memcfg/ledger.hpp"
#include "memcfg/metadata.hpp"
#include "memcfg/types.hpp"

namespace memcfg {

// Columns of one length: a row is an event. Sizes are in bytes, as asked for.
struct History {
  enum Action : std::uint8_t { allocate, free, failure };

  std::vector<std::uint8_t> action;
  std::vector<std::uint64_t> address;  // 0 where the request failed
  std::vector<std::uint64_t> size;
  std::vector<std::int64_t> thread;  // the system's number of the thread
  std::vector<double> seconds;       // since 1970, UTC; it never goes back
  std::vector<std::int32_t> tag;     // an index of `tags`
  std::vector<std::int32_t>
      stack;  // an index of `stacks`, where the block was taken; -1
  std::vector<std::string> tags;
  std::vector<Stack> stacks;
  std::uint64_t dropped = 0;  // events that are too old
  double end = 0;             // on the clock of `seconds`: all events until then
};

// The argument; throws std::invalid_argument for none, std::bad_alloc for more events
// of so many bytes than a heap can have.
std::size_t require_some_events(std::size_t events, Bytes each);

// Seconds since 1970, UTC, that never go back: one clock for all histories.
double event_seconds() noexcept;

// A block that is out, as a recorder sees it.
struct NotedBlock {
  const void* address;
  Bytes size;
  Note note;
};

// A change of size is the end of one block and the begin of another, at one address.
//
// Its memory is taken at first touch, so that noting an event cannot fail but for the
// name of a new tag. Every method needs the ledger's lock.
//
//     first <= next <= first + maximum, holders of a name == events and blocks with it,
//     holders of a stack >= those: requests in flight hold one too.
class Recorder final : public Watcher {
 public:
  // Throws std::bad_alloc; std::invalid_argument for no events.
  explicit Recorder(std::size_t max_events);

  void added(const void* address, const Request& request, Note& note) override;
  void removed(const void* address, Bytes size, const Note& note) noexcept override;
  void resized(const void* address,
               Bytes before,
               Bytes now,
               Note& note) noexcept override;
  // A request that failed; without memory for its tag it is counted as dropped.
  void failed(const Request& request, Stacks::Held stack) noexcept;

  // The same stack with one holder more; true: it was not held before.
  std::pair<Stacks::Held, bool> take_stack(const Frame* frames, std::size_t count);
  void drop_stack(Stacks::Held stack) noexcept;
  // Stacks that nobody holds any more; the caller lets their frames go.
  using Retired = std::multimap<Stack, Stacks::Row>;
  Retired retired() noexcept { return std::exchange(retired_, {}); }
  const Stacks::Rows& stacks() const noexcept { return stacks_.rows(); }

  // The blocks whose begin is too old stand first, as if they had been taken when the
  // history begins. So every block that is freed in it was taken in it.
  History history(const std::vector<NotedBlock>& blocks) const;
  void clear() noexcept;  // drops the events, not the blocks

  double now() const noexcept { return event_seconds(); }
  std::uint64_t dropped() const noexcept { return dropped_; }
  Bytes metadata() const noexcept;
  void check(const std::vector<NotedBlock>& blocks) const;  // throws invariant_broken

 private:
  struct Event {
    History::Action action;
    std::uintptr_t address;
    Bytes size;
    std::uint64_t born;
    std::int64_t thread;
    double seconds;
    Names::Held tag;
    Stacks::Held stack;
  };

  Event& event(std::uint64_t number) const noexcept { return events_[number % max_]; }
  // The event's number; takes its holders over.
  std::uint64_t append(Event event) noexcept;
  std::uint64_t note(History::Action action,
                     const void* address,
                     Bytes size,
                     const Note& of) noexcept;
  void begin(const void* address, Bytes size, Note& note) noexcept;
  void drop_oldest() noexcept;
  void drop_name(Names::Held name) noexcept;
  Names::Held hold(Names::Held name) const noexcept;
  Stacks::Held hold(Stacks::Held stack) const noexcept;
  std::vector<Event> taken_before(const std::vector<NotedBlock>& blocks) const;

  const std::size_t max_;
  MetadataArray<Event> events_;
  std::uint64_t first_ = 1;  // numbers of events
  std::uint64_t next_ = 1;
  std::uint64_t touched_ = 0;  // so many events have memory
  std::uint64_t dropped_ = 0;
  Names names_;
  Stacks stacks_;
  Retired retired_;
};

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
