#include "memcfg/tracking.hpp"

#include <new>
#include <set>

#include "memcfg/error.hpp"
#include "memcfg/foreign.hpp"

namespace memcfg {
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
