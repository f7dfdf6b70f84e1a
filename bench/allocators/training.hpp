// Traces of devices: a training loop whose batch grows, and RMM's random allocations.
#pragma once

#include "harness.hpp"
#include "limits.hpp"

namespace bench {

// A network of fifty layers under training, as seen by its allocator. Each layer keeps
// its output from forward to backward and takes scratch of the same size for a moment.
template <class Peer>
class Network {
 public:
  Network(Peer& peer, std::uint64_t seed) : peer_(peer) {
    Random random(seed);
    for (Bytes& bytes : sample_) bytes = random.log_uniform(16_KiB, 1_MiB);
    for (Block& weight : weights_) weight = take(random.log_uniform(4_KiB, 4_MiB));
  }
  Network(const Network&) = delete;
  Network& operator=(const Network&) = delete;
  ~Network() {
    for (Block& weight : weights_) give(weight);
  }

  void step(Bytes batch) {
    for (int i = 0; i < kLayers; ++i) {
      kept_[i] = take(batch * sample_[i]);
      Block scratch = take(batch * sample_[i]);
      give(scratch);
    }
    Block gradient = take(batch * sample_[kLayers - 1]);
    for (int i = kLayers - 1; i >= 0; --i) {
      Block next = take(batch * sample_[i > 0 ? i - 1 : 0]);
      give(gradient);
      give(kept_[i]);
      gradient = next;
    }
    give(gradient);
  }

  Bytes peak() const { return peak_; }

 private:
  static constexpr int kLayers = 50;

  Block take(Bytes size) {
    const Block block{peer_.allocate(size), size};
    if (block.address == nullptr) std::abort();
    now_ += size;
    peak_ = std::max(peak_, now_);
    return block;
  }
  void give(const Block& block) {
    peer_.deallocate(block.address, block.size);
    now_ -= block.size;
  }

  Peer& peer_;
  Bytes sample_[kLayers] = {};       // bytes of a layer's output, for one sample
  Block weights_[2 * kLayers] = {};  // and the optimizer's slots
  Block kept_[kLayers] = {};
  Bytes now_ = 0;
  Bytes peak_ = 0;
};

// A batch that grows by one from 8 to 64, as in the comment on expandable segments in
// PyTorch's allocator: the free chunks of batch N are a little too small for N + 1.
template <class Peer>
void sawtooth(const Options& options, const Report& report) {
  double sum = 0;
  double least = 1;
  constexpr int kSeeds = 20;
  for (int i = 0; i < kSeeds; ++i) {
    Peer peer(Terms{});
    Network<Peer> network(peer, options.seed + static_cast<std::uint64_t>(i));
    for (Bytes batch = 8; batch <= 64; ++batch) network.step(batch);
    const Bytes reserved = peer.held().peak_reserved;
    if (reserved == kUnknown) return;
    const double used =
        static_cast<double>(network.peak()) / static_cast<double>(reserved);
    sum += used;
    least = std::min(least, used);
  }
  report.add("batch 8 to 64, 50 layers", "mean requested/reserved", sum / kSeeds);
  report.add("batch 8 to 64, 50 layers", "least requested/reserved", least);
}

// RMM's random_allocations: `count` allocations of 1 to `largest` bytes with 73 %,
// frees of a random block otherwise and whenever more than 16,000 MiB would be in use;
// on a device of 16 GiB. A refusal counts as a failure and frees a block instead.
class RandomRun {
 public:
  RandomRun(std::size_t count, Bytes largest, std::uint64_t seed) : count_(count) {
    Random random(seed);
    draws_.resize(2 * count);
    for (Draw& draw : draws_) {
      draw.size = random.uniform(1, largest);
      draw.allocating = random.uniform(0, 99) < 73;
      draw.victim = random.uniform(0, 1'000'000'000);
    }
  }

  // Returns the failures; everything is freed at the end.
  template <class Peer>
  std::size_t play(Peer& peer) const {
    Crowd<Peer> crowd(peer);
    std::size_t granted = 0;
    std::size_t failures = 0;
    for (const Draw& draw : draws_) {
      const bool room = granted < count_ && crowd.requested() + draw.size < 16'000_MiB;
      if (crowd.count() == 0 || (draw.allocating && room)) {
        if (crowd.add(draw.size)) {
          ++granted;
          continue;
        }
        ++failures;
      }
      if (crowd.count() > 0) crowd.remove(draw.victim);
    }
    return failures;
  }

 private:
  struct Draw {
    Bytes size;
    bool allocating;
    std::size_t victim;
  };
  const std::size_t count_;
  std::vector<Draw> draws_;
};

// Timed is the second run on the same peer: the first one lets it grow.
template <class Peer>
void random_grid(const Options& options, const Report& report) {
  if constexpr (Peer::kLimited) {
    pin(0);
    for (const std::size_t count : {1'000, 10'000, 100'000}) {
      for (const Bytes mib : {1, 4, 64, 256, 1024, 4096}) {
        if (options.quick && count > 10'000) continue;
        const RandomRun run(count, mib << 20, options.seed);
        Peer peer(Terms{16_GiB, true});
        run.play(peer);
        const auto start = Clock::now();
        const std::size_t failures = run.play(peer);
        const double taken = seconds_since(start);
        const std::string name = std::to_string(count) + " up to " + text(mib << 20);
        report.add(name, "ms", taken * 1e3);
        report.add(name, "failures", static_cast<double>(failures));
      }
    }
  }
}

}  // namespace bench
