#include "memcfg/pool_history.hpp"

#include <map>
#include <new>
#include <string>

#include "memcfg/error.hpp"
#include "memcfg/system.hpp"

namespace memcfg {
namespace {

// A block from before the oldest event.
struct Earlier {
  Bytes size;
  std::string tag;
};

std::string text_of(Names::Held name) {
  return name == nullptr ? std::string() : name->first;
}

}  // namespace

PoolHistory::PoolHistory(std::size_t max_events)
    : max_(require_some_events(max_events, sizeof(Event))),
      events_(host_system(), max_) {}

bool PoolHistory::repeats(History::Action action,
                          Bytes size,
                          std::int64_t thread) const noexcept {
  if (action != History::failure || first_ == next_) return false;
  const Event& newest = event(next_ - 1);
  return newest.action == action && newest.size == size && newest.thread == thread;
}

void PoolHistory::note(History::Action action,
                       const void* address,
                       Bytes size,
                       std::string_view tag) noexcept {
  const std::int64_t thread = thread_id();
  if (repeats(action, size, thread)) return;
  Names::Held name = nullptr;
  try {
    if (!tag.empty()) name = names_.take(tag).first;
  } catch (const std::bad_alloc&) {  // its bytes count all the same
  }
  if (next_ - first_ == max_) drop_oldest();
  if (touched_ < max_) ++touched_;
  event(next_++) = {action,
                    reinterpret_cast<std::uintptr_t>(address),
                    size,
                    thread,
                    event_seconds(),
                    name};
}

void PoolHistory::drop_oldest() noexcept {
  const Names::Held name = event(first_++).tag;
  if (name != nullptr) names_.drop(name);
  ++dropped_;
}

History PoolHistory::history(const std::vector<LiveBlock>& live) const {
  std::map<std::uintptr_t, Earlier> before;
  for (const LiveBlock& block : live) {
    before[block.address] = {block.requested, block.tag};
  }
  for (std::uint64_t each = next_; each-- > first_;) {
    const Event& row = event(each);
    if (row.action == History::allocate) before.erase(row.address);
    if (row.action == History::free) {
      before[row.address] = {row.size, text_of(row.tag)};
    }
  }
  History history;
  history.dropped = dropped_;
  history.end = event_seconds();
  std::map<std::string, std::int32_t> numbers;
  const auto add = [&](const Event& row, const std::string& tag) {
    const auto next = static_cast<std::int32_t>(history.tags.size());
    const auto [found, fresh] = numbers.try_emplace(tag, next);
    if (fresh) history.tags.push_back(tag);
    history.action.push_back(row.action);
    history.address.push_back(row.address);
    history.size.push_back(row.size);
    history.thread.push_back(row.thread);
    history.seconds.push_back(row.seconds);
    history.tag.push_back(found->second);
    history.stack.push_back(-1);
  };
  const double begin = dropped_ > 0 ? event(first_).seconds : began_;
  for (const auto& [address, block] : before) {
    add({History::allocate, address, block.size, 0, begin, nullptr}, block.tag);
  }
  for (std::uint64_t each = first_; each < next_; ++each) {
    add(event(each), text_of(event(each).tag));
  }
  return history;
}

Bytes PoolHistory::metadata() const noexcept {
  constexpr Bytes kNode = 4 * sizeof(void*);  // a map node, beside its value
  return touched_ * sizeof(Event) +
         names_.rows().size() * (sizeof(Names::Rows::value_type) + kNode);
}

void PoolHistory::check(const std::vector<LiveBlock>& live) const {
  std::map<std::uintptr_t, Bytes> out;
  for (const LiveBlock& block : live) out[block.address] = block.requested;
  std::map<const void*, std::size_t> holders;
  for (std::uint64_t each = next_; each-- > first_;) {
    const Event& row = event(each);
    ++holders[row.tag];
    require(each + 1 == next_ || row.seconds <= event(each + 1).seconds,
            "an event is older than the one before it");
    if (row.action == History::allocate) {
      const auto found = out.find(row.address);
      require(found != out.end() && found->second == row.size,
              "a block that was taken is neither out nor freed");
      out.erase(found);
    }
    if (row.action == History::free) {
      require(out.emplace(row.address, row.size).second, "a block was freed twice");
    }
  }
  require(first_ <= next_ && next_ - first_ <= max_, "more events than there may be");
  holders.erase(nullptr);
  require(holders.size() == names_.rows().size(), "a name has no event");
  for (const auto& row : names_.rows()) {
    require(holders[&row] == row.second.holders, "a name's holders are miscounted");
  }
}

}  // namespace memcfg
