// Memory of the process: what an allocator's metadata take, and what it gives back.
#pragma once

#include "harness.hpp"

namespace bench {

inline double mib(Bytes now, Bytes before) {
  return (static_cast<double>(now) - static_cast<double>(before)) / 0x1p20;
}

// A pool of 16 GiB: resident bytes after one block, and after it is full of blocks that
// nobody touches. What the harness itself needs is resident before.
template <class Peer>
void metadata(const Options&, const Report& report) {
  for (const Bytes size : {1_MiB, 64_KiB}) {
    std::vector<void*> blocks(16_GiB / size, nullptr);
    const Bytes before = resident();
    Peer peer(Terms{16_GiB});
    blocks[0] = peer.allocate(size);
    report.add(
        "16 GiB pool, one block of " + text(size), "MiB", mib(resident(), before));
    std::size_t count = 1;
    while (count < blocks.size()) {
      blocks[count] = peer.allocate(size);
      if (blocks[count] == nullptr) break;
      ++count;
    }
    const std::string name = "16 GiB of blocks of " + text(size);
    report.add(name, "MiB", mib(resident(), before));
    report.add(name, "blocks missing", static_cast<double>(blocks.size() - count));
    const Held held = peer.held();
    if (held.metadata != kUnknown)
      report.add(name, "counted MiB", mib(held.metadata, 0));
    for (std::size_t i = 0; i < count; ++i) peer.deallocate(blocks[i], size);
  }
}

// 3.2 GiB allocated, touched and freed: what stays resident, before and after the peer
// is asked to give it back.
template <class Peer>
void release_one(const std::string& name,
                 const std::vector<Bytes>& sizes,
                 const Report& report) {
  std::vector<void*> blocks(sizes.size(), nullptr);
  const Bytes before = resident();
  Peer peer(Terms{});
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    blocks[i] = peer.allocate(sizes[i]);
    touch(blocks[i], sizes[i]);
  }
  report.add(name, "MiB, held", mib(resident(), before));
  for (std::size_t i = 0; i < sizes.size(); ++i) peer.deallocate(blocks[i], sizes[i]);
  report.add(name, "MiB, freed", mib(resident(), before));
  const auto start = Clock::now();
  if (!peer.trim()) return;
  report.add(name, "trim ms", seconds_since(start) * 1e3);
  report.add(name, "MiB, trimmed", mib(resident(), before));
}

template <class Peer>
void release(const Options& options, const Report& report) {
  release_one<Peer>("100 of 32 MiB", std::vector<Bytes>(100, 32_MiB), report);
  std::vector<Bytes> sizes;
  Random random(options.seed);
  for (Bytes sum = 0; sum < 3200_MiB; sum += sizes.back()) {
    sizes.push_back(random.log_uniform(256, 4_MiB));
  }
  release_one<Peer>("3.2 GiB of 256 B to 4 MiB", sizes, report);
}

}  // namespace bench
