// Random traces, made before the clock starts: latency, and memory taken for memory
// asked.
#pragma once

#include <numeric>

#include "harness.hpp"

namespace bench {

// A live set: `live` blocks of log-uniform sizes, of which a random one is replaced at
// each step. The number of blocks stays, their sum wanders.
struct Profile {
  const char* name;
  Bytes low;
  Bytes high;
  std::size_t live;   // blocks
  std::size_t steps;  // replacements, of which the first half goes untimed
};

// The live counts put BFC near the figures that others measured for it. How much of its
// regions BFC fills depends on where between two doublings the live set ends: `growth`
// varies the count.
constexpr Profile kProfiles[] = {
    {"small, 64 B to 64 KiB", 64, 64_KiB, 5000, 200'000},
    {"mixed, 256 B to 32 MiB", 256, 32_MiB, 500, 100'000},
    {"tensor, 64 KiB to 256 MiB", 64_KiB, 256_MiB, 120, 50'000},
};

struct Step {
  std::uint32_t slot;
  Bytes size;
};

inline std::vector<Step> live_set_trace(const Profile& profile,
                                        const Options& options) {
  Random random(options.seed);
  const std::size_t steps = profile.steps / (options.quick ? 10 : 1);
  std::vector<Step> trace;
  trace.reserve(profile.live + steps);
  for (std::size_t slot = 0; slot < profile.live; ++slot) {
    const Bytes size = random.log_uniform(profile.low, profile.high);
    trace.push_back({static_cast<std::uint32_t>(slot), size});
  }
  for (std::size_t i = 0; i < steps; ++i) {
    const auto slot = static_cast<std::uint32_t>(random.uniform(0, profile.live - 1));
    trace.push_back({slot, random.log_uniform(profile.low, profile.high)});
  }
  return trace;
}

// Plays a live-set trace. `touching` writes to every page, after the clock has stopped.
template <class Peer>
class LiveSet {
 public:
  LiveSet(Peer& peer, const Profile& profile, bool touching)
      : peer_(peer), profile_(profile), touching_(touching), slots_(profile.live) {}

  void play(const std::vector<Step>& trace) {
    const std::size_t warm = profile_.live + (trace.size() - profile_.live) / 2;
    latencies.reserve(2 * trace.size());
    for (std::size_t i = 0; i < trace.size(); ++i) step(trace[i], i >= warm);
    for (const Slot& slot : slots_) peer_.deallocate(slot.block, slot.size);
  }

  std::vector<std::uint32_t> latencies;  // of each call, in nanoseconds
  Bytes peak_requested = 0;

 private:
  struct Slot {
    void* block = nullptr;
    Bytes size = 0;
  };

  void step(const Step& step, bool timed) {
    Slot& slot = slots_[step.slot];
    const auto start = Clock::now();
    if (slot.block != nullptr) peer_.deallocate(slot.block, slot.size);
    const auto middle = Clock::now();
    void* const block = peer_.allocate(step.size);
    const auto end = Clock::now();
    if (block == nullptr) std::abort();  // the machine is too small for this trace
    use(block);
    if (touching_) touch(block, step.size);
    requested_ += step.size - slot.size;
    peak_requested = std::max(peak_requested, requested_);
    slot = {block, step.size};
    if (!timed) return;
    latencies.push_back(nanoseconds(start, middle));
    latencies.push_back(nanoseconds(middle, end));
  }

  Peer& peer_;
  const Profile& profile_;
  const bool touching_;
  std::vector<Slot> slots_;
  Bytes requested_ = 0;
};

// Nothing is touched: the time is the allocator's own.
template <class Peer>
void live_set(const Options& options, const Report& report) {
  pin(0);
  for (const Profile& profile : kProfiles) {
    Peer peer(Terms{});
    LiveSet<Peer> set(peer, profile, false);
    set.play(live_set_trace(profile, options));
    const Held held = peer.held();
    report.latencies(profile.name, set.latencies);
    report.ratio(
        profile.name, "requested/in use", set.peak_requested, held.peak_in_use);
    report.ratio(
        profile.name, "requested/reserved", set.peak_requested, held.peak_reserved);
  }
}

// The same with 1, 1.2, 1.4 and 1.7 times as many live blocks.
template <class Peer>
void growth(const Options& options, const Report& report) {
  for (const Profile& profile : kProfiles) {
    double sum = 0;
    double least = 1;
    for (const std::size_t tenths : {10, 12, 14, 17}) {
      Profile varied = profile;
      varied.live = profile.live * tenths / 10;
      Peer peer(Terms{});
      LiveSet<Peer> set(peer, varied, false);
      set.play(live_set_trace(varied, options));
      const Bytes reserved = peer.held().peak_reserved;
      if (reserved == kUnknown) return;
      const double used =
          static_cast<double>(set.peak_requested) / static_cast<double>(reserved);
      sum += used;
      least = std::min(least, used);
    }
    report.add(profile.name, "mean requested/reserved", sum / 4);
    report.add(profile.name, "least requested/reserved", least);
  }
}

// Every page is touched: what the process really takes, whatever the allocator counts.
// Without the tensor trace, which would wait for the system's zeroed pages alone.
template <class Peer>
void resident_set(const Options& options, const Report& report) {
  pin(0);
  for (const Profile& profile : {kProfiles[0], kProfiles[1]}) {
    Peer peer(Terms{});
    Profile shorter = profile;
    shorter.steps /= profile.high > 1_MiB ? 20 : 1;
    const auto trace = live_set_trace(shorter, options);
    LiveSet<Peer> set(peer, shorter, true);
    set.latencies.resize(2 * trace.size());  // resident before the start
    set.latencies.clear();
    peer.trim();  // malloc may keep what an earlier trace has freed
    const PeakResident peak;
    set.play(trace);
    report.latencies(shorter.name, set.latencies);
    report.ratio(shorter.name, "requested/resident", set.peak_requested, peak.grown());
  }
}

}  // namespace bench
