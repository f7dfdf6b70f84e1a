// Speed with many free chunks, which nothing coalesces.
#pragma once

#include "harness.hpp"
#include "pairs.hpp"

namespace bench {

// Blocks of `size` bytes, every second one freed.
template <class Peer>
class Comb {
 public:
  Comb(Peer& peer, std::size_t count, Bytes size) : peer_(peer), size_(size) {
    std::vector<void*> blocks(2 * count);
    for (void*& block : blocks) {
      block = peer_.allocate(size_);
      if (block == nullptr) std::abort();
    }
    for (std::size_t i = 0; i < blocks.size(); i += 2) {
      peer_.deallocate(blocks[i], size_);
      teeth_.push_back(blocks[i + 1]);
    }
  }
  Comb(const Comb&) = delete;
  Comb& operator=(const Comb&) = delete;
  ~Comb() {
    for (void* tooth : teeth_) peer_.deallocate(tooth, size_);
  }

 private:
  Peer& peer_;
  const Bytes size_;
  std::vector<void*> teeth_;
};

// Pairs that a free chunk fits and pairs that none fits. 68 KiB is beyond what
// per-thread caches and size classes serve.
template <class Peer>
void free_chunks(const Options& options, const Report& report) {
  pin(0);
  const double seconds = options.quick ? 0.02 : 0.1;
  struct Case {
    Bytes chunk;
    Bytes query;
  };
  const Case cases[] = {
      {1_KiB, 1_KiB}, {1_KiB, 4_KiB}, {68_KiB, 68_KiB}, {68_KiB, 100_KiB}};
  for (const Case& at : cases) {
    for (const std::size_t count : {4096, 16384, 65536}) {
      Peer peer(Terms{16_GiB, true});
      const Comb<Peer> comb(peer, count, at.chunk);
      const double each = seconds_each(seconds, [&](std::size_t pairs) {
        for (std::size_t i = 0; i < pairs; ++i) one_pair(peer, at.query);
      });
      const std::string name = std::to_string(count) + " free chunks of " +
                               text(at.chunk) + ", query " + text(at.query);
      report.add(name, "ns", each * 1e9);
    }
  }
}

}  // namespace bench
