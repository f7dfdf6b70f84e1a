#include "memcfg/tracking.hpp"

#include <algorithm>
#include <chrono>
#include <limits>
#include <map>
#include <new>
#include <set>
#include <stdexcept>

#include "memcfg/error.hpp"
#include "memcfg/foreign.hpp"
#include "memcfg/system.hpp"

namespace memcfg {
namespace {

// A key of Interned that is not a vector yet.
struct Frames {
  const Frame* first;
  const Frame* last;
  const Frame* begin() const noexcept { return first; }
  const Frame* end() const noexcept { return last; }
};

bool operator<(const Frames& a, const Stack& b) noexcept {
  return std::lexicographical_compare(a.begin(), a.end(), b.begin(), b.end());
}
bool operator<(const Stack& a, const Frames& b) noexcept {
  return std::lexicographical_compare(a.begin(), a.end(), b.begin(), b.end());
}

template <typename Clock>
double seconds_of() noexcept {
  const auto since = Clock::now().time_since_epoch();
  return std::chrono::duration<double>(since).count();
}

std::uintptr_t number(const void* address) noexcept {
  return reinterpret_cast<std::uintptr_t>(address);
}

// Numbers values in the order in which they come.
template <typename Held, typename Value>
class Indices {
 public:
  explicit Indices(std::vector<Value>& values) : values_(values) {}
  std::int32_t of(Held held) {
    const auto [found, fresh] =
        indices_.try_emplace(held, static_cast<std::int32_t>(values_.size()));
    if (fresh) values_.push_back(held ? held->first : Value());
    return found->second;
  }

 private:
  std::vector<Value>& values_;
  std::map<Held, std::int32_t> indices_;
};

}  // namespace

std::size_t require_some_events(std::size_t events, Bytes each) {
  if (events == 0) throw std::invalid_argument("a history has at least one event");
  if (events > kNoLimit / 2 / each) throw std::bad_alloc();
  return events;
}

double event_seconds() noexcept {
  static const double offset =
      seconds_of<std::chrono::system_clock>() - seconds_of<std::chrono::steady_clock>();
  return offset + seconds_of<std::chrono::steady_clock>();
}

Recorder::Recorder(std::size_t max_events)
    : max_(require_some_events(max_events, sizeof(Event))),
      events_(host_system(), max_) {}

Names::Held Recorder::hold(Names::Held name) const noexcept {
  if (name) Names::hold(name);
  return name;
}

Stacks::Held Recorder::hold(Stacks::Held stack) const noexcept {
  if (stack) Stacks::hold(stack);
  return stack;
}

void Recorder::drop_name(Names::Held name) noexcept {
  if (name) names_.drop(name);
}

void Recorder::drop_stack(Stacks::Held stack) noexcept {
  if (!stack) return;
  if (auto gone = stacks_.drop(stack)) retired_.insert(std::move(gone));
}

std::pair<Stacks::Held, bool> Recorder::take_stack(const Frame* frames,
                                                   std::size_t count) {
  return stacks_.take(Frames{frames, frames + count});
}

std::uint64_t Recorder::append(Event event) noexcept {
  if (next_ - first_ == max_) drop_oldest();
  const std::uint64_t own = next_++;
  if (event.action == History::allocate) event.born = own;
  if (touched_ < max_) ++touched_;
  this->event(own) = event;
  return own;
}

void Recorder::drop_oldest() noexcept {
  const Event oldest = event(first_++);
  drop_name(oldest.tag);
  drop_stack(oldest.stack);
  ++dropped_;
}

std::uint64_t Recorder::note(History::Action action,
                             const void* address,
                             Bytes size,
                             const Note& of) noexcept {
  const Names::Held tag = hold(of.tag);
  const Stacks::Held stack = hold(of.stack);
  return append(
      {action, number(address), size, of.born, thread_id(), now(), tag, stack});
}

void Recorder::begin(const void* address, Bytes size, Note& note) noexcept {
  note.born = this->note(History::allocate, address, size, note);
  note.seconds = event(note.born).seconds;
  note.thread = event(note.born).thread;
}

void Recorder::added(const void* address, const Request& request, Note& note) {
  if (!request.tag.empty()) note.tag = names_.take(request.tag).first;
  begin(address, request.size, note);
}

void Recorder::removed(const void* address, Bytes size, const Note& note) noexcept {
  this->note(History::free, address, size, note);
  drop_name(note.tag);
  drop_stack(note.stack);
}

void Recorder::resized(const void* address,
                       Bytes before,
                       Bytes now,
                       Note& note) noexcept {
  this->note(History::free, address, before, note);
  begin(address, now, note);
}

void Recorder::failed(const Request& request, Stacks::Held stack) noexcept {
  Names::Held name = nullptr;
  try {
    if (!request.tag.empty()) name = names_.take(request.tag).first;
  } catch (const std::bad_alloc&) {
    drop_stack(stack);
    ++dropped_;
    return;
  }
  append({History::failure, 0, request.size, 0, thread_id(), now(), name, stack});
}

void Recorder::clear() noexcept {
  while (first_ < next_) drop_oldest();
  events_.reset();
  touched_ = 0;
  dropped_ = 0;
}

// The blocks that were out when the oldest event happened: those that are freed since,
// and those that are still out.
std::vector<Recorder::Event> Recorder::taken_before(
    const std::vector<NotedBlock>& blocks) const {
  std::vector<Event> rows;
  const double begin = first_ < next_ ? event(first_).seconds : now();
  const auto add = [&](Event row) {
    row.action = History::allocate;
    row.seconds = begin;
    rows.push_back(row);
  };
  for (std::uint64_t each = first_; each < next_; ++each) {
    const Event& row = event(each);
    if (row.action == History::free && row.born < first_) add(row);
  }
  for (const NotedBlock& block : blocks) {
    const Note& note = block.note;
    if (note.born >= first_) continue;
    add({History::allocate,
         number(block.address),
         block.size,
         note.born,
         note.thread,
         begin,
         note.tag,
         note.stack});
  }
  std::sort(rows.begin(), rows.end(), [](const Event& a, const Event& b) {
    return a.born < b.born;
  });
  return rows;
}

History Recorder::history(const std::vector<NotedBlock>& blocks) const {
  std::vector<Event> rows = taken_before(blocks);
  for (std::uint64_t each = first_; each < next_; ++each) rows.push_back(event(each));
  History history;
  history.end = event_seconds();
  history.dropped = dropped_;
  Indices<Names::Held, std::string> tags(history.tags);
  Indices<Stacks::Held, Stack> stacks(history.stacks);
  for (const Event& row : rows) {
    history.action.push_back(row.action);
    history.address.push_back(row.address);
    history.size.push_back(row.size);
    history.thread.push_back(row.thread);
    history.seconds.push_back(row.seconds);
    history.tag.push_back(tags.of(row.tag));
    history.stack.push_back(row.stack ? stacks.of(row.stack) : -1);
  }
  return history;
}

Bytes Recorder::metadata() const noexcept {
  constexpr Bytes kNode = 4 * sizeof(void*);  // a map node, beside its value
  return touched_ * sizeof(Event) +
         names_.rows().size() * (sizeof(Names::Rows::value_type) + kNode) +
         stacks_.rows().size() * (sizeof(Stacks::Rows::value_type) + kNode);
}

void Recorder::check(const std::vector<NotedBlock>& blocks) const {
  std::map<const void*, std::size_t> holders;
  for (std::uint64_t each = first_; each < next_; ++each) {
    const Event& row = event(each);
    ++holders[row.tag];
    ++holders[row.stack];
    require(row.born <= each, "a block ends before it begins");
    require(each == first_ || event(each - 1).seconds <= row.seconds,
            "an event is older than the one before it");
  }
  for (const NotedBlock& block : blocks) {
    ++holders[block.note.tag];
    ++holders[block.note.stack];
    require(block.note.born < next_, "a block has no begin");
  }
  require(first_ <= next_ && next_ - first_ <= max_, "more events than there may be");
  holders.erase(nullptr);
  for (const auto& row : names_.rows()) {
    require(holders[&row] == row.second.holders, "a name's holders are miscounted");
    holders.erase(&row);
  }
  for (const auto& row : stacks_.rows()) {
    require(holders[&row] <= row.second.holders, "a stack's holders are miscounted");
    holders.erase(&row);
  }
  require(holders.empty(), "a name or stack has gone that somebody holds");
}

namespace {

// Pre: the ledger's lock is held.
template <typename Blocks>
std::vector<NotedBlock> holdings(const Blocks& blocks) {
  std::vector<NotedBlock> rows;
  rows.reserve(blocks.size());
  for (const auto& [address, entry] : blocks) {
    rows.push_back({address, entry.size, entry.note});
  }
  return rows;
}

}  // namespace

// Lets the stack go at the end, unless somebody has taken it over.
class TrackingResource::Origin : private NoCopy {
 public:
  explicit Origin(TrackingResource& owner)
      : owner_(owner), stack_(owner.source_ ? owner.source_(owner) : nullptr) {}
  ~Origin() {
    if (!stack_) return;
    owner_.ledger_.hold([this](const auto&) { owner_.recorder_.drop_stack(stack_); });
  }

  Stacks::Held get() const noexcept { return stack_; }
  void hand_over() noexcept { stack_ = nullptr; }

 private:
  TrackingResource& owner_;
  Stacks::Held stack_;
};

TrackingResource::TrackingResource(std::shared_ptr<Resource> upstream,
                                   std::size_t max_events,
                                   Source source)
    : Adaptor(std::move(upstream), Ledger::Tags::held, &recorder_),
      source_(std::move(source)),
      recorder_(max_events) {}

void* TrackingResource::allocate(const Request& request) {
  require_valid(request);
  Origin origin(*this);
  Note note;
  note.stack = origin.get();
  try {
    void* const address = take(request, note);
    origin.hand_over();
    return address;
  } catch (const std::bad_alloc&) {
    ledger_.hold([&](const auto&) { recorder_.failed(request, origin.get()); });
    origin.hand_over();
    throw;
  }
}

std::vector<LiveBlock> TrackingResource::blocks() const {
  return ledger_.blocks([this] { return recorder_.now(); });
}

ResourceStats TrackingResource::stats() const {
  ResourceStats stats = Adaptor::stats();
  stats.metadata += ledger_.hold([this](const auto&) { return recorder_.metadata(); });
  return stats;
}

void TrackingResource::check() const {
  Adaptor::check();
  ledger_.hold([this](const auto& blocks) { recorder_.check(holdings(blocks)); });
}

History TrackingResource::history() const {
  return ledger_.hold(
      [this](const auto& blocks) { return recorder_.history(holdings(blocks)); });
}

std::uint64_t TrackingResource::dropped() const {
  return ledger_.hold([this](const auto&) { return recorder_.dropped(); });
}

void TrackingResource::clear() {
  ledger_.hold([this](const auto&) { recorder_.clear(); });
}

TrackingResource::Taken TrackingResource::take_stack(const Frame* frames,
                                                     std::size_t count) {
  return ledger_.hold([&](const auto&) {
    const auto [stack, fresh] = recorder_.take_stack(frames, count);
    return Taken{stack, fresh, recorder_.retired()};
  });
}

std::vector<Stack> TrackingResource::stacks(const std::vector<LiveBlock>& blocks,
                                            std::vector<std::int64_t>& numbers) const {
  std::set<std::int64_t> wanted;
  for (const LiveBlock& block : blocks) wanted.insert(block.stack);
  return ledger_.hold([&](const auto&) {
    std::vector<Stack> rows;
    for (const auto& [stack, row] : recorder_.stacks()) {
      const auto number = static_cast<std::int64_t>(row.number);
      if (wanted.count(number) == 0) continue;
      rows.push_back(stack);
      numbers.push_back(number);
    }
    return rows;
  });
}

std::vector<Stack> TrackingResource::all_stacks() {
  std::vector<Stack> all;
  for (const auto& row : recorder_.stacks()) all.push_back(row.first);
  for (const auto& row : recorder_.retired()) all.push_back(row.first);
  return all;
}

void each_code(const std::vector<Stack>& stacks, void (*act)(const void*)) noexcept {
  for (const Stack& stack : stacks) {
    for (const Frame& frame : stack) act(frame.code);
  }
}

void each_code(const Recorder::Retired& stacks, void (*act)(const void*)) noexcept {
  for (const auto& row : stacks) {
    for (const Frame& frame : row.first) act(frame.code);
  }
}

TrackingResource::Source foreign_source(int (*function)(void*, Stacks::Held*),
                                        void* context) {
  return [function, context](TrackingResource&) {
    Stacks::Held stack = nullptr;
    if (call_foreign(function, context, &stack) < 0) throw callback_raised();
    return stack;
  };
}

}  // namespace memcfg
