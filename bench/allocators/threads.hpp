// Speed of allocate and deallocate on several threads.
#pragma once

#include <atomic>
#include <mutex>
#include <thread>

#include "harness.hpp"
#include "pairs.hpp"

namespace bench {

// Runs work(thread) on each of `threads` threads, pinned in turn to the processors, all
// set off together, and returns the seconds from the start to the last one's end.
template <class Work>
double together_once(unsigned threads, Work&& work) {
  std::atomic<unsigned> ready{0};
  std::atomic<bool> go{false};
  std::vector<std::thread> crew;
  for (unsigned i = 0; i < threads; ++i) {
    crew.emplace_back([&, i] {
      pin(i % std::max(1U, std::thread::hardware_concurrency()));
      ++ready;
      while (!go) std::this_thread::yield();
      work(i);
    });
  }
  while (ready != threads) std::this_thread::yield();
  const auto start = Clock::now();
  go = true;
  for (std::thread& thread : crew) thread.join();
  return seconds_since(start);
}

// The same a few times, after a warm-up: a processor that slept is not at full speed.
// Returns the seconds of the fastest time.
template <class Work>
double together(unsigned threads, Work&& work) {
  together_once(threads, work);
  double fastest = together_once(threads, work);
  for (int i = 1; i < kStretches; ++i) {
    fastest = std::min(fastest, together_once(threads, work));
  }
  return fastest;
}

// Pairs of one size on 1, 2 and 4 threads, one pool: what all achieve together.
template <class Peer>
void threads(const Options& options, const Report& report) {
  for (const Bytes size : {Bytes{256}, 4_KiB, 64_KiB, 1_MiB}) {
    Peer peer(Terms{});
    const double each = seconds_each(0.02, [&](std::size_t count) {
      for (std::size_t i = 0; i < count; ++i) one_pair(peer, size);
    });
    const double seconds = options.quick ? 0.01 : 0.02;
    const auto count = static_cast<std::size_t>(seconds / each);
    double alone = 0;
    for (const unsigned crew : {1U, 2U, 4U}) {
      const double taken = together(crew, [&](unsigned) {
        for (std::size_t i = 0; i < count; ++i) one_pair(peer, size);
      });
      const double rate = static_cast<double>(count * crew) / taken;
      const std::string name = text(size) + ", threads " + std::to_string(crew);
      report.add(name, "pairs/s", rate);
      if (crew == 1) alone = rate;
      if (crew > 1) report.add(name, "scaling", rate / alone);
    }
  }
}

// Blocks that one thread allocates and another frees, after P. Larson and M. Krishnan,
// "Memory allocation for long-running server applications" (ISMM 1998): each thread
// replaces random blocks of its set, and every so often swaps the set for the spare
// one.
template <class Peer>
class Larson {
 public:
  Larson(Peer& peer, unsigned threads, std::uint64_t seed)
      : peer_(peer), sets_(threads + 1, Set(kSlots)), turns_(kTurns) {
    Random random(seed);
    for (Set& set : sets_) {
      for (Slot& slot : set) fill(slot, random.uniform(kLow, kHigh));
    }
    for (Turn& turn : turns_) {
      turn = {random.uniform(0, kSlots - 1), random.uniform(kLow, kHigh)};
    }
    for (Set& set : sets_) mine_.push_back(&set);
  }
  Larson(const Larson&) = delete;
  Larson& operator=(const Larson&) = delete;
  ~Larson() {
    for (Set& set : sets_) {
      for (Slot& slot : set) peer_.deallocate(slot.block, slot.size);
    }
  }

  static constexpr std::size_t kTurns = 10'000;  // replacements between two swaps

  void work(unsigned thread, std::size_t rounds) {
    Set*& mine = mine_[thread];
    for (std::size_t round = 0; round < rounds; ++round) {
      Set& set = *mine;
      for (const Turn& turn : turns_) {
        Slot& slot = set[turn.slot];
        peer_.deallocate(slot.block, slot.size);
        fill(slot, turn.size);
      }
      const std::lock_guard<std::mutex> lock(mutex_);
      std::swap(mine, mine_.back());
    }
  }

 private:
  static constexpr Bytes kLow = 16;
  static constexpr Bytes kHigh = 1024;
  static constexpr std::size_t kSlots = 1000;
  struct Slot {
    void* block = nullptr;
    Bytes size = 0;
  };
  struct Turn {
    std::size_t slot = 0;
    Bytes size = 0;
  };
  using Set = std::vector<Slot>;

  void fill(Slot& slot, Bytes size) {
    slot = {peer_.allocate(size), size};
    *static_cast<volatile char*>(slot.block) = 1;
  }

  Peer& peer_;
  std::vector<Set> sets_;
  std::vector<Turn> turns_;
  std::mutex mutex_;        // guards the last of
  std::vector<Set*> mine_;  // each thread's set, and the spare one
};

template <class Peer>
void larson(const Options& options, const Report& report) {
  double alone = 0;
  for (const unsigned crew : {1U, 2U}) {
    Peer peer(Terms{});
    Larson<Peer> sets(peer, crew, options.seed);
    const std::size_t rounds = options.quick ? 5 : 50;
    const double taken =
        together(crew, [&](unsigned thread) { sets.work(thread, rounds); });
    const double rate = static_cast<double>(crew * rounds * sets.kTurns) / taken;
    const std::string name = "threads " + std::to_string(crew);
    report.add(name, "replacements/s", rate);
    if (crew == 1) alone = rate;
    if (crew > 1) report.add(name, "scaling", rate / alone);
  }
}

}  // namespace bench
