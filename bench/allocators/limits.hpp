// How much fits under a limit, and how much memory is taken for what is asked. Nothing
// is touched; apart from the grid, no time is taken.
#pragma once

#include "harness.hpp"

namespace bench {

struct Block {
  void* address = nullptr;
  Bytes size = 0;
};

// Blocks that are live, any of which may go next.
template <class Peer>
class Crowd {
 public:
  explicit Crowd(Peer& peer) : peer_(peer) {}
  Crowd(const Crowd&) = delete;
  Crowd& operator=(const Crowd&) = delete;
  ~Crowd() {
    while (!live_.empty()) pop();
  }

  Bytes requested() const { return requested_; }
  std::size_t count() const { return live_.size(); }

  // False when the peer refuses.
  bool add(Bytes size) {
    void* const address = peer_.allocate(size);
    if (address == nullptr) return false;
    live_.push_back({address, size});
    requested_ += size;
    return true;
  }
  void remove(std::size_t place) {
    std::swap(live_[place % live_.size()], live_.back());
    pop();
  }

 private:
  void pop() {
    peer_.deallocate(live_.back().address, live_.back().size);
    requested_ -= live_.back().size;
    live_.pop_back();
  }

  Peer& peer_;
  std::vector<Block> live_;
  Bytes requested_ = 0;
};

// Refuses what does not fit and wastes nothing: the bound of every allocator.
struct Ideal {
  static constexpr bool kLimited = true;
  explicit Ideal(const Terms& terms) : left(terms.limit) {}
  void* allocate(Bytes size) {
    if (size > left) return nullptr;
    left -= size;
    return this;
  }
  void deallocate(void*, Bytes size) { left += size; }
  Bytes left;
};

// Uniform sizes in [1, largest], an allocation with 60 % and a free of a random block
// with 40 %, until the first refusal: the share of the limit that the live blocks had
// asked for. With 60 %, BFC comes near what others measured for it; with fewer frees
// everybody fares better.
template <class Peer>
double use_at_first_refusal(Bytes limit, Bytes largest, std::uint64_t seed) {
  Peer peer(Terms{limit, true});
  Crowd<Peer> crowd(peer);
  Random random(seed);
  for (;;) {
    const Bytes size = random.uniform(1, largest);
    const bool allocating = random.uniform(0, 99) < 60;
    const std::size_t victim = random.uniform(0, 1'000'000'000);
    if (!allocating && crowd.count() > 0) {
      crowd.remove(victim);
    } else if (!crowd.add(size)) {
      return static_cast<double>(crowd.requested()) / static_cast<double>(limit);
    }
  }
}

template <class Peer>
void first_refusal(const Options& options, const Report& report) {
  if constexpr (Peer::kLimited) {
    for (const Bytes largest : {1_MiB, 8_MiB, 64_MiB}) {
      double sum = 0;
      double least = 1;
      double ideal = 0;
      constexpr int kSeeds = 20;
      for (int i = 0; i < kSeeds; ++i) {
        const std::uint64_t seed = options.seed + static_cast<std::uint64_t>(i);
        const double used = use_at_first_refusal<Peer>(1_GiB, largest, seed);
        sum += used;
        least = std::min(least, used);
        ideal += use_at_first_refusal<Ideal>(1_GiB, largest, seed);
      }
      const std::string name = "sizes up to " + text(largest);
      report.add(name, "mean use", sum / kSeeds);
      report.add(name, "least use", least);
      report.add(name, "ideal mean use", ideal / kSeeds);
    }
  }
}

// A 64 MiB limit with one 12-byte block: how many 16 MiB blocks fit, and whether 15 MiB
// still do after three of them.
template <class Peer>
void tight(const Options&, const Report& report) {
  if constexpr (Peer::kLimited) {
    Peer peer(Terms{64_MiB});
    Crowd<Peer> crowd(peer);
    crowd.add(12);
    int blocks = 0;
    while (blocks < 3 && crowd.add(16_MiB)) ++blocks;
    report.add("64 MiB limit", "16 MiB blocks, of 3", blocks);
    report.add("64 MiB limit", "15 MiB block, of 1", crowd.add(15_MiB) ? 1 : 0);
    const auto start = Clock::now();
    const bool more = crowd.add(16_MiB);
    report.add("64 MiB limit", "refusal us", seconds_since(start) * 1e6);
    if (more) std::abort();
  }
}

// TensorFlow's test of reuse: 128 blocks of 4 MiB fill a 512 MiB limit, all but the
// last go, and 508 MiB are asked for.
template <class Peer>
void promote(const Options&, const Report& report) {
  if constexpr (Peer::kLimited) {
    Peer peer(Terms{512_MiB});
    std::vector<void*> blocks;
    while (blocks.size() < 128) {
      void* const block = peer.allocate(4_MiB);
      if (block == nullptr) break;
      blocks.push_back(block);
    }
    report.add("512 MiB limit", "4 MiB blocks, of 128", double(blocks.size()));
    void* const last = blocks.back();
    blocks.pop_back();
    for (void* block : blocks) peer.deallocate(block, 4_MiB);
    void* const large = peer.allocate(508_MiB);
    report.add("512 MiB limit", "508 MiB block, of 1", large != nullptr ? 1 : 0);
    if (large != nullptr) peer.deallocate(large, 508_MiB);
    peer.deallocate(last, 4_MiB);
  }
}

}  // namespace bench
