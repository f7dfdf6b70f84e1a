#include "memcfg/replay.hpp"

#include <algorithm>
#include <chrono>
#include <exception>
#include <limits>
#include <stdexcept>
#include <unordered_map>
#include <utility>

#include "memcfg/error.hpp"
#include "memcfg/tracking.hpp"

namespace memcfg {
namespace {

using Clock = std::chrono::steady_clock;

constexpr Bytes kPage = 4096;  // bytes; the smallest page of any machine
constexpr std::chrono::milliseconds kSlice{50};  // until a signal may be heeded

std::uint64_t since(Clock::time_point start) {
  const auto passed = Clock::now() - start;
  return static_cast<std::uint64_t>(
      std::chrono::duration_cast<std::chrono::nanoseconds>(passed).count());
}

void write_to_pages(void* address, Bytes size) {
  auto* const first = static_cast<volatile unsigned char*>(address);
  for (Bytes offset = 0; offset < size; offset += kPage) first[offset] = 1;
  first[size - 1] = 1;
}

[[noreturn]] void throw_bad_row(std::size_t row, const char* why) {
  throw std::invalid_argument("row " + std::to_string(row) + " " + why);
}

// Which slot an address has, while its block is out.
class SlotMap {
 public:
  std::uint32_t add(std::uint64_t address, std::size_t row) {
    if (spare_.empty()) spare_.push_back(count_++);
    const std::uint32_t slot = spare_.back();
    if (!slots_.emplace(address, slot).second) throw_bad_row(row, "takes what is out");
    spare_.pop_back();
    return slot;
  }
  std::uint32_t remove(std::uint64_t address, std::size_t row) {
    const auto found = slots_.find(address);
    if (found == slots_.end()) throw_bad_row(row, "frees what is not out");
    const std::uint32_t slot = found->second;
    spare_.push_back(slot);
    slots_.erase(found);
    return slot;
  }
  std::size_t count() const noexcept { return count_; }

 private:
  std::unordered_map<std::uint64_t, std::uint32_t> slots_;
  std::vector<std::uint32_t> spare_;
  std::uint32_t count_ = 0;
};

}  // namespace

ReplayPlan::ReplayPlan(const Columns& rows, std::vector<std::string> tags)
    : tags_(std::move(tags)) {
  if (rows.count > std::numeric_limits<std::uint32_t>::max()) {
    throw std::invalid_argument("a record has less than 2^32 rows");
  }
  SlotMap slots;
  steps_.reserve(rows.count);
  for (std::size_t row = 0; row < rows.count; ++row) {
    const auto tag = static_cast<std::uint32_t>(rows.tag[row]);
    const std::uint64_t address = rows.address[row];
    if (tag >= tags_.size())
      throw_bad_row(row, "has no tag");  // a negative one is large
    if (rows.action[row] == History::failure) continue;
    const bool frees = rows.action[row] == History::free;
    const std::uint32_t slot =
        frees ? slots.remove(address, row) : slots.add(address, row);
    steps_.push_back({row, slot, tag, rows.size[row], frees});
  }
  slots_ = slots.count();
}

Replay::Replay(std::shared_ptr<const ReplayPlan> plan,
               std::shared_ptr<Resource> resource,
               bool touch)
    : plan_(std::move(plan)),
      resource_(std::move(resource)),
      touch_(touch),
      earlier_peak_(resource_->stats().peak_reserved),
      used_before_(resource_->stats().reserved < earlier_peak_),
      blocks_(plan_->slots()),
      sizes_(plan_->slots()) {
  if (touch_ && !resource_->touchable()) {
    throw std::invalid_argument("the host cannot touch this memory");
  }
  nanoseconds_.reserve(plan_->steps().size());
  note_reserved();
}

Replay::~Replay() {
  try {
    release_all();
  } catch (...) {  // what could go back has
  }
}

bool Replay::advance(std::size_t max_steps) {
  const std::vector<ReplayPlan::Step>& steps = plan_->steps();
  const std::size_t end = next_ + std::min(max_steps, steps.size() - next_);
  const Clock::time_point pause = Clock::now() + kSlice;
  while (next_ < end && Clock::now() < pause) {
    const ReplayPlan::Step& step = steps[next_++];
    step.frees ? release(step) : allocate(step);
  }
  return next_ < steps.size();
}

void Replay::allocate(const ReplayPlan::Step& step) {
  const Request request{step.size, kAlignment, Lifetime::unknown, plan_->tag(step)};
  const Clock::time_point start = Clock::now();
  try {
    blocks_[step.slot] = resource_->allocate(request);
    if (touch_) write_to_pages(blocks_[step.slot], step.size);
    nanoseconds_.push_back(since(start));
  } catch (const out_of_memory& error) {
    nanoseconds_.push_back(since(start));
    note_failure(step, error.info());
    return;
  }
  sizes_[step.slot] = step.size;
  in_use_ += align_up(step.size);
  requested_ += step.size;
  figures_.peak_requested = std::max(figures_.peak_requested, requested_);
  if (in_use_ <= figures_.peak_in_use) return;
  figures_.peak_in_use = in_use_;
  if (used_before_) note_reserved();
}

void Replay::note_failure(const ReplayPlan::Step& step, const OutOfMemoryInfo& info) {
  if (figures_.failures++ > 0) return;
  figures_.first_failure = step.row;
  if (info.limit != kNoLimit) {
    figures_.use_at_failure =
        static_cast<double>(requested_) / static_cast<double>(info.limit);
  }
  note_reserved();
}

void Replay::release(const ReplayPlan::Step& step) {
  void* const address = std::exchange(blocks_[step.slot], nullptr);
  if (address == nullptr) {
    ++figures_.skipped;
    return;
  }
  in_use_ -= align_up(step.size);
  requested_ -= step.size;
  const Clock::time_point start = Clock::now();
  resource_->deallocate(address, step.size);
  nanoseconds_.push_back(since(start));
}

void Replay::note_reserved() {
  figures_.peak_reserved = std::max(figures_.peak_reserved, resource_->reserved());
}

void Replay::finish() {
  note_reserved();
  const Bytes peak = resource_->stats().peak_reserved;
  if (peak > earlier_peak_) {
    figures_.peak_reserved = std::max(figures_.peak_reserved, peak);
  }
  release_all();
}

void Replay::release_all() {
  std::exception_ptr wrong;
  for (std::size_t slot = 0; slot < blocks_.size(); ++slot) {
    void* const address = std::exchange(blocks_[slot], nullptr);
    if (address == nullptr) continue;
    ++figures_.left;
    figures_.left_size += sizes_[slot];
    try {
      resource_->deallocate(address, sizes_[slot]);
    } catch (...) {
      wrong = std::current_exception();
    }
  }
  if (wrong) std::rethrow_exception(wrong);
}

}  // namespace memcfg
